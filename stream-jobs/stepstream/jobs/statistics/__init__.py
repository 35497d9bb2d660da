"""Sum up trajectories and reward components by cohort, and find rewards that are gamed."""
