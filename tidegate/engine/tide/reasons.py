"""The reasons of `tide`'s proposals."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.engine.announced import CAUSE
from tidegate.engine.reasons import Reason

LATENESS = (
    "in the next {horizon:.0f} s the job would be late for {late_stay:.0f} s with them, "
    "and for {late:.0f} s with {size}"
)

REASONS: Mapping[str, Reason] = {
    "TIDE_LEARNING": Reason("{batches} of the {need} micro-batches needed to judge the job have been seen"),
    "TIDE_CAPACITY_UNKNOWN": Reason("nothing has been processed yet, so the capacity is unknown"),
    "TIDE_IDLE": Reason("nothing arrives and nothing waits, so {size} slots are enough"),
    "TIDE_GROW": Reason(
        "up to {demand:rate} records/s are expected and {lag} are waiting, and {current} slots can process "
        "{capacity:rate}/s, of which {headroom:.0%} is kept free: " + LATENESS + ", {change} included"
    ),
    "TIDE_GROW_ANNOUNCED": Reason(
        CAUSE
        + ", so up to {demand:rate} records/s are expected, and {current} slots can process {capacity:rate}/s: "
        + LATENESS
        + ", {change} included"
    ),
    "TIDE_GROW_SLOWER": Reason(
        "the same micro-batches take {slower:.1f} times as long as before, so {current} slots can process only "
        "{capacity:rate} records/s, of which {headroom:.0%} is kept free; up to {demand:rate}/s are expected and {lag} "
        "are waiting: " + LATENESS + ", {change} included",
        "if nobody has changed the job, look at its sink, the size of its records, and what else runs on its machines",
    ),
    "TIDE_GROW_EARLY": Reason(
        "{finished} of the {tasks} tasks of the running micro-batch have finished, and show that {current} slots can "
        "process at most {capacity:rate} records/s; up to {demand:rate}/s are expected and {lag} are waiting: "
        + LATENESS
    ),
    "TIDE_GROW_PRIOR": Reason(
        "up to {demand:rate} records/s are expected and {lag} are waiting; the job has shown little yet, but by its "
        "prior (from {jobs}) {current} slots can process {capacity:rate}/s: " + LATENESS + ", {change} included"
    ),
    "TIDE_SHRINK": Reason(
        "at most {demand:rate} records/s are expected to last, and {size} slots can process {capacity_then:rate}/s; "
        "that size has been enough for {enough:.0f} s and would have saved {wasted:.0f} slot-seconds, and {change} "
        "costs {price:.0f}"
    ),
    "TIDE_SHRINK_BRIEFLY": Reason(
        "with {size} slots the job can process {capacity_then:rate} records/s and is on time for {lasts:.0f} s, "
        "although {demand:rate}/s are expected; that size has been enough for {enough:.0f} s and would have saved "
        "{wasted:.0f} slot-seconds, and {change} costs {price:.0f}"
    ),
    "TIDE_HOLD": Reason(
        "up to {demand:rate} records/s are expected, {current} slots can process {capacity:rate}/s, "
        "and no other size is worth {change}"
    ),
    "TIDE_HOLD_TRIGGER": Reason(
        "the trigger interval is {trigger:.0f} s, so no size can meet the lag objective of {objective:.0f} s, and one "
        "of {reachable:.0f} s is planned for; up to {demand:rate} records/s are expected, {current} slots can process "
        "{capacity:rate}/s, and no other size is worth {change}",
        "set `lag_objective_seconds` to at least twice the trigger interval, or give the job a shorter one",
    ),
    "TIDE_HOLD_OVERHEAD": Reason(
        "a micro-batch lasts {overhead:.1f} s besides the work on its records, so no size can meet the lag objective "
        "of {objective:.0f} s, and one of {reachable:.0f} s is planned for; up to {demand:rate} records/s are "
        "expected, {current} slots can process {capacity:rate}/s, and no other size is worth {change}",
        "set `lag_objective_seconds` to at least four times that, or find out what takes so long, such as a sink that "
        "rewrites its tables",
    ),
    "TIDE_CONFIRMING": Reason(
        "{size} slots would be better for {demand:rate} records/s, but there is time for one more measurement, "
        "at a cost of {waiting:.0f} s of lateness"
    ),
    "TIDE_OUTLIER": Reason(
        "{size} slots would be better for {demand:rate} records/s, but the newest rate is so far from those before "
        "that it is measured once more"
    ),
    "TIDE_PATIENCE": Reason(
        "{size} slots have been enough for {enough:.0f} s and would have saved {wasted:.0f} slot-seconds; "
        "{change} pays off at {price:.0f}"
    ),
}
