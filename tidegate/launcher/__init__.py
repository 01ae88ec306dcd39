"""Inside a Spark driver: runs a user's unchanged script or main class, fences it, and stops it at a batch boundary.

It needs only the standard library and pyspark, and Spark finds it by its path: a worker needs nothing but these files.
"""
