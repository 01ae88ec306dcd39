"""A decider that carries out a plan, for simulations whose snapshots matter."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from tidegate.events.command import CommandKind, ScalingCommand
from tidegate.events.job import JobSpec
from tidegate.events.result import ActionResult
from tidegate.events.snapshot import ClusterState, MetricSnapshot
from tidegate.events.wire import identity
from tidegate.lab.simulate import Decided, Move


class PlanDecider:
    """Executes a plan made in advance, whatever is measured."""

    def __init__(self, moves: Sequence[Move], epoch: float) -> None:
        self._moves = sorted(moves)
        self._epoch = epoch

    def decide(self, spec: JobSpec, snapshot: MetricSnapshot, now: float, seen: Sequence[ActionResult]) -> Decided:
        """Order the newest move that is due, if the job can take a command."""
        del seen
        wanted = None
        while self._moves and self._moves[0][0] <= now - self._epoch + 1e-6:
            wanted = self._moves.pop(0)
        if wanted is None:
            return Decided(None, None)
        size = snapshot.slots_granted or 0
        if snapshot.state is not ClusterState.RUNNING:
            self._moves.insert(0, wanted)
            return Decided(None, None)
        if size == wanted[1]:
            return Decided(None, None)
        at = datetime.fromtimestamp(now, UTC)
        command = ScalingCommand(
            command_id=identity("oracle", spec.job_id, snapshot.sequence),
            job_id=spec.job_id,
            pipeline_id=spec.pipeline_id,
            snapshot_id=snapshot.snapshot_id,
            spec_version=spec.version,
            kind=CommandKind.RESCALE,
            from_parallelism=size,
            to_parallelism=wanted[1],
            way=spec.application.ways[0],
            epoch=snapshot.sequence,
            issued_at=at,
            expires_at=at + timedelta(seconds=spec.scaling.command_ttl_seconds),
            reason="planned by the oracle",
        )
        return Decided(None, command)
