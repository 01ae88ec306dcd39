"""The lab's jobs: models with matching specs, and scenarios of one job and one load."""

from __future__ import annotations

from tidegate.events.job import Application, JobSpec, Scaling
from tidegate.events.way import ALL_WAYS, Way
from tidegate.lab.simulate import Scenario, TopicPlan
from tidegate.twin.load import Load
from tidegate.twin.model import InPlaceCosts, JobModel, RestartCosts, StageModel, State
from tidegate.twin.schedule import capacity, demand
from tidegate.twin.topic import skewed

SOURCE = "orders"
PARTITIONS = skewed(32, 1.1)
MAX_PARALLELISM = 16


def lab_model(job_id: str = "orders-enriched", ways: tuple[Way, ...] = ALL_WAYS) -> JobModel:
    """Return the job that all workloads run on: 2 ms per record, slightly sub-linear and skewed, 2 GB of state."""
    return JobModel(
        job_id=job_id,
        sources=(SOURCE,),
        stages=(StageModel("enrich", 0.0015), StageModel("aggregate", 0.0005, tasks=48, skew=1.2)),
        overhead_seconds=0.8,
        max_records_per_trigger=20_000,
        trigger_interval_seconds=5.0,
        contention=0.01,
        state=State(partitions=48, bytes_per_record=300.0, ttl_seconds=1800.0, initial_bytes=2e9),
        ways=ways,
        restart=RestartCosts(start_seconds=22.0, start_jitter_seconds=10.0, load_bytes_per_second=400e6),
        in_place=InPlaceCosts(register_seconds=3.0, register_jitter_seconds=11.0),
    )


def spec_for(model: JobModel, *, maximum: int = MAX_PARALLELISM) -> JobSpec:
    """Return a job spec that matches a model."""
    return JobSpec(
        job_id=model.job_id,
        pipeline_id=model.pipeline,
        pool_id=model.pool_id,
        sources=model.sources,
        sinks=(model.sink,) if model.sink else (),
        application=Application(
            script="job.py",
            checkpoint_location="checkpoint",
            event_log_dir="events",
            control_dir="control",
            rescale=model.ways,
        ),
        scaling=Scaling(max_parallelism=maximum),
    )


def batch_bound(spec: JobSpec) -> float:
    """Return how long a micro-batch may last, in seconds, within the lag objective.

    Just before a commit, the lag is the batch's own records and those that arrived meanwhile: two batches' worth.
    """
    return spec.scaling.lag_objective_seconds / 2


def sizes_of(spec: JobSpec) -> tuple[int, ...]:
    """Return the sizes a job may have."""
    cores = spec.application.executor_cores
    return tuple(range(spec.smallest_size, spec.scaling.max_parallelism + 1, cores))


def lab_peak(model: JobModel, spec: JobSpec) -> float:
    """Return the lab's peak load: the capacity of three quarters of the largest size."""
    size = max(1, spec.scaling.max_parallelism * 3 // 4)
    return 0.95 * capacity(model, PARTITIONS, size, batch_bound(spec))


def one_job(
    model: JobModel,
    spec: JobSpec,
    load: Load,
    *,
    shares: tuple[float, ...] = PARTITIONS,
    seconds: float | None = None,
    seed: int = 0,
) -> Scenario:
    """Return the scenario of a job alone in a large enough pool, starting at the right size for its load.

    The pool holds two runs of the largest size, as a handover needs.
    """
    start = demand(model, shares, load.rate(0.0), batch_bound(spec), sizes_of(spec))
    return Scenario(
        models=(model,),
        specs=(spec,),
        topics={model.sources[0]: TopicPlan(shares, load)},
        pools={model.pool_id: 2 * spec.scaling.max_parallelism},
        sizes={model.job_id: start},
        seconds=seconds or load.seconds,
        seed=seed,
    )


def lab_job(load: Load, *, ways: tuple[Way, ...] = ALL_WAYS, seed: int = 0) -> Scenario:
    """Return the scenario of the lab's job under a load, for scoring or training.

    The load is shifted by half an interval, so it changes between two snapshots, as it would outside a lab.
    """
    model = lab_model(ways=ways)
    spec = spec_for(model)
    late = round(spec.interval_seconds / 2 / load.step_seconds)
    rates = (load.rates[0],) * late + load.rates
    return one_job(model, spec, Load(rates[: len(load.rates)], load.step_seconds), seed=seed)
