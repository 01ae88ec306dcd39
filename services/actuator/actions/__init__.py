"""The actions of a command, one per file. Each takes what it needs and returns an `ActionOutcome`."""
