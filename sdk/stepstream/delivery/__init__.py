"""Deliver events to Kafka: at least once through a local spool, or confirmed while the caller waits."""
