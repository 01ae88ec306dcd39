"""What Spark has no call for: its classes, as they are in the driver's JVM.

Where a query is in its loop (`query_loop.py`), how it ends between two batches (`boundary.py`), what is done meanwhile
(`between_batches.py`); the executors; Hadoop's files; Java code of Tidegate's (`java.py`).
"""
