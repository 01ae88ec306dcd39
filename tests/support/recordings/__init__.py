"""Recordings to test with.

`rates` is a demo on real Spark 4.2 (standalone, two cores): 2 ms a record, 8 partitions, a trigger every 4 s, at most
12,000 records a batch, 2 to 8 to 4 slots. Left out are headers, details, and names of machines and drivers.
"""

from pathlib import Path

RATES = Path(__file__).parent / "rates"
