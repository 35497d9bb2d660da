"""Assess labelled trajectories as training data: flag quality problems, and find near-duplicates."""
