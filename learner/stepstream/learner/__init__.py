"""Train a model off-policy on labelled trajectories and publish its versions."""

JOB = "learner@1"
"""Job id in decisions, updates and dead letters."""

SOURCE = "learner/1"
"""Source id of the learner's events."""
