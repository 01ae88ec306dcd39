"""Where the checkpoints of a job's queries are, and whose they are, as Spark writes them."""

from __future__ import annotations

import json

from tidegate.remote.files import Place, contents, names


def candidates(root: Place) -> list[Place]:
    """Return the folders that may be a query's checkpoint: a job's location itself, and what is in it."""
    return [root, *(root / name for name in sorted(names(root)))]


def query_id(folder: Place) -> str | None:
    """Return the id of the query that a checkpoint belongs to; None if it has none yet, or is no checkpoint.

    Raises `ValueError` if the id cannot be read, and `OSError`.
    """
    file = folder / "metadata"
    try:
        text = contents(file).decode()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: expected a JSON object with `id`, found no text: {error}") from None
    try:
        return str(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{file}: expected a JSON object with `id`, found {len(text)} other characters") from None
