"""The shared shell of the services: settings, Kafka, dead letters, clock, logs, health. No decision is taken here."""
