"""The fleet: agents that work on tasks through the gateway."""
