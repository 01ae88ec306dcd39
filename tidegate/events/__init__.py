"""The wire contract: what every Tidegate event says, as pydantic models. Imports nothing else of Tidegate."""
