"""The collector: measures each job once an interval, from outside, and publishes what it saw.

    event logs ─ event_log ─ parse ─ run ─ log_directory ┐
    Kafka's end offsets ─ offsets ────────────────────────┼─ snapshots ─ app ─> `snapshots` topic
    the master's capacity ─ master ───────────────────────┘

It works on unmodified jobs, computes neither lag nor rates (the engine does, from offsets), and decides nothing. What
could not be measured is named in the snapshot, never written as zero.
"""
