"""`python -m tidegate`: the command, where the script is not on the path."""

from __future__ import annotations

from tidegate.cli import main

if __name__ == "__main__":
    main()
