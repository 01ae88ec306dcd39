"""Windows of a `cron` option, as `numaflow` and `keda` have them: a start, an end, and what holds in between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidegate.engine.cron import BadCron, Cron
from tidegate.engine.cron import parse as parse_cron
from tidegate.engine.options import BadOption


class CronItem(NamedTuple):
    """One window, with its start and end read."""

    text: str
    start: Cron
    end: Cron
    rest: list[str]
    """The fields after the end."""


def cron_items(text: str, form: str, *, seconds: str = "") -> Iterator[CronItem]:
    """Return the windows of an option, each written as `form` says; raise `BadOption` for one that is not.

    `seconds` goes before expressions that have no field of their own for it.
    """
    for item in filter(None, (part.strip() for part in text.split(";"))):
        fields = [field.strip() for field in item.split("|")]
        if len(fields) != form.count("|") + 1:
            raise BadOption(f"scaling.policy_options.cron: must be {form}, found {item!r}")
        try:
            start, end = (parse_cron(seconds + field, "standard") for field in fields[:2])
        except BadCron as error:
            raise BadOption(f"scaling.policy_options.cron: {error}") from None
        if fields[0].split() == fields[1].split():
            raise BadOption(f"scaling.policy_options.cron: start and end must differ, found {item!r}")
        yield CronItem(item, start, end, fields[2:])
