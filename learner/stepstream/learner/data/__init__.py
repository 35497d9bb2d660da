"""Read labelled trajectories, collect them in groups and choose the groups of each update."""
