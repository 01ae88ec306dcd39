"""The `tidegate` command. Each file holds related subcommands; `main.py` lists them all."""

import sys

try:
    from tidegate.cli.main import app, main
except KeyboardInterrupt:  # the imports take half a second
    raise SystemExit(130) from None
except ModuleNotFoundError as error:
    if str(error.name).startswith("tidegate"):
        raise
    sys.stderr.write(f"tidegate: the package {error.name} is not installed: pip install 'tidegate[cli]'\n")
    raise SystemExit(2) from None

__all__ = ["app", "main"]
