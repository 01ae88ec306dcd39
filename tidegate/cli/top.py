"""`top`: the live fleet in the terminal."""

from __future__ import annotations

import sys
from contextlib import closing
from datetime import timedelta

from tidegate.cli.connect import Bootstrap, Prefix, connect
from tidegate.cli.problems import Problem
from tidegate.fleet.feed import Feed
from tidegate.terminal import is_terminal

LOOK_BACK = timedelta(minutes=10)
"""How far back to read at the start: most jobs have a decision every few seconds."""


def top(bootstrap_servers: Bootstrap = None, topic_prefix: Prefix = None) -> None:
    """Watch all jobs live, those that need attention first.

    Arrows choose a job, Enter shows the reasons of its newest decision, Escape leads back, / finds jobs by name, and q
    quits.

    Example:  tidegate top
    """
    settings = connect(bootstrap_servers, topic_prefix)
    feed = Feed(settings, LOOK_BACK)
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        raise Problem("`tidegate top` needs a terminal", "`tidegate jobs` prints the same once")
    from tidegate.cli.top_app import TopApp  # noqa: PLC0415  (Textual takes long to import)

    with closing(feed):
        feed.start()
        TopApp(feed).run()
