"""Read labelled trajectories and choose groups to train on."""
