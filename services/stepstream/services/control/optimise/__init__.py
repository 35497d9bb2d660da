"""Propose harness versions from recorded trajectories, and weights for the training fleet's tasks."""
