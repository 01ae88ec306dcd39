"""`learning`: reinforcement learning: a table of what each step up, down or none was worth in each situation.

    situation s   (load below, in or above the band) × (lag none, some, over the objective) × (lag growing or not)
    action    a   one step down, none, one step up
    reward    r = - slot price · size / largest size  -  lag price · lag / objective  -  restart price · [size changed]
    update        Q(s, a) += α · ( r + γ · max Q(s', ·) - Q(s, a) )

- Q(s, a): worth of action a in situation s; s': the situation after it. `[…]`: 1 if true, else 0.
- α: `learning_rate`. γ: `discount`, the weight of the future. The prices have no unit.
- band: `low_utilization` to `high_utilization`. Lag: the delay, in seconds, as the objective is; while only a lower
  bound is known, seconds of work if they are more. It counts as at most 5 objectives; in s, one of up to a tenth of the
  objective is none.

Once per `epoch_seconds` the policy judges its last action, by what came of it: a step that a guard held back was none.
Then it chooses the next: usually the best known one, and now and then, less and less often, another one. It never steps
down while the lag is over the objective. It starts with a plausible table: up if loaded or behind, down if idle. The
random numbers come from a counter and a hash, so the same state always chooses the same action.

When to choose it: For experiments. It learns by trying, so avoid it where the lag objective is tight.

Set first: `epoch_seconds`, longer than a restart, and the three prices.

Source: C. Watkins, P. Dayan, "Q-learning", 1992; as an autoscaler: T. Lorido-Botran et al., "A review of auto-scaling
techniques for elastic applications in cloud environments", 2014, section 5.2. The hash is SplitMix64 (G. Steele et al.,
OOPSLA 2014).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from tidegate.engine.case import Case, Proposal
from tidegate.engine.options import option
from tidegate.engine.reasons import Reason
from tidegate.events.decision import Figure
from tidegate.policies.rule import Rule
from tidegate.policies.sizing import EVIDENCE_MISSING, clamp, step_to, unknown

ACTIONS = (-1, 0, 1)
SITUATIONS = 18
WORST_LAG = 5.0
_MASK = 2**64 - 1


def splitmix64(seed: int, count: int) -> int:
    """Return the `count`-th 64-bit number of the sequence of a seed."""
    z = (seed + (count + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def uniform(seed: int, count: int) -> float:
    """Return the `count`-th number of the sequence in [0, 1), with 53 bits."""
    return (splitmix64(seed, count) >> 11) / 2**53


def updated(value: float, reward: float, best_next: float, rate: float, discount: float) -> float:
    """Return Q(s, a) after one experience."""
    return value + rate * (reward + discount * best_next - value)


@dataclass(frozen=True, slots=True)
class LearningOptions:
    """Options of `learning`."""

    window_seconds: float = option(60.0, "window of rates and utilization", unit="s", gt=0)
    epoch_seconds: float = option(60.0, "time from an action to its judgement", unit="s", gt=0)
    seed: int = option(0, "seed of the random numbers", ge=0, le=2**53)
    exploration: float = option(0.05, "share of other actions that it tries at first", unit="share", ge=0, le=1)
    learning_rate: float = option(0.2, "α: weight of the newest experience", unit="share", gt=0, le=1)
    discount: float = option(0.8, "γ: weight of the next situation", unit="share", ge=0, le=0.99)
    low_utilization: float = option(0.4, "utilization below which the load is low", unit="share", ge=0, le=1)
    high_utilization: float = option(0.8, "utilization from which the load is high", unit="share", gt=0, le=1)
    step_share: float = option(0.25, "size of a step, at least one executor", unit="share of the size", gt=0, le=1)
    slot_price: float = option(1.0, "price of running at the largest size", ge=0, le=1e9)
    lag_price: float = option(2.0, "price of lag at the objective", ge=0, le=1e9)
    restart_price: float = option(0.3, "price of a change", ge=0, le=1e9)
    assumed_restart_seconds: float = option(30.0, "restart time to expect until one is measured", unit="s", ge=0)


class LearningMemory(NamedTuple):
    """What `learning` remembers."""

    table: tuple[tuple[float, float, float], ...] = ()
    """Worth of a step down, none and up in each situation; empty for the table it starts with."""
    rolls: int = 0
    """Numbers of the sequence used up."""
    acted: tuple[float, int, int] | None = None
    """(when, situation, size) of the last action; the size now says what came of it."""


class Learning(Rule[LearningOptions, LearningMemory]):
    """Q-learning: learns by trying what a step up or down is worth."""

    name: ClassVar[str] = "learning"
    Options: ClassVar[type] = LearningOptions
    Memory: ClassVar[type] = LearningMemory
    reasons: ClassVar[Mapping[str, Reason]] = {
        "EVIDENCE_MISSING": EVIDENCE_MISSING,
        "LEARNING_WAITS": Reason("the policy judges its last action after {epoch:.0f} s, in another {wait:.0f} s"),
        "LEARNING_KNOWS": Reason(
            "in this situation ({situation}) {action} has been worth the most: {worth:.2f}, the next best {other:.2f}"
        ),
        "LEARNING_TRIES": Reason("in this situation ({situation}) the policy tries {action} to learn what it is worth"),
    }

    def propose(self, case: Case, memory: LearningMemory) -> Proposal[LearningMemory]:
        """Return the size one action away, the best known or one to try."""
        o, e = self.options, case.evidence
        if e.utilization is None or e.lag_records is None or e.lag_trend is None:
            absent = unknown(e, "utilization", "lag_records", "lag_trend")
            return Proposal(case.current, "EVIDENCE_MISSING", {"missing": absent})
        acted = memory.acted
        if acted is not None and case.measured_at - acted[0] < o.epoch_seconds - 1e-6:
            wait = acted[0] + o.epoch_seconds - case.measured_at
            return Proposal(case.current, "LEARNING_WAITS", {"epoch": o.epoch_seconds, "wait": wait})
        situation, words, behind = self._situation(case, e.utilization, e.lag_trend)
        table = [list(row) for row in memory.table or self._common_sense()]
        if acted is not None:
            _, before, size = acted
            done = (case.current > size) - (case.current < size)  # a guard may have held the step back
            reward = self._reward(case, changed=done != 0)
            row = table[before]
            row[done + 1] = round(updated(row[done + 1], reward, max(table[situation]), o.learning_rate, o.discount), 4)
        rolls = memory.rolls
        action, tried = self._choose(table[situation], rolls, behind=behind)
        step = max(1, int(case.current * o.step_share))
        size = clamp(case, step_to(case, case.current + action * step))
        row = table[situation]
        numbers: dict[str, Figure] = {
            "situation": words,
            "action": ("a step down", "no step", "a step up")[action + 1],
            "worth": row[action + 1],
            "other": max(row[a + 1] for a in ACTIONS if a != action),
            "rolls": rolls,
        }
        kept = LearningMemory(
            table=tuple((down, stay, up) for down, stay, up in table),
            rolls=rolls + 2,
            acted=(case.measured_at, situation, case.current),
        )
        code = "LEARNING_TRIES" if tried else "LEARNING_KNOWS"
        return self._proposal(case, size, code, numbers, kept)

    def _situation(self, case: Case, utilization: float, trend: float) -> tuple[int, str, bool]:
        """Return (number of the situation, in words, whether lag is over the objective)."""
        o = self.options
        load = 0 if utilization < o.low_utilization else 2 if utilization >= o.high_utilization else 1
        seconds = self._lag_seconds(case)
        objective = case.spec.scaling.lag_objective_seconds
        lag = 0 if seconds <= objective / 10 else 1 if seconds <= objective else 2
        rising = 1 if trend > 0 else 0
        words = ", ".join(
            (("low load", "fair load", "high load")[load], ("no lag", "some lag", "too much lag")[lag])
        ) + (", rising" if rising else "")
        return (load * 3 + lag) * 2 + rising, words, lag == 2

    def _lag_seconds(self, case: Case) -> float:
        """Return the lag in seconds; a lag that cannot be measured in seconds counts as over the objective."""
        e = case.evidence
        if not e.lag_records or e.lag_records < 0:
            return 0.0
        if e.delay_seconds is not None and not e.delay_at_least:
            return e.delay_seconds
        work = e.lag_seconds if e.lag_seconds is not None else 2 * case.spec.scaling.lag_objective_seconds
        return max(work, e.delay_seconds or 0.0)

    def _reward(self, case: Case, *, changed: bool) -> float:
        o, scaling = self.options, case.spec.scaling
        lag = min(WORST_LAG, self._lag_seconds(case) / scaling.lag_objective_seconds)
        slots = o.slot_price * case.current / scaling.max_parallelism
        return -slots - o.lag_price * lag - (o.restart_price if changed else 0.0)

    def _choose(self, row: list[float], rolls: int, *, behind: bool) -> tuple[int, bool]:
        """Return (action, whether it is a trial): the best known one, with ties to no step, or one to try."""
        o = self.options
        allowed = [action for action in ACTIONS if not (behind and action < 0)]
        best = max(allowed, key=lambda action: (row[action + 1], action == 0, action))
        chance = o.exploration / (1 + rolls / 200)
        if uniform(o.seed, rolls) >= chance:
            return best, False
        others = [action for action in allowed if action != best]
        return others[int(uniform(o.seed, rolls + 1) * len(others))], True

    def _common_sense(self) -> list[list[float]]:
        """Return the first table: the worth of a step down, none and up in each situation."""
        table = []
        for situation in range(SITUATIONS):
            load, lag, rising = situation // 6, situation // 2 % 3, situation % 2
            need = (load - 1) + lag + (rising if lag else 0)
            table.append([-0.2 - need, -0.1 - abs(need) / 2, -0.2 + need])
        return table
