"""The `tidegate` command. Each file holds related subcommands; `main.py` registers them all."""

try:
    from tidegate.cli.main import app, main
except KeyboardInterrupt:  # the imports take half a second
    raise SystemExit(130) from None

__all__ = ["app", "main"]
