"""The `tidegate` command. Each file holds related subcommands; `main.py` lists them all."""

from tidegate.runtime.extras import FROM_THE_WHEEL, needs

try:
    with needs("tidegate", "cli", FROM_THE_WHEEL):
        from tidegate.cli.main import app, main
except KeyboardInterrupt:  # the imports take half a second
    raise SystemExit(130) from None

__all__ = ["app", "main"]
