"""`python -m tidegate`: the command, for where its script is not on the path."""

from __future__ import annotations

from tidegate.cli import main

if __name__ == "__main__":
    main()
