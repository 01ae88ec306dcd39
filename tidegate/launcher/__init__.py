"""Runs inside a Spark driver: starts a user's unchanged script, fences it, and stops it at a batch boundary.

Standard library and pyspark only, so that a worker needs nothing but this folder: it is found by its path.
"""
