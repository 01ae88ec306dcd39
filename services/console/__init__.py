"""The console as a deployable: `tidegate.console` with its settings from the environment."""
