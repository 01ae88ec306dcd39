"""What Tidegate keeps in Redis: the names of the keys under its prefix, and what stands in them.

| key | type | content | written by |
| --- | --- | --- | --- |
| `cooldown:<job>` | string | JSON `{decision_id, until}` | decider |
| `pool:<pool>` | hash by job | JSON `{slots, decision_id, until}` | decider |
| `view` | string | JSON `{rebuilt_at, server, tag}`; on another server the two above are not complete | decider |
| `fence:<job>` | hash | `epoch`, `run`, `owner` | actuator |

`until` is in epoch seconds. Whatever is here can be rebuilt from the topics.

A Redis in cluster mode keeps keys in slots and runs a script only if all of its keys are in one. There, the names of
cooldowns and pools end with a tag, the name of the marker in braces, by which Redis puts them all in the marker's slot:
`tidegate:cooldown:<job>{tidegate:view}`. The marker says so as well, in `tag`. A fence is alone in its script and has
the same name everywhere.
"""

from __future__ import annotations

COOLDOWN = "cooldown:"
POOL = "pool:"
VIEW = "view"
FENCE = "fence:"


def cooldown_key(prefix: str, job_id: str) -> str:
    """Return the key of a job's cooldown."""
    return f"{prefix}{COOLDOWN}{job_id}"


def pool_key(prefix: str, pool_id: str) -> str:
    """Return the key of what is promised of a pool."""
    return f"{prefix}{POOL}{pool_id}"


def view_key(prefix: str) -> str:
    """Return the key that says that cooldowns and pools are complete."""
    return f"{prefix}{VIEW}"


def fence_key(prefix: str, job_id: str) -> str:
    """Return the key of a job's fence."""
    return f"{prefix}{FENCE}{job_id}"


def slot_tag(prefix: str) -> str:
    """Return how the names of cooldowns and pools end where they have to be in the marker's slot."""
    return f"{{{view_key(prefix)}}}"
