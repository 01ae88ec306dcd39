"""The five actions of the restart protocol, one per file. Each takes what it needs and returns an `ActionOutcome`."""
