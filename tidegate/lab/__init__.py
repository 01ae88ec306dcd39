"""The lab: run policies on workloads on the twin, score them, and compare them with a clairvoyant oracle.

simulate   the loop snapshot -> decision -> command in simulated time, with the production engine
score      what a run cost and how well it followed: elasticity, lag, core-seconds, restarts
oracle     the cheapest run found by knowing the load
tune       search a policy's options on training loads
suite      all of this for policy x workload; `python -m tidegate.lab` prints and draws it
"""
