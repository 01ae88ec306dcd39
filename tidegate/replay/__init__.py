"""Programs over what was recorded: record topics to files, publish them again, recompute every decision on Spark."""
