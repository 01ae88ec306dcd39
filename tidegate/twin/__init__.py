"""The twin: Structured Streaming jobs in simulated time, speaking the wire contract.

A twin job emits the `MetricSnapshot`s that the collector would write, and answers a `ScalingCommand` with the
`ActionResult`s of the actuator, so the very engine and the very services run against it. It reads no clock and
draws no lots: time is an argument and noise a function of a seed, so the same run is the same bytes anywhere.

    workloads -> topics -> jobs in pools -> snapshots        tidegate.twin.workloads, topic, job, pool, measure
                            ^ commands -> execution -> results          tidegate.twin.execution
    one world of all of them, moved on by `advance(until)`              tidegate.twin.world
    fitted to a recorded run, run again beside it, the error reported   tidegate.twin.calibrate, rerun
"""
