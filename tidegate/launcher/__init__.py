"""Inside a Spark driver: runs a user's unchanged script or main class, fences it, and stops it at a batch boundary.

It needs only the standard library and pyspark. Spark finds it by its path, and a driver gets nothing but these files.
Imports go down this list, and not from `control` to `spark` or back. The services need `control`, `kubernetes` and
`reports.failure`, which do without pyspark:

    main         the command line
    programs     the user's script or main class
    run          one run: starts, resizes and ends its queries
    handover     from one driver to another
    queries      how they start, and their checkpoints
    reports      what a driver says about its run
    control      the control files, through which actuator and driver talk
    spark        what Spark has no call for: batch boundaries, executors, Hadoop's files
    kubernetes   its API, and Spark's pods
"""
