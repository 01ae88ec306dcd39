"""What the services share: settings, Kafka, dead letters, clock, logs, health, start and end. Nothing decides here."""
