"""The twin: Structured Streaming jobs in simulated time, speaking the wire contract.

A twin job emits the `MetricSnapshot`s that the collector would write and answers a `ScalingCommand` with the
actuator's `ActionResult`s, so the production engine runs against it unchanged. It reads no clock and no random
source: time is an argument and noise is a function of a seed. The same run gives the same bytes on any machine.

    workloads -> topics -> jobs in pools -> snapshots        tidegate.twin.workloads, topic, job, pool, measure
                            ^ commands -> execution -> results          tidegate.twin.execution, ways
    one world holds them all; `advance(until)` moves its time            tidegate.twin.world
    fit to a recorded run, repeat that run, report the error             tidegate.twin.calibrate, rerun
"""
