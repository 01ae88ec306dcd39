"""The topological pass of `flip271`: a job that reads other jobs is sized for what those should process.

    source   target   = max(0, rate(in) + rate(lag))             catch-up = lag / D
    other    target   = Σ target(u) · ratio(u)                   catch-up = Σ catch-up(u) · ratio(u)
    ratio(u) = edge(u) / rate(in of u), 0 unless both are above 0

and the rate between job u and this job, edge(u), is the first that can be told of

    1. rate(in)                              u is the only input
    2. rate(in) - Σ rate(out of others)      all other inputs write to this job alone
    3. rate(out of u)

A target counts what a job should process, not what it can: neither a job that lacks slots nor one that is excluded from
scaling hides the load from the jobs downstream. There is no rule the other way, from a bottleneck upwards.

Three things differ, because Kafka is between the jobs. What this job reads is what has arrived, not what it has
processed. Its own lag adds to its catch-up rate. And a rate that is not known leaves the job a source: Flink counts it
as 0, and so takes a lost metric for no traffic.

Source: `ScalingMetricEvaluator.computeTargetDataRate`, `computeEdgeOutputRatio` and `computeEdgeDataRate` of
apache/flink-kubernetes-operator, `flink-autoscaler`, 1.16-SNAPSHOT.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tidegate.engine.case import Case
from tidegate.engine.links import downstream_of
from tidegate.engine.total import total
from tidegate.events.decision import Neighbour

WINDOW_TOLERANCE = 0.1
"""Share by which the windows of two jobs may differ for their rates to be compared."""


class Edge(NamedTuple):
    """One job upstream; rates in records/s, NaN where unknown."""

    target: float
    catch_up: float
    input_rate: float
    output_rate: float
    only_output: bool = True
    """Whether this job alone reads what it writes."""


def edge_rate(input_rate: float, edges: Sequence[Edge], place: int) -> float:
    """Return the rate between the job upstream at `place` and this one, whose input rate is given."""
    others = [edge for index, edge in enumerate(edges) if index != place]
    if not others:
        return input_rate
    if all(edge.only_output for edge in others):
        subtracted = math.fsum(edge.output_rate for edge in others)
        if not math.isnan(subtracted):
            return input_rate - subtracted
    return edges[place].output_rate


def output_ratio(edge: float, input_rate: float) -> float:
    """Return the output ratio of an edge; 0 unless both rates are above 0 (so of an unknown rate, too)."""
    return edge / input_rate if input_rate > 0 and edge > 0 else 0.0


def propagated(input_rate: float, edges: Sequence[Edge]) -> tuple[float, float]:
    """Return (target, catch-up) of a job from those of all jobs upstream."""
    ratios = [output_ratio(edge_rate(input_rate, edges, place), edge.input_rate) for place, edge in enumerate(edges)]
    pairs = list(zip(edges, ratios, strict=True))
    return total(edge.target * ratio for edge, ratio in pairs), total(edge.catch_up * ratio for edge, ratio in pairs)


class UpstreamDemand(NamedTuple):
    """What the jobs upstream ask of this one, records/s."""

    target: float
    catch_up: float
    jobs: str
    """Their ids."""


def upstream_demand(case: Case, arrivals: float, catch_up_seconds: float) -> UpstreamDemand | None:
    """Return what the jobs upstream ask of a job with such `arrivals`; None if it has none, or a rate is not known.

    Arrivals of other sources come on top. A job upstream that is also downstream counts as such a source.
    """
    neighbours = case.observed.neighbours
    downstream = downstream_of(neighbours)
    upstream = [each for each in neighbours if each.upstream and each.job_id not in downstream]
    found = [_edge(each, catch_up_seconds) for each in upstream]
    edges = [edge for edge in found if edge is not None]
    if not edges or len(edges) < len(found) or math.isnan(arrivals):
        return None
    windows = [each.evidence.window_seconds for each in upstream if each.evidence is not None]
    mine = case.evidence.window_seconds
    covered = set(case.sources) <= {topic for each in upstream for topic in each.topics}
    comparable = all(abs(window - mine) <= WINDOW_TOLERANCE * max(window, mine) for window in windows)
    jobs = ", ".join(each.job_id for each in upstream)
    if covered and comparable:
        return UpstreamDemand(*propagated(arrivals, edges), jobs)
    # Neither rule 1 nor rule 2 can tell: there is another input, or the rates are of different times.
    if any(math.isnan(edge.output_rate) for edge in edges):
        return None
    ratios = [output_ratio(edge.output_rate, edge.input_rate) for edge in edges]
    others = 0.0 if covered else max(0.0, arrivals - total(edge.output_rate for edge in edges))
    target = others + total(edge.target * ratio for edge, ratio in zip(edges, ratios, strict=True))
    return UpstreamDemand(target, total(edge.catch_up * ratio for edge, ratio in zip(edges, ratios, strict=True)), jobs)


def upstream_lag_seconds(case: Case) -> float:
    """Return the longest lag of the jobs upstream, in seconds of what they read; 0 if none is known."""
    lags = [0.0]
    for each in case.observed.neighbours:
        seen = each.evidence if each.upstream else None
        if seen is not None and seen.lag_records and seen.processing_rate is not None:
            lags.append(seen.lag_records / seen.processing_rate if seen.processing_rate > 0 else math.inf)
    return max(lags)


def _edge(neighbour: Neighbour, catch_up_seconds: float) -> Edge | None:
    """Return a job upstream as an edge; None if its target or its input rate is not known.

    One that has committed nothing although records wait is in a long batch, which says nothing about its output.
    """
    seen, emits = neighbour.evidence, neighbour.emits
    if seen is None or seen.processing_rate is None or (seen.processing_rate == 0 and seen.lag_records):
        return None
    target = None if emits is None else emits.target_rate
    catch_up = None if emits is None else emits.catch_up_rate
    if target is None:
        target = seen.arrival_rate
    if catch_up is None and seen.lag_records is not None:
        catch_up = max(0, seen.lag_records) / catch_up_seconds if catch_up_seconds else 0.0
    if target is None or catch_up is None:
        return None
    output = math.nan if seen.output_ratio is None else seen.processing_rate * seen.output_ratio
    return Edge(target, catch_up, seen.processing_rate, output, bool(neighbour.only_reader))
