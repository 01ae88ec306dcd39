"""The `tidegate` command. Each file holds one group of subcommands; `main.py` puts them together."""

from tidegate.cli.main import app, main

__all__ = ["app", "main"]
