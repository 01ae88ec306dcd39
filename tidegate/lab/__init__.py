"""The lab: policies against workloads on the twin, scored, beside a clairvoyant oracle.

simulate   the loop snapshot -> decision -> command in simulated time, with the very engine
score      what a run cost and how well it followed: elasticity, lag, core-seconds, restarts
oracle     what could have been had by knowing the load
tune       a policy's options, searched on a training load
suite      all of it for policy x workload; `python -m tidegate.lab` prints and draws it
"""
