"""What the `label` job and its topics are called."""

NAME = "label"
VERSION = "1"
JOB = f"{NAME}@{VERSION}"
CLOSURES, LABELS, CURATION = "closures", "labeled-trajectories", "curation"
