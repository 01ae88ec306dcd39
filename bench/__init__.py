"""Benchmarks: `python -m bench` runs them all and prints ratios against a floor or a peer of the same run."""
