"""The lab: run policies on workloads on the twin, score them, and compare them with a clairvoyant oracle.

simulate   the loop snapshot -> decision -> command in simulated time, with the production engine
score      what a run cost and how well it followed: elasticity, age of the oldest record, slot-seconds, restarts
pairs      three sets of pairs, a kind of job (`kinds`) with a load (`loads`, traces): to train on, choose with, report
oracle     the cheapest run found by knowing the load: plans of `program`, improved on the twin; `attain` keeps them
compare    policies on a set, as multiples of what is attainable; `ablation`: a policy without each of its mechanisms
tune       search a policy's options on training loads
suite      policies on ten readable workloads and on traces; `python -m tidegate.lab` prints and draws them
"""

import sys

from tidegate.runtime.extras import FROM_THE_WHEEL, needs

if sys.argv[:1] == ["-m"]:  # one of the lab's programs is about to start
    with needs("tidegate.lab", "cli", FROM_THE_WHEEL):
        import typer  # noqa: F401
