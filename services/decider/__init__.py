"""The decider: from snapshots to decisions and commands, on Faust, with Redis for what must be taken atomically."""
