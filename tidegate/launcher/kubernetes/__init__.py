"""Kubernetes: its API server and how to reach it (`api.py`, `access.py`), and Spark's pods there (`pods.py`)."""
