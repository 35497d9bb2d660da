"""Simulated fleets for the control plane's bench: the world, its scenarios, and those who decide."""
