"""Queueing theory's formulas for c servers with one queue (M/M/c): pure functions of numbers.

λ arrival rate (1/s), μ service rate of one server (1/s), a = λ/μ offered load, c servers, ρ = a/c utilization.

    Erlang B   B(0) = 1,  B(c) = a · B(c-1) / (c + a · B(c-1))                 all servers busy, no queue
    Erlang C   C = B / (1 - ρ · (1 - B))                                       an arrival has to wait
    tail       P(wait > t) = C · exp(-(c·μ - λ) · t)

Source: L. Kleinrock, "Queueing Systems", vol. 1, section 3.5; A. O. Allen, "Probability, Statistics and Queueing
Theory", 2nd ed., table 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count, islice


def erlang_b(load: float) -> Iterator[float]:
    """Yield the probability that all of 1, 2, 3, … servers are busy, with an offered load and no queue."""
    blocked = 1.0
    for servers in count(1):
        blocked = load * blocked / (servers + load * blocked)
        yield blocked


def erlang_c(servers: int, load: float, blocked: float) -> float:
    """Return the probability that an arrival has to wait, from Erlang B; 1 if the load is not below the servers."""
    use = load / servers
    return 1.0 if use >= 1 else blocked / (1 - use * (1 - blocked))


def servers_needed(arrival_rate: float, service_rate: float, seconds: float, share: float, most: int) -> int | None:
    """Return the fewest servers with `P(wait > seconds) <= share`, or None if that takes more than `most`."""
    load = arrival_rate / service_rate
    for servers, blocked in enumerate(islice(erlang_b(load), most), 1):
        spare = servers * service_rate - arrival_rate
        if spare > 0 and erlang_c(servers, load, blocked) * math.exp(-spare * seconds) <= share:
            return servers
    return None
