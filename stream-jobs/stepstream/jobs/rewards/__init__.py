"""Compute the reward of a trajectory: `spec` defines it, `spec_lookup` finds it, `terms` computes each step's terms."""
