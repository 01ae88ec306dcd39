"""What operators see of all jobs: their present state, their last hours, and decisions in words."""
