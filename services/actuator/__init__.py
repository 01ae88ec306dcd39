"""Carries out commands: stops and starts Spark jobs, one phase at a time, and tells each phase on the results topic."""
