"""The off-policy learner."""

JOB = "learner@1"


SOURCE = "learner/1"
