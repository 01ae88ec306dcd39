"""Queueing theory's formulas for c servers with one queue (M/M/c): pure functions of numbers.

λ arrival rate (1/s), μ service rate of one server (1/s), a = λ/μ offered load, c servers, ρ = a/c utilization.

    Erlang B   B(0) = 1,  B(c) = a · B(c-1) / (c + a · B(c-1))                 all servers busy, no queue
    Erlang C   C = B / (1 - ρ · (1 - B))                                       an arrival has to wait
    mean wait  Wq = C / (c·μ - λ)
    tail       P(wait > t) = C · exp(-(c·μ - λ) · t)

Source: L. Kleinrock, "Queueing Systems", vol. 1, section 3.5; A. O. Allen, "Probability, Statistics and Queueing
Theory", 2nd ed., table 5.
"""

from __future__ import annotations

import math


def erlang_b(servers: int, load: float) -> float:
    """Return the probability that all servers are busy, with an offered load and no queue."""
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = load * blocked / (count + load * blocked)
    return blocked


def erlang_c(servers: int, load: float) -> float:
    """Return the probability that an arrival has to wait; 1 if the load is not below the servers."""
    return _waits(servers, load, erlang_b(servers, load))


def _waits(servers: int, load: float, blocked: float) -> float:
    use = load / servers
    return 1.0 if use >= 1 else blocked / (1 - use * (1 - blocked))


def mean_wait(servers: int, arrival_rate: float, service_rate: float) -> float:
    """Return the mean wait in the queue, seconds; infinite if the queue keeps growing."""
    spare = servers * service_rate - arrival_rate
    return erlang_c(servers, arrival_rate / service_rate) / spare if spare > 0 else math.inf


def wait_exceeds(servers: int, arrival_rate: float, service_rate: float, seconds: float) -> float:
    """Return the probability that an arrival waits longer than `seconds`; 1 if the queue keeps growing."""
    spare = servers * service_rate - arrival_rate
    return erlang_c(servers, arrival_rate / service_rate) * math.exp(-spare * seconds) if spare > 0 else 1.0


def servers_needed(arrival_rate: float, service_rate: float, seconds: float, share: float, most: int) -> int | None:
    """Return the fewest servers with `P(wait > seconds) <= share`, or None if that takes more than `most`."""
    load = arrival_rate / service_rate
    blocked = 1.0
    for count in range(1, most + 1):
        blocked = load * blocked / (count + load * blocked)
        spare = count * service_rate - arrival_rate
        if spare > 0 and _waits(count, load, blocked) * math.exp(-spare * seconds) <= share:
            return count
    return None
