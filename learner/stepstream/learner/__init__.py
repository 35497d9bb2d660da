"""The off-policy learner."""
