"""Carries out commands: stops and starts Spark jobs, and publishes each phase as a result."""
