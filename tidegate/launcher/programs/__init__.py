"""The user's programs: a PySpark script (`script.py`, `waits.py`), and a main class of a jar, in Scala or Java.

The main class (`main_class.py`) runs behind a gate in the JVM (`gate.py`, `Gate.java`).
"""
