"""A simulated job that options describe, because there is no past to fit it to: for `simulate` and `backtest`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from tidegate.cli.problems import Problem
from tidegate.twin.model import JobModel, StageModel

RecordCost = Annotated[
    float,
    typer.Option(
        "--record-cost-ms", min=0.0001, max=3_600_000.0, help="Without a recording: slot time per record, in ms."
    ),
]
Overhead = Annotated[
    float,
    typer.Option("--overhead", min=0.0, max=86_400.0, help="Without a recording: fixed seconds per micro-batch."),
]
Trigger = Annotated[
    float,
    typer.Option("--trigger", min=0.0, max=86_400.0, help="Without a recording: trigger interval in seconds."),
]
Partitions = Annotated[
    int, typer.Option("--partitions", min=1, max=100_000, help="Without a recording: partitions of the source.")
]

FITTED = ("record_cost_ms", "overhead", "partitions")
"""Options whose figures a recording always tells. It may leave open the trigger interval, if few batches waited."""


def refuse_given(context: typer.Context, names: Iterable[str], why: str, hint: str) -> None:
    """Raise `Problem` if one of these options was given."""
    for name in names:
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE":
            raise Problem(f"--{name.replace('_', '-')}: {why}", hint)


def described(job_id: str, record_cost_ms: float, overhead: float, trigger: float) -> JobModel:
    """Return the model of a job with one source and one stage."""
    return JobModel(
        job_id=job_id,
        sources=("source",),
        stages=(StageModel("batch", record_cost_ms / 1000),),
        overhead_seconds=overhead,
        trigger_interval_seconds=trigger,
    )
