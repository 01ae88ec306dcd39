"""The audit: checks on every hop from the cluster to a change of size, each one Spark SQL query that can fail.

| part | what it does |
| --- | --- |
| `records.py` | the records of all topics, from a broker or a recording |
| `views.py` | the events as tables |
| `facts.py`, `ledger.py` | what SQL cannot tell, as tables: recomputed decisions, cut snapshots, Redis, and more |
| `checks/`, `checks.py` | the checks: one `.sql` file each, with its meaning at its top |
| `run.py` | runs them all and counts |
| `history.py` | what happened to each job |
| `report.py`, `page.py`, `timeline.py` | the outcome as a table, as JSON, and as a page to file |
"""
