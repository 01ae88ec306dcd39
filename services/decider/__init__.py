"""The decider turns snapshots into decisions and commands, on Faust, with cooldowns and slots reserved in Redis."""
