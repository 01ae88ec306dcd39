"""What the programs of the lab share: options, and how a program refuses one."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from tidegate.events.way import ALL_WAYS

Ways = Annotated[
    str, typer.Option("--ways", help="The ways a job may change its size, in order of preference, comma-separated.")
]
EVERY_WAY = ",".join(ALL_WAYS)
Speed = Annotated[float, typer.Option("--speed", min=0.001, help="Play traces this many times faster.")]
Since = Annotated[float, typer.Option("--from", min=0.0, help="Start at this hour of each trace.")]
Processes = Annotated[
    int | None, typer.Option("--processes", min=1, help="Number of processes; default: one per core, at most 2.")
]


def refused(program: str, what: object) -> typer.Exit:
    """Say what is wrong with the command of a program; return the exit to raise."""
    Console(stderr=True).print(f"{program}: {what}", style="red", markup=False, soft_wrap=True)
    return typer.Exit(2)
