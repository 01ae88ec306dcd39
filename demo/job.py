"""The demo's job: policy `tide`, with times short enough to watch, on Spark standalone, in pods or on YARN."""

from __future__ import annotations

import sys
from typing import Any

from demo.environment import JOB, LIGHT_JVMS, WORKER_SLOTS, Environment
from tidegate.events.job import Application, JobSpec, Scaling
from tidegate.stack.jars import spark_home

MAX_RECORDS_PER_BATCH = 12_000
"""Keeps a batch to about 13 s on two slots and 4 s on eight, so that stopping between batches does not take long."""
TRIGGER = "4 seconds"
"""Long compared with the fixed cost of a batch, which is up to a second on a busy machine."""
SMALL_PODS = {"spark.kubernetes.driver.request.cores": "100m", "spark.kubernetes.executor.request.cores": "100m"}
"""Slots may exceed the machine's cores, as on the standalone worker."""
LOCAL_IP = "SPARK_LOCAL_IP"
"""The variable that names the address at which Spark listens."""


def spec_for(
    environment: Environment, objective_seconds: float, record_ms: float = 2.0, time_factor: float = 1.0
) -> JobSpec:
    """Return the spec of the demo's job."""
    servers = environment.info.bootstrap_servers
    args = ["--bootstrap-servers", servers, "--input", environment.source, "--output", environment.sink]
    args += ["--checkpoint", str(environment.checkpoint), "--record-ms", f"{record_ms:g}"]
    args += ["--max-offsets-per-trigger", f"{MAX_RECORDS_PER_BATCH}", "--trigger", TRIGGER]
    where: dict[str, Any]
    if environment.pods is not None:
        block = environment.pods.block(environment.job_folder)
        where = {"backend": "kubernetes", "kubernetes": block, "conf": LIGHT_JVMS | SMALL_PODS}
    elif environment.manager is not None:
        where = _on_yarn(environment, environment.manager)
    else:
        where = _standalone(environment)
    return JobSpec(
        job_id=JOB,
        pipeline_id=JOB,
        pool_id="demo",
        sources=(environment.source,),
        sinks=(environment.sink,),
        interval_seconds=3,
        application=Application(
            **(where | {"conf": where["conf"] | environment.conf}),
            script=str(environment.script),
            args=tuple(args),
            checkpoint_location=str(environment.checkpoint),
            event_log_dir=str(environment.event_log_dir),
            # Two slots per executor halve the number of JVMs that a small machine has to start.
            executor_cores=2,
            stop_deadline_seconds=30.0 * time_factor,
            start_deadline_seconds=120.0 * time_factor,
        ),
        scaling=Scaling(
            # The demo lasts minutes, so savings count at once and restarts are cheap.
            policy="tide",
            policy_options={"horizon_seconds": 180.0, "restart_price": 6.0},
            guards={"stabilization": {"seconds": 6.0}, "cooldown": {"up_seconds": 15.0, "down_seconds": 20.0}},
            min_parallelism=2,
            max_parallelism=WORKER_SLOTS,
            lag_objective_seconds=objective_seconds,
        ),
    )


def _standalone(environment: Environment) -> dict[str, Any]:
    """Return what an application says of the cluster of the stack."""
    info = environment.info
    return {
        "master": info.spark_master,
        "rest_url": info.spark_rest,
        "master_ui_url": info.spark_ui,
        "jars": tuple(str(jar) for jar in info.connector_jars),
        "control_dir": str(environment.control_dir),
        "conf": LIGHT_JVMS,
    }


def _on_yarn(environment: Environment, manager: str) -> dict[str, Any]:
    """Return what an application says of a YARN whose node is this machine: nothing is copied, all is on loopback."""
    conf = {name: value for name, value in LIGHT_JVMS.items() if name != "spark.driver.cores"}  # YARN takes no 0
    conf |= {
        "spark.yarn.jars": f"local:{spark_home()}/jars/*",
        "spark.yarn.stagingDir": f"file://{environment.folder}/staging",
        "spark.pyspark.python": sys.executable,
        f"spark.executorEnv.{LOCAL_IP}": "127.0.0.1",
    }
    return {
        "backend": "yarn",
        "rest_url": manager,
        "jars": tuple(f"local:{jar}" for jar in environment.info.connector_jars),
        "control_dir": str(environment.control_dir),
        "conf": conf,
        "env": {LOCAL_IP: "127.0.0.1"},
    }
