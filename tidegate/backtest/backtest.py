"""The backtest of one job: fit the twin, run the engine on it, search the options that matter, propose a job file."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tidegate.backtest.delays import window_seconds
from tidegate.backtest.fitting import Fit, fit
from tidegate.backtest.jobfile import UNTOLD, Told, job_id_of, rendered, told_by
from tidegate.backtest.logs import Run
from tidegate.backtest.past import Past, past_of
from tidegate.backtest.search import Found
from tidegate.backtest.trial import Replica, Result, part, result_of
from tidegate.events.job import Application, JobSpec, Mode, Scaling, Tariff
from tidegate.events.way import Way
from tidegate.lab.jobs import batch_bound, sizes_of
from tidegate.lab.simulate import JobRecording
from tidegate.lab.tunings import DEFAULTS, Tuning
from tidegate.twin.load import Load
from tidegate.twin.model import JobModel
from tidegate.twin.schedule import demand
from tidegate.words import size

HEADROOM = 1.5
"""The largest size proposed keeps up with this multiple of the highest load."""
PEAK_SECONDS = 60.0
TRIGGERS = 3
"""A lag objective is at least so many trigger intervals: a record waits for one, and is worked on in the next."""
OBJECTIVE_SECONDS = 60.0

Search = Callable[[Replica, float, float], Found]
"""Searches a replica's options on the first seconds; the last argument is the window of the delays."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What the user chooses."""

    objective_seconds: float | None = None
    max_slots: int | None = None
    policy: str = "tide"
    prices: Tariff | None = None
    held_out: float = 0.3


@dataclass(frozen=True, slots=True)
class Side:
    """One of the things compared: what was, the defaults, or the options found."""

    label: str
    whole: Result
    kept: Result
    """On the part that was kept back."""
    recording: JobRecording
    """Its decisions are those with a command: all would fill the memory."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """The backtest of one job."""

    name: str
    source: str
    """What it is based on, in words."""
    replica: Replica
    split: float
    """Second at which the part kept back begins."""
    sides: tuple[Side, ...]
    """What was, the defaults and, if they are better there too, the options found."""
    found: Found
    accepted: bool
    """Whether the options found are cheaper than the defaults on the part kept back, too."""
    rejected_cost: float | None
    """What the options found cost there if they are not."""
    spec: JobSpec
    """As proposed."""
    job_file: str
    fit: Fit | None
    """None for a drawn load, of which nothing was recorded."""

    @property
    def proposed(self) -> Side:
        """What is proposed: the options found, or the defaults."""
        return self.sides[-1]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A job that does not exist yet, and its load."""

    name: str
    load: Load
    model: JobModel
    shares: tuple[float, ...]
    spec: JobSpec | None
    """None: not written yet."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is backtested."""

    name: str
    source: str
    replica: Replica
    split: float
    window: float
    was: tuple[str, JobRecording]
    """What it is compared with: its label and its recording."""
    told: Told | None = None
    fit: Fit | None = None


def backtest_runs(
    name: str, runs: Sequence[Run], choices: Choices, search: Search, job_id: str | None = None
) -> JobReport:
    """Backtest a job by its runs, oldest first; its id is by default that of its name. Raises `CannotBacktest`."""
    past = past_of(name, runs)
    fitted = fit(past, choices.held_out)
    told = told_by(past.runs[-1])
    told = replace(told, job_id=job_id or told.job_id)
    load = past.load()
    most = past.slots.most
    seen = _Seen(fitted.model, fitted.shares, load, past.slots.size(past.end) or most, most)
    spec = _spec(told, choices, seen)
    replica = Replica(
        model=fitted.model.as_specified(spec),
        shares=fitted.shares,
        load=load,
        spec=spec,
        size=_allowed(past.slots.size(past.begin), spec),
        lag_records=round(past.lag(past.begin)),
        epoch=math.floor(past.begin),
    )
    subject = _Subject(
        name=name,
        source=_in_words(past),
        replica=replica,
        split=fitted.split - past.begin,
        window=window_seconds([batch.seconds for batch in past.batches()]),
        was=("what was", past.recording(past.begin, past.begin + load.seconds)),
        told=told,
        fit=fitted,
    )
    return _report(subject, search)


def backtest_load(drawn: Drawn, choices: Choices, search: Search) -> JobReport:
    """Backtest a job under a drawn load, next to the constant size that keeps up with it."""
    model, shares, load, spec = drawn.model, drawn.shares, drawn.load, drawn.spec
    if spec is None:
        told = Told(job_id_of(drawn.name), (UNTOLD,))
        spec = _spec(told, choices, _Seen(model, shares, load, 1, 1))
    spec = spec.model_copy(update={"scaling": spec.scaling.model_copy(update={"mode": Mode.ACTIVE})})
    bound = batch_bound(spec)
    constant = demand(model, shares, _peak(load), bound, sizes_of(spec))
    replica = Replica(
        model=model.as_specified(spec),
        shares=shares,
        load=load,
        spec=spec,
        size=demand(model, shares, load.rate(0.0), bound, sizes_of(spec)),
        lag_records=0,
        epoch=0,
    )
    subject = _Subject(
        name=drawn.name,
        source=f"a drawn load of {load.seconds / 3600:.1f} h",
        replica=replica,
        split=(1.0 - choices.held_out) * load.seconds,
        window=window_seconds([model.trigger_interval_seconds]),
        was=(f"always {size(constant)}", replica.constant(constant)),
    )
    return _report(subject, search)


def _report(subject: _Subject, search: Search) -> JobReport:
    replica, split, window = subject.replica, subject.split, subject.window

    def side(label: str, recording: JobRecording) -> Side:
        kept = part(recording, split, replica.load.seconds, replica.epoch)
        results = result_of(recording, replica, window), result_of(kept, replica, window)
        changes = [each for each in recording.decisions if each.command is not None]
        return Side(label, *results, replace(recording, decisions=changes))

    policy = replica.spec.scaling.policy
    sides = [side(*subject.was), side(f"{policy}, defaults", replica.run(DEFAULTS))]
    found = search(replica, split, window)
    accepted, rejected = False, None
    if found.tuning != DEFAULTS:
        tuned = side(f"{policy}, options found", replica.run(found.tuning))
        accepted = tuned.kept.cost < sides[-1].kept.cost
        if accepted:
            sides.append(tuned)
        else:
            rejected = tuned.kept.cost
    spec = _proposed(replica.spec, found.tuning if accepted else DEFAULTS)
    return JobReport(
        name=subject.name,
        source=subject.source,
        replica=replica,
        split=split,
        sides=tuple(sides),
        found=found,
        accepted=accepted,
        rejected_cost=rejected,
        spec=spec,
        job_file=rendered(spec, subject.told, _why(from_log=subject.told is not None)),
        fit=subject.fit,
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a spec's sizes follow from."""

    model: JobModel
    shares: tuple[float, ...]
    load: Load
    last: int
    """The size at the end of the past."""
    most: int
    """The largest size of the past."""


def _spec(told: Told, choices: Choices, seen: _Seen) -> JobSpec:
    """Return the job's spec; what the log does not tell is `UNTOLD`."""
    backend = told.backend
    cores = told.executor_cores
    objective = choices.objective_seconds or max(OBJECTIVE_SECONDS, TRIGGERS * seen.model.trigger_interval_seconds)
    most = choices.max_slots or math.ceil(max(seen.most, _largest(seen, objective, cores)) / cores) * cores
    most = max(cores, most // cores * cores)
    logs = told.event_log_dir
    extra: dict[str, object] = {}
    if backend == "yarn":
        extra["rest_url"] = f"http://{UNTOLD}"
    elif backend == "kubernetes":
        extra["kubernetes"] = {"namespace": UNTOLD, "image": UNTOLD, **told.pods}
    elif told.master and told.master.startswith(("local", "spark://")):
        extra["master"] = told.master
    return JobSpec(
        job_id=told.job_id,
        sources=told.topics,
        application=Application(
            backend=backend,
            script=told.script or UNTOLD,
            args=told.args,
            jars=told.jars,
            py_files=told.py_files,
            conf=dict(told.conf),
            rescale=(Way.RESTART,) if backend == "local" else None,
            checkpoint_location=told.checkpoint or UNTOLD,
            event_log_dir=logs or UNTOLD,
            control_dir=_control_dir(told),
            executor_cores=cores,
            executor_memory_mb=told.executor_memory_mb,
            driver_memory_mb=told.driver_memory_mb,
            **extra,  # type: ignore[arg-type]
        ),
        scaling=Scaling(
            policy=choices.policy,
            min_parallelism=cores,
            max_parallelism=most,
            initial_parallelism=min(most, max(cores, seen.last // cores * cores)),
            lag_objective_seconds=objective,
            prices=choices.prices,
        ),
    )


def _control_dir(told: Told) -> str | None:
    """Return a folder next to that of the event logs; None where the control files need none."""
    if told.backend == "kubernetes":
        return None
    logs = told.event_log_dir
    return f"{logs.rstrip('/').rpartition('/')[0]}/tidegate-control" if logs else f"{UNTOLD}/control"


def _largest(seen: _Seen, objective: float, cores: int) -> int:
    """Return the smallest size that keeps up with a load well above the highest; at most a slot per partition."""
    sizes = range(cores, math.ceil(len(seen.shares) / cores) * cores + 1, cores)
    return demand(seen.model, seen.shares, HEADROOM * _peak(seen.load), objective / 2, tuple(sizes))


def _peak(load: Load) -> float:
    """Return the highest mean arrivals of a minute, records/s."""
    steps = max(1, round(PEAK_SECONDS / load.step_seconds))
    seconds = min(load.seconds, steps * load.step_seconds)
    starts = [place * load.step_seconds for place in range(max(1, len(load.rates) - steps + 1))]
    return max((load.arrived(start + seconds) - load.arrived(start)) / seconds for start in starts)


def _allowed(size: int, spec: JobSpec) -> int:
    """Return the nearest size that the spec allows."""
    return min(sizes_of(spec), key=lambda allowed: abs(allowed - size))


def _proposed(spec: JobSpec, tuning: Tuning) -> JobSpec:
    """Return the spec to propose: with the options found, and without acting yet."""
    options = {**spec.scaling.policy_options, **tuning.options}
    guards = {**spec.scaling.guards, **{name: dict(raw) for name, raw in tuning.guards.items()}}
    scaling = {"mode": Mode.ADVISE, "policy_options": options, "guards": guards}
    return spec.model_copy(update={"scaling": spec.scaling.model_copy(update=scaling)})


def _why(*, from_log: bool) -> dict[str, str]:
    """Return comments for fields of the job file."""
    why = {
        "mode": "only decides and explains; active: Tidegate changes the size",
        "max_parallelism": f"keeps up with {HEADROOM:g} times the highest load; fewer if the cluster has fewer slots",
        "lag_objective_seconds": "no record is to wait longer until it is committed",
    }
    if from_log:
        why["initial_parallelism"] = "as it was last"
        why["control_dir"] = "a new folder, for Tidegate and the drivers"
        why["executor_memory_mb"] = "as in the log, and at least what Spark accepts"
    return why


def _in_words(past: Past) -> str:
    runs = f"{len(past.runs)} run" + ("" if len(past.runs) == 1 else "s")
    return f"{runs}, {past.seconds / 3600:.2f} h, {sum(1 for _ in past.batches()):,} micro-batches"
