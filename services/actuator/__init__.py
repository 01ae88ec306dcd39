"""Carries out commands: stops and starts Spark jobs, and publishes each phase as a result.

    `commands` topic ─ consumer ─ execute ─┬ admission: may it start?
                                           ├ machine: which action is next?
                                           ├ actions: do it ─ drivers ─ backends, control files, checkpoint
                                           └ progress ─> `results` topic ─ command_log

A successor reads the results, and goes on where a command was left.
"""
