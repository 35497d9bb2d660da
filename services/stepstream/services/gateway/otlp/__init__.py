"""OpenTelemetry in: spans and log records of agents become steps and feedback."""
