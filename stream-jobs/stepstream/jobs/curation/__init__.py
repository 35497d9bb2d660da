"""Which labelled trajectories are fit to train on: their flaws as data, and near-duplicates among them."""
