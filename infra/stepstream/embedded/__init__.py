"""The embedded stack: broker, supervisor and everything that one machine needs to run the whole loop."""
