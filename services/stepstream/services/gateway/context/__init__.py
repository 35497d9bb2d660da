"""Remember running trajectories, so that each step stores only the new part of its prompt."""
