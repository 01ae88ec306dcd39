"""`console`: the fleet in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli.connect import Bootstrap, Prefix, connect
from tidegate.cli.problems import Problem
from tidegate.runtime.extras import FROM_THE_WHEEL, needs
from tidegate.terminal import stdout


def console(
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on.", show_default="127.0.0.1, this machine only")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port to listen on.", show_default="8090")] = None,
    hours: Annotated[
        float | None, typer.Option("--hours", min=0.01, help="How far back to read the topics.", show_default="3")
    ] = None,
    bootstrap_servers: Bootstrap = None,
    topic_prefix: Prefix = None,
) -> None:
    """Show all jobs in a browser, live.

    It has timelines, decisions with their reasons, pools, and what-if.
    Prints the address, and a token for pausing, resuming and scaling jobs. To give operators tokens of their own, set
    TIDEGATE_CONSOLE_OPERATORS to JSON such as {"ada": "at-least-16-characters"}. Their names are recorded with what
    they do.

    Example:  tidegate console --port 8090
    """
    with needs("tidegate", "console", FROM_THE_WHEEL):
        from tidegate.console.server import serve  # noqa: PLC0415  (its packages come with another extra)
        from tidegate.console.settings import ConsoleSettings  # noqa: PLC0415
    given = {"console_host": host, "console_port": port, "console_history_hours": hours}
    known = connect(bootstrap_servers, topic_prefix).model_dump(exclude_unset=True)
    settings = ConsoleSettings(**known | {name: value for name, value in given.items() if value is not None})
    out = stdout()

    def say(line: str) -> None:
        out.print(line, soft_wrap=True)

    try:
        serve(settings, say)
    except OSError as error:
        if error.filename is not None or isinstance(error, ConnectionError):
            raise
        raise Problem(
            f"cannot listen on {settings.console_host}:{settings.console_port}: {error.strerror}", "choose --port"
        ) from None
