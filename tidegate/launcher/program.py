"""What a driver runs: the user's program, a PySpark script (`script.py`) or a main class of a jar (`main_class.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tidegate.launcher.run import Launch


class Program(Protocol):
    """A program whose queries start only as its launch allows."""

    @property
    def hands_over(self) -> bool:
        """Whether its queries can be rehearsed by a second driver, and paused by a first one."""

    @property
    def waits(self) -> bool:
        """Whether its queries wait until another driver hands over."""

    def context(self) -> Any | None:
        """Return the SparkContext of its application; None while there is none."""

    def run(self, launch: Launch) -> None:
        """Run it to its end. If it fails, tell the launch why, and raise."""

    def new_queries(self) -> list[Any]:
        """Return the queries that have started since the last call, unless the program has told the launch of them."""

    def prepare_to_stop(self) -> None:
        """Keep the program from ending the driver while its queries end; wait for starts that are under way."""

    def stopped(self) -> None:
        """Let the program end the driver again: its queries have ended."""

    def end(self, code: int) -> None:
        """End the driver with an exit code, whatever the program does."""
