"""The oracle: the cheapest run found by knowing the load in advance, changes of size included.

`program` plans without the twin's noise. So its plans, made with several capacity margins, run on the twin, and so does
the largest size of each plan held throughout. The cheapest run is then improved on the twin itself: each of its moves
is left out, ordered earlier or later, or made to another size, as long as that makes the run cheaper. The result was
reached on the twin; it is not a proof that nothing is cheaper.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from tidegate.events.way import Way
from tidegate.lab.jobs import sizes_of
from tidegate.lab.program import BatchProgram
from tidegate.lab.score import Prices, Score, score
from tidegate.lab.simulate import JobRecording, Move, Scenario, play

MARGINS = (1.03, 1.0, 0.95, 0.9)
"""Shares of the capacity that plans assume. With the twin's noise, the boldest plan is not always the cheapest."""

EAGER = (0.1, 0.6)
"""Shares of a change's price that paths may waste by changing early."""

CALM = 5.0
"""A second plan assumes that changes in place cost this many times their price: in the program they are nearly free, on
the twin fewer of them are often cheaper."""

TRIALS = 24
"""Runs on the twin that improve the best plan."""

SHIFTS = (-30.0, -10.0, 10.0, 30.0)
"""Seconds by which a move is ordered earlier or later."""

Plan = tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Best:
    """The cheapest run found."""

    moves: Plan
    recording: JobRecording
    score: Score


def oracle(scenario: Scenario, prices: Prices | None = None, *, trials: int = TRIALS) -> Best:
    """Return the cheapest run of a scenario of one job with one source topic.

    It starts at the scenario's size, as the policies do. Raises `ValueError` for any other scenario.
    """
    if len(scenario.models) != 1 or len(scenario.models[0].sources) != 1:
        raise ValueError("the oracle plans for one job with one source topic")
    search = _Search(scenario, prices or Prices())
    for moves in _candidates(scenario, search.prices):
        search.run(moves)
    search.improve(trials)
    best = search.best
    if best is None:
        raise ValueError("the spec allows no size")
    return best


def _candidates(scenario: Scenario, prices: Prices) -> Iterator[Plan]:
    """Yield the plans to try: the program's for each margin, and their largest sizes held throughout."""
    start = scenario.sizes[scenario.models[0].job_id]
    calm = replace(prices, in_place=CALM * prices.in_place)
    in_place = scenario.specs[0].application.ways[0] is Way.IN_PLACE
    for margin in MARGINS[1:3] if in_place else MARGINS:
        for assumed in (prices, calm) if in_place else (prices,):
            program = BatchProgram(scenario, assumed, margin)
            program.solve()
            for eager in EAGER:
                yield (moves := program.walk(start, eager))
            yield ((0.0, max((start, *(size for _, size in moves)))),)


class _Search:
    """The plans that have run on the twin, and the best of them."""

    def __init__(self, scenario: Scenario, prices: Prices) -> None:
        self.scenario, self.prices = scenario, prices
        self.best: Best | None = None
        self.tried: set[Plan] = set()
        self.model, self.spec = scenario.models[0], scenario.specs[0]
        self.shares = scenario.topics[self.model.sources[0]].shares
        self.sizes = sizes_of(self.spec)

    def run(self, moves: Plan) -> bool:
        """Run a plan on the twin, unless it has run; return whether it is the cheapest so far."""
        if moves in self.tried:
            return False
        self.tried.add(moves)
        recording = play(self.scenario, moves)
        found = score(self.model, self.spec, self.shares, recording, self.prices)
        if self.best is not None and found.cost >= self.best.score.cost:
            return False
        self.best = Best(moves, recording, found)
        return True

    def improve(self, trials: int) -> None:
        """Change one move at a time while runs are left and any change makes the run cheaper."""
        most, better = len(self.tried) + trials, True
        while better and self.best is not None:
            better = False
            for moves in self._neighbours(self.best.moves):
                if len(self.tried) >= most:
                    return
                if self.run(moves):
                    better = True
                    break

    def _neighbours(self, moves: Plan) -> Iterator[Plan]:
        """Yield plans that differ in one move, the boldest differences first."""
        for place in range(len(moves)):
            yield self._tidy((*moves[:place], *moves[place + 1 :]))
        for (at, size), place in zip(moves, range(len(moves)), strict=True):
            rank = self.sizes.index(size)
            others = [self.sizes[r] for r in (rank - 1, rank + 1) if 0 <= r < len(self.sizes)]
            changed = [(at, other) for other in others] + [(max(0.0, at + shift), size) for shift in SHIFTS]
            for move in changed:
                yield self._tidy((*moves[:place], move, *moves[place + 1 :]))

    def _tidy(self, moves: Plan) -> Plan:
        """Return the moves in order, without those that change nothing."""
        ordered = sorted(moves)
        start = (-1.0, self.scenario.sizes[self.spec.job_id])
        return tuple(move for before, move in pairwise([start, *ordered]) if move[1] != before[1])
