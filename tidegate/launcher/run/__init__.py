"""One run inside its driver (`launch.py`): how its queries start, how it is resized in place, how its queries end."""
