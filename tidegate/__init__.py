"""Autoscaling for Spark Structured Streaming. Subscribe to what Tidegate measures, decides and does.

>>> from tidegate import decisions
>>> for decision in decisions("127.0.0.1:9092", job="rates", follow=True):  # doctest: +SKIP
...     print(decision.final_parallelism, decision.sentence)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.client import commands, dead_letters, decisions, jobs, results, snapshots

__all__ = ["commands", "dead_letters", "decisions", "jobs", "results", "snapshots"]


def __getattr__(name: str) -> Any:
    """Load the client on first use: a Spark driver imports this package and has no Kafka client."""
    if name in __all__:
        from tidegate import client  # noqa: PLC0415  (see above)

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
