"""Scenarios with a known right answer: DS2's word count, a grid of starts, a noisy sine, the worst sawtooth.

`word_count` is section 5.2 of DS2 (Kalavri et al., OSDI 2018): 1 M sentences a minute, FlatMap 100 k sentences and
Count 1 M words per minute and slot, 20 words per sentence, started at 1/1; 10 and 20 slots are right. `grid` follows
its table 4: six jobs whose right sizes are those of its Nexmark queries, each started at six sizes. The jobs scale
sub-linearly, so one linear step cannot be exact. In the word count, a FlatMap slot processes a twentieth more than
stated and a Count slot a tenth more: a job that only just keeps up would never clear the backlog from when it was too
small, and Count must also keep up while FlatMap clears its own.

Their jobs change size by restart, as DS2's do: the cases ask how few changes a policy needs.

These right sizes are DS2's: the smallest that keep up with the arrivals. A policy that also aims at a lag objective
uses more on purpose; `AIMS` holds the options that switch such aims off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from tidegate.events.result import Phase
from tidegate.events.way import Way
from tidegate.events.wire import Scalar
from tidegate.lab.jobs import batch_bound, lab_model, lab_peak, one_job, spec_for
from tidegate.lab.simulate import JobRecording, Scenario, TopicPlan
from tidegate.lab.tunings import Tuning
from tidegate.twin.load import Load
from tidegate.twin.model import JobModel, RestartCosts, StageModel
from tidegate.twin.schedule import capacity
from tidegate.twin.topic import even
from tidegate.twin.workloads import sawtooth, sine

RIGHT_SIZES = {"q1": 16, "q2": 14, "q3": 20, "q5": 16, "q8": 10, "q11": 28}
STARTS = (8, 12, 16, 20, 24, 28)
SECONDS = 2400.0
BY_RESTART = (Way.RESTART,)
WORD_COUNT_SIZES = {"flatmap": 10, "count": 20}

_QUICK: dict[str, dict[str, Scalar]] = {
    "stabilization": {"seconds": 0.0},
    "cooldown": {"up_seconds": 60.0, "down_seconds": 60.0},
}
AIMS: dict[str, Tuning] = {
    # DS2 has no lag objective, and no forecast whose errors it allows for.
    "tide": Tuning(
        {"headroom": 0.0, "confidence": 0.0, "catch_up": False, "horizon_seconds": 3600.0},
        _QUICK,
        constants={"tidegate.engine.tide.rollout.EXTRAPOLATION_MARGIN": 0.0},
    ),
    # No headroom, no catch-up, no delay.
    "flip271": Tuning(
        {
            "metrics_window_seconds": 180.0,
            "stabilization_interval_seconds": 30.0,
            "utilization_target": 1.0,
            "utilization_boundary": 0.0,
            "catch_up_duration_seconds": 0.0,
            "restart_time_seconds": 0.0,
            "scale_down_interval_seconds": 0.0,
            "scale_down_max_factor": 1.0,
            "observed_lag_threshold_seconds": 1e9,
        },
        _QUICK,
    ),
}
"""By policy: the options that give it DS2's aim, and guards that let it step as often."""


@dataclass(frozen=True, slots=True)
class ScenarioCase:
    """A scenario and the right size of each of its jobs."""

    name: str
    scenario: Scenario
    right: dict[str, int]


@dataclass(frozen=True, slots=True)
class ScenarioOutcome:
    """How a job reached its size."""

    start: int
    sizes: tuple[int, ...]
    """Sizes it was changed to, in order."""
    right: int

    @property
    def decisions(self) -> int:
        """Number of changes."""
        return len(self.sizes)

    @property
    def over(self) -> bool:
        """Whether it ever went above the right size from at or below it."""
        return any(before <= self.right < after for before, after in pairwise((self.start, *self.sizes)))


def word_count() -> ScenarioCase:
    """Return DS2's word count as two jobs linked by a topic."""
    cores = {
        "ways": BY_RESTART,
        "restart": RestartCosts(exit_seconds=2.0, start_seconds=15.0),
        "noise_share": 0.02,
        "overhead_seconds": 0.01,
    }
    flatmap = JobModel(
        job_id="flatmap",
        pipeline_id="word-count",
        sources=("sentences",),
        sink="words",
        output_ratio=20.0,
        stages=(StageModel("flatmap", 0.95 * 60 / 100_000),),
        max_records_per_trigger=4_000,
        **cores,  # type: ignore[arg-type]
    )
    count = JobModel(
        job_id="count",
        pipeline_id="word-count",
        sources=("words",),
        stages=(StageModel("count", 0.9 * 60 / 1_000_000),),
        max_records_per_trigger=80_000,
        **cores,  # type: ignore[arg-type]
    )
    return ScenarioCase(
        "word count",
        Scenario(
            models=(flatmap, count),
            specs=(spec_for(flatmap, maximum=40), spec_for(count, maximum=40)),
            topics={
                "sentences": TopicPlan(even(40), Load([1_000_000 / 60])),
                "words": TopicPlan(even(40)),
            },
            pools={"default": 80},
            sizes={"flatmap": 1, "count": 1},
            seconds=SECONDS,
        ),
        WORD_COUNT_SIZES,
    )


def grid() -> list[ScenarioCase]:
    """Return the 36 cases: six sub-linear jobs, each started at six sizes under a constant load."""
    cases = []
    for place, (name, right) in enumerate(RIGHT_SIZES.items()):
        model = JobModel(
            job_id=name,
            sources=("orders",),
            stages=(StageModel("read", 0.0), StageModel("query", 0.001 + 0.0005 * place, tasks=840)),
            overhead_seconds=0.02,
            trigger_interval_seconds=2.0,
            contention=0.004 * (1 + place % 3),
            noise_share=0.02,
            ways=BY_RESTART,
            restart=RestartCosts(exit_seconds=2.0, start_seconds=20.0),
        )
        spec, shares = spec_for(model, maximum=32), even(32)
        bound = batch_bound(spec)
        # Half-way between the capacity of the size below and that of the right size, so the answer is clear-cut.
        rate = (capacity(model, shares, right - 1, bound) + capacity(model, shares, right, bound)) / 2
        model = replace(model, max_records_per_trigger=int(3 * rate))
        for start in STARTS:
            scenario = Scenario(
                models=(model,),
                specs=(spec,),
                topics={"orders": TopicPlan(shares, Load([rate]))},
                pools={"default": 32},
                sizes={name: start},
                seconds=SECONDS,
            )
            cases.append(ScenarioCase(f"{name} from {start}", scenario, {name: right}))
    return cases


def noisy_sine() -> ScenarioCase:
    """Return six hours of a noisy sine (one wave in six hours) on a job that takes 30 to 50 s to restart."""
    model = replace(
        lab_model(ways=BY_RESTART),
        restart=RestartCosts(exit_seconds=2.0, start_seconds=25.0, start_jitter_seconds=20.0),
        state=None,
    )
    spec = spec_for(model)
    load = sine(lab_peak(model, spec), 6 * 3600.0, period=6 * 3600.0).noisy(0.05, seed=41)
    return ScenarioCase("noisy sine", one_job(model, spec, load), {})


def worst_sawtooth(period: float) -> ScenarioCase:
    """Return a sawtooth of a period on the lab's job."""
    model = lab_model(ways=BY_RESTART)
    spec = spec_for(model)
    return ScenarioCase(
        f"sawtooth {period:.0f} s", one_job(model, spec, sawtooth(lab_peak(model, spec), 3 * 3600.0, period)), {}
    )


def outcome(case: ScenarioCase, job_id: str, recording: JobRecording) -> ScenarioOutcome:
    """Return how a job of a case reached its size."""
    sizes = tuple(result.parallelism for result in recording.results if result.phase is Phase.ACCEPTED)
    return ScenarioOutcome(case.scenario.sizes[job_id], sizes, case.right[job_id])


def restarts(recording: JobRecording) -> int:
    """Return how many rescales stopped a job."""
    return sum(result.phase is Phase.STOPPING for result in recording.results)
