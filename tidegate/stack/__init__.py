"""The embedded stack: Kafka, Redis and Spark standalone as plain local processes, in one work folder.

`up` starts it, `status` checks it, `down` ends it and everything it launched. `Stack` kills, pauses and restarts single
components, for fault tests. `python -m tidegate.stack` does the same from a shell.
"""

from tidegate.stack.errors import StackError
from tidegate.stack.info import StackInfo
from tidegate.stack.stack import ComponentState, Stack, down, status, up

__all__ = ["ComponentState", "Stack", "StackError", "StackInfo", "down", "status", "up"]
