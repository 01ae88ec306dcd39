"""Reads Spark event logs: lines, events, runs of an application, and what each interval holds of a job."""
