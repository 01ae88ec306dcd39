"""Recordings: record topics to files, publish them again, and recompute every decision on Spark."""
