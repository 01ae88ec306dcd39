"""Entry point, given to `spark-submit` by its path: puts the package on the path, then takes it off for the script."""

from __future__ import annotations

import sys
from pathlib import Path

# Spark runs this file by path, so `tidegate` may not be importable yet; the user's script gets sys.path[0] afterwards
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tidegate.launcher.launch import main

sys.path.pop(0)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
