"""The world of an actuator: a simulated cluster, clock and results topic, for commands carried out without waiting."""

# ruff: noqa: D102, ARG002 - FakeWorld implements ports, which are documented where they are declared

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from bench.orders import OneActuator
from services.actuator.backends import DriverState
from services.actuator.execute import CommandRunner
from tests.support.command_log import command_log
from tests.support.events import START, command, job, with_application
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_executors import FakeSpark
from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult, Phase
from tidegate.events.way import Way
from tidegate.launcher.run.sizing import SizeKeeper
from tidegate.runtime.spans import Trace, no_trace


class Died(BaseException):
    """The actuator's process dies here."""


@dataclass
class FakeWorld(FakeCluster, OneActuator):
    """Clock, fence, cluster, checkpoint and results topic; `tick` is what drivers do while the actuator waits."""

    topic: list[ActionResult] = field(default_factory=list)
    die_at: tuple[str, Phase] | None = None
    works: Callable[[int], bool] = lambda _size: True
    obeys: bool = True
    """Whether drivers stop when asked."""
    query_id: str = "q"
    on_result: Callable[[ActionResult], object] = lambda _result: None
    wanted: dict[str, Any] = field(default_factory=dict)
    """What the spec says besides its defaults."""
    resizable: bool = False
    """Whether drivers are started so that their executors can be changed."""
    deaf: bool = False
    """Whether drivers ignore orders for a size."""
    keepers: dict[str, SizeKeeper] = field(default_factory=dict)
    rescale: tuple[Way, ...] | None = None
    trace: Trace = no_trace

    @property
    def spec(self) -> JobSpec:
        return with_application(
            job("rates", **self.wanted),
            checkpoint_location=str(self.folder / "ck"),
            control_dir=str(self.folder / "control"),
            stop_deadline_seconds=20.0,
            start_deadline_seconds=60.0,
            rescale=self.rescale,
        )

    # the clock
    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    # what drivers do
    def tick(self) -> None:
        for driver in self.alive():
            token, fence, marker = self.tokens[driver], self.control.fence(), self.control.stop_marker()
            if (marker and marker[0] > token and self.obeys) or (fence and fence[0] > token and self.is_new(driver)):
                self.drivers[driver] = DriverState.ENDED
            elif self.is_new(driver):
                if self.seconds - self.asked_at[driver] >= 5:
                    facts = {"submission_id": driver, "application_id": f"app-{driver}", "epoch": token.epoch}
                    limits = {"max_parallelism": 8, "executor_cores": 1} if self.resizable else {}
                    self.control.write_running(token, {**facts, "run": token.run, **limits})
                    self._begin(driver)
            else:
                if self.works(self.sizes[driver]):
                    self.commit()
                self.cluster.tick()
                if not self.deaf:
                    self.keepers[driver].look(self.tokens[driver])

    def _begin(self, driver: str) -> None:
        """Start the executors of a driver, and what holds them at the ordered number."""
        spark = self.cluster = FakeSpark(application_id=f"app-{driver}", target=self.sizes[driver])
        stopping = threading.Event()
        self.keepers[driver] = SizeKeeper(self.control, lambda: spark, list, stopping, lambda: self.seconds)

    def commit(self) -> None:
        checkpoint = self.folder / "ck"
        for name in ("offsets", "commits"):
            (checkpoint / name).mkdir(parents=True, exist_ok=True)
            batch = len(os.listdir(checkpoint / name))  # noqa: PTH208 - a path of each of thousands takes seconds
            (checkpoint / name / str(batch)).write_text("v1")
        (checkpoint / "metadata").write_text(json.dumps({"id": self.query_id}))

    def goes_silent(self, *, at: Phase, seconds: float) -> None:
        """Have the cluster not answer for a while from the result of a phase on."""
        self._when(at, None, lambda: setattr(self, "down_until", self.seconds + seconds))

    def driver_ends(self, *, at: Phase, driver: str, attempt: int | None = None) -> None:
        """Have a driver end as the result of a phase is published."""
        self._when(at, attempt, lambda: self.drivers.update({driver: DriverState.ENDED}))

    def _when(self, phase: Phase, attempt: int | None, then: Callable[[], object]) -> None:
        def on_result(result: ActionResult) -> None:
            if result.phase is phase and attempt in {None, result.attempt}:
                then()

        self.on_result = on_result

    # the actuator
    def publish(self, result: ActionResult, trace_id: str | None) -> None:
        if self.die_at == ("before", result.phase):
            self.die_at = None
            raise Died
        self.topic.append(result)
        self.on_result(result)
        if self.die_at == ("after", result.phase):
            self.die_at = None
            raise Died

    def carry(self, of: ScalingCommand, *, owner: str = "a", spec: JobSpec | str | None = "own") -> Phase | None:
        """Carry out a command, as an actuator that has just read the results topic."""
        runner = CommandRunner(
            clock=self,
            log=command_log(ActionResult.model_validate_json(r.model_dump_json()) for r in self.topic),
            fence=self,
            backends={"standalone": self},
            publish=self.publish,
            trace=self.trace,
            owner=owner,
        )
        return runner.run(of, self.spec if isinstance(spec, str) else spec, Waiting(self))

    def phases(self, of: str = "c") -> list[str]:
        return [r.phase.value for r in self.topic if r.command_id == of]

    def start(self, size: int = 2) -> None:
        assert self.carry(command(CommandKind.START, to=size, epoch=1, command_id="first")) is Phase.VERIFIED


class Waiting(threading.Event):
    """A cancellation that never comes; whoever waits for it lets the world move on."""

    def __init__(self, world: FakeWorld) -> None:
        super().__init__()
        self._world = world

    def wait(self, timeout: float | None = None) -> bool:
        self._world.seconds += max(timeout or 0.0, 0.5)
        self._world.tick()
        return self.is_set()
