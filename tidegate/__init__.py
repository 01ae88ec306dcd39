"""The user's door: the `tidegate` command, the Python client, the embedded stack and the demo.

>>> from tidegate import decisions
>>> for decision in decisions("127.0.0.1:9092", job="rates", follow=True):  # doctest: +SKIP
...     print(decision.final_parallelism, decision.sentence)
"""

from tidegate.client import commands, dead_letters, decisions, jobs, results, snapshots

__all__ = ["commands", "dead_letters", "decisions", "jobs", "results", "snapshots"]
