"""The `tidegate` command. Each file holds related subcommands; `main.py` registers them all."""

from tidegate.cli.main import app, main

__all__ = ["app", "main"]
