"""Inside a Spark driver: runs a user's unchanged script or main class, fences it, and stops it at a batch boundary.

It needs only the standard library and pyspark, and Spark finds it by its path: a worker needs nothing but these files.
Where to look for what:

    the run              launch ─ run ─ driver_run (its state), queries, driver_log
    the user's program   program: script (starts, waits) or main_class (gate)
    a start of a query   starter ─ checkpoints
    a stop               stopping ─ boundary ─ engine (where a query is in its loop)
    a change in place    sizing ─ executors, between (two batches)
    a handover           handover ─ second ─ warm_up ─ rehearsal ─ repeat, state_loads
    what is reported     progress, event_log, shipping, failure
    the control files    control, claims ─ json_files ─ store: file_store, config_map (remote_store)
    where things are     hadoop; kubernetes ─ kube_access, pods
"""
