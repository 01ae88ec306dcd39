"""The console: the fleet in a browser, live from the topics."""
