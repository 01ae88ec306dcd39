"""`up`, `down`, `status`: the embedded stack."""

from __future__ import annotations

import re
from shlex import quote
from typing import Annotated

import typer

from tidegate.cli.connect import StackDir, stack_dir
from tidegate.cli.problems import NO, Problem
from tidegate.client import ClientSettings
from tidegate.runtime.topics import ensure_topics
from tidegate.stack import StackInfo
from tidegate.stack import down as stop_stack
from tidegate.stack import status as stack_status
from tidegate.stack import up as start_stack
from tidegate.stack.stack import DEFAULT_WORK_DIR
from tidegate.terminal import stderr, stdout, styled, table

_MEMORY = re.compile(r"[1-9][0-9]*[mgt]b?", re.IGNORECASE)
"""As Spark's worker takes it."""


def _memory(text: str) -> str:
    if not _MEMORY.fullmatch(text):
        raise Problem(f"--memory: {text!r} is no amount of memory", "write it as 8g or 6144m")
    return text


def up(
    work_dir: StackDir = None,
    slots: Annotated[
        int, typer.Option("--slots", min=1, help="Task slots of the Spark worker; may exceed the cores.")
    ] = 12,
    memory: Annotated[
        str, typer.Option("--memory", callback=_memory, help="Memory that the Spark worker offers, such as 6144m.")
    ] = "8g",
    partitions: Annotated[int, typer.Option("--partitions", min=1, help="Partitions of Tidegate's topics.")] = 8,
) -> None:
    """Start Kafka, Redis and Spark on this machine.

    This embedded stack keeps its files in one folder, listens on free loopback ports, and has Tidegate's topics. It
    does not include Tidegate's services; `python -m demo --keep` in the source tree starts those as well.

    The stack runs until `tidegate down`. Ctrl-C during the start stops it again.

    Example:  tidegate up && tidegate doctor
    """
    folder = work_dir or DEFAULT_WORK_DIR
    progress = stderr()
    info = start_stack(folder, worker_slots=slots, worker_memory=memory, on_progress=progress.print)
    created = ensure_topics(ClientSettings(bootstrap_servers=info.bootstrap_servers), partitions=partitions)
    progress.print(f"created {len(created)} topics" if created else "the topics already exist")
    show_stack(info)
    again = "" if work_dir is None else f" --work-dir {quote(str(folder))}"
    console = stdout()
    for line in ("", *next_steps(info).splitlines(), f"Stop with: tidegate down{again}"):
        console.print(line, soft_wrap=True)  # to be pasted


def next_steps(info: StackInfo) -> str:
    """Return how to use a stack that has just started, as lines to paste."""
    password = quote(str(info.redis_password_file))
    redis = f'TIDEGATE_REDIS_URL={info.redis_url} TIDEGATE_REDIS_PASSWORD="$(cat {password})" '
    starts = "\n".join(
        f"  TIDEGATE_BOOTSTRAP_SERVERS={info.bootstrap_servers} {needs}python -m services.{service}"
        for service, needs in (("collector", ""), ("decider", redis), ("actuator", redis))
    )
    return (
        "Next: `tidegate doctor`. Tidegate's services run from a checkout, each in a shell of its own:\n"
        f"{starts}\n"
        "Then `tidegate apply job.yaml`, with the addresses above in the job file."
    )


def show_stack(info: StackInfo) -> None:
    """Print the addresses and folders of a running stack."""
    rows: list[list[object]] = [
        ["Kafka", info.bootstrap_servers],
        ["Redis", f"{info.redis_url}, password in {info.redis_password_file}"],
        ["Spark master", f"{info.spark_master}, REST {info.spark_rest}, web {info.spark_ui}"],
        ["slots", f"{info.worker_slots}, {info.worker_memory}"],
        ["event logs", info.event_log_dir],
        ["logs", info.log_dir],
    ]
    stdout().print(table("", ["what", "where"], rows))


def down(
    work_dir: StackDir = None,
    purge: Annotated[bool, typer.Option("--purge", help="Delete its data and logs as well.")] = False,
) -> None:
    """Stop what `tidegate up` started.

    That includes all drivers and executors. Data and logs are kept unless --purge is given.

    Example:  tidegate down --purge
    """
    console = stderr()
    found = stop_stack(stack_dir(work_dir), purge=purge, wait_seconds=30, on_progress=console.print)
    stdout().print("stopped" if found else f"no stack is running in {stack_dir(work_dir)}")


def status(work_dir: StackDir = None) -> None:
    """Show the state of the embedded stack.

    The exit code is 1 if a component is not running or there is no stack.

    Example:  tidegate status
    """
    components = stack_status(stack_dir(work_dir))
    if not components:
        stdout().print(f"no stack is running in {stack_dir(work_dir)}; `tidegate up` starts one")
        raise typer.Exit(NO)
    rows: list[list[object]] = [[c.name, styled(c.state), c.pid or "", c.endpoint, c.log] for c in components]
    stdout().print(table("", ["component", "state", "pid", "where", "log"], rows, right=["pid"]))
    if not all(c.ok for c in components):
        raise typer.Exit(NO)
