"""A handover: two drivers, one job.

The first driver gives its turn away, and the second one waits for it (`turn.py`, `second_driver.py`). Until then it
warms up (`warm_up.py`): it rehearses the queries (`rehearsal.py`, `repeat.py`) and loads some state (`state_loads.py`).
"""
