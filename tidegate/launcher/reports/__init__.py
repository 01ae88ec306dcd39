"""What a driver says about its run, in the control files (`driver_run.py`, `progress.py`) and in its logs.

`failure.py` puts a failure into one line, without secrets. Event logs are flushed, and shipped to an object store.
"""
