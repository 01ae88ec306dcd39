"""Entry point that `spark-submit` runs by its path: makes `tidegate` importable for as long as the import takes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tidegate.launcher.main import main

sys.path.pop(0)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
