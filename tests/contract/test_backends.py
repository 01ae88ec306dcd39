"""What the actuator relies on, whatever the cluster: every backend passes these tests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from services.actuator.backends import (
    LAUNCHER,
    LOG_BYTES,
    BackendRefused,
    BackendUnreachable,
    DriverState,
    Submission,
)
from tests.support.clusters import SAID, Cluster, cluster_of
from tidegate.launcher.control.files import Token
from tidegate.runtime.poll import wait_until

RUN = Token(7, 2)


@pytest.fixture(params=["fake", "local", "standalone", "kubernetes", "spark operator", "yarn"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster on which nothing runs yet."""
    with cluster_of(request.param, tmp_path, monkeypatch) as cluster:
        yield cluster


class TestBackend:
    """The contract."""

    def test_a_driver_is_alive_until_it_ends(self, cluster: Cluster) -> None:
        """From the moment `submit` returns, the driver counts; once it has ended, it never does again."""
        driver = cluster.backend.submit(_submission(cluster))
        assert cluster.backend.state(cluster.spec, driver).alive
        assert wait_until(lambda: driver in cluster.backend.live_drivers(cluster.spec), 30, 0.05)
        cluster.end(driver)
        assert wait_until(lambda: not cluster.backend.state(cluster.spec, driver).alive, 30, 0.05)
        assert driver not in cluster.backend.live_drivers(cluster.spec)

    def test_a_driver_carries_its_key(self, cluster: Cluster) -> None:
        """A driver knows job and run, so it can say who it is.

        A run that is submitted twice has two drivers, or one where the cluster takes the key for the driver's name.
        """
        drivers = {cluster.backend.submit(_submission(cluster)) for _ in range(2)}
        assert len(drivers) == (1 if cluster.names_drivers else 2)
        assert cluster.backend.submit(_submission(cluster, Token(7, 3))) not in drivers
        for driver in drivers:
            assert wait_until(partial(_was_launched, cluster, driver), 30, 0.05)
            words = cluster.arguments(driver)
            launched = words[_launcher(words) :]
            key = ("--job-id", cluster.spec.job_id, "--epoch", "7", "--run", "2", "--parallelism", "2")
            assert " ".join(key) in " ".join(launched)

    def test_a_driver_is_killed_and_no_other(self, cluster: Cluster) -> None:
        """A kill ends one driver. It may come twice, or too late, or for a driver that nobody knows."""
        driver, other = (cluster.backend.submit(_submission(cluster, Token(7, run))) for run in (1, 2))
        cluster.backend.kill(cluster.spec, driver)
        assert wait_until(lambda: cluster.backend.state(cluster.spec, driver) is DriverState.ENDED, 30, 0.05)
        for late in (driver, "driver-0-0"):
            cluster.backend.kill(cluster.spec, late)
        assert cluster.backend.state(cluster.spec, other).alive

    def test_a_driver_that_nobody_knows_is_absent(self, cluster: Cluster) -> None:
        """It is neither alive nor said to have ended."""
        assert cluster.backend.state(cluster.spec, "driver-0-0") is DriverState.ABSENT

    def test_who_else_runs_is_seen(self, cluster: Cluster) -> None:
        """An application with the job's name that Tidegate did not start is listed for as long as it runs (I4)."""
        assert cluster.spec.job_id not in cluster.backend.applications(cluster.spec).values()
        foreign = cluster.start_foreign(cluster.spec.job_id)
        assert cluster.backend.applications(cluster.spec)[foreign] == cluster.spec.job_id
        cluster.end_foreign(foreign)
        assert foreign not in cluster.backend.applications(cluster.spec)

    def test_slots_are_those_granted_or_unknown(self, cluster: Cluster) -> None:
        """Unknown is never zero."""
        assert cluster.backend.granted(cluster.spec, "app-0") is None
        slots = cluster.backend.granted(cluster.spec, cluster.start_foreign(cluster.spec.job_id))
        assert slots is None or slots > 0

    def test_the_end_of_the_log_is_bounded(self, cluster: Cluster) -> None:
        """It has what the driver printed, where the cluster keeps that."""
        driver = cluster.backend.submit(_submission(cluster))
        tail = wait_until(lambda: cluster.backend.log_tail(cluster.spec, driver, RUN), 1, 0.05) or ""
        assert not tail or SAID in tail
        assert len(tail) <= 2 * LOG_BYTES + 1

    def test_a_refusal_is_no_silence(self, cluster: Cluster) -> None:
        """If the cluster says no, nothing was started."""
        cluster.refuse()
        with pytest.raises(BackendRefused):
            cluster.backend.submit(_submission(cluster))
        assert cluster.backend.live_drivers(cluster.spec) == frozenset()

    def test_silence_is_no_answer(self, cluster: Cluster) -> None:
        """A cluster that does not answer is unreachable: nothing is absent, ended or killed because of that (I4)."""
        driver = cluster.backend.submit(_submission(cluster))
        cluster.be_silent()
        with pytest.raises(BackendUnreachable):
            cluster.backend.submit(_submission(cluster))
        with pytest.raises(BackendUnreachable):
            cluster.backend.state(cluster.spec, driver)
        with pytest.raises(BackendUnreachable):
            cluster.backend.kill(cluster.spec, driver)
        with pytest.raises(BackendUnreachable):
            cluster.backend.live_drivers(cluster.spec)
        with pytest.raises(BackendUnreachable):
            cluster.backend.applications(cluster.spec)
        with pytest.raises(BackendUnreachable):
            cluster.backend.granted(cluster.spec, "app-0")


def _was_launched(cluster: Cluster, driver: str) -> bool:
    return _launcher(cluster.arguments(driver)) >= 0


def _launcher(words: list[str]) -> int:
    """Return the place of the launcher among the arguments of `spark-submit`; -1 if it is not there."""
    ends = f"/{LAUNCHER.parent.parent.name}/{LAUNCHER.parent.name}/{LAUNCHER.name}"
    return next((place for place, word in enumerate(words) if word.endswith(ends)), -1)


def _submission(cluster: Cluster, token: Token = RUN) -> Submission:
    return Submission(cluster.spec, token, 2)
