"""The collector measures each job once per interval, from outside, and publishes a snapshot of it.

    event logs ─ tidegate.sparklog ──────────────────────────────────┐
    checkpoints, where a log does not tell ─ checkpoint ──────────────┤
    Kafka's end offsets ─ offsets ────────────────────────────────────┼─ sources ─ round ─ snapshots ─ delivery
    the cluster's capacity ─ master, kubernetes or yarn ─ clusters ───┘

It works on unmodified jobs and decides nothing. The engine computes lag and rates from offsets. The snapshot names what
could not be measured; it never reports that as zero.
"""
