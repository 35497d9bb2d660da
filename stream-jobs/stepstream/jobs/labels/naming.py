"""What the `label` job and its topics are called."""

NAME = "label"
VERSION = "2"
"""Rises where the same inputs make another label: what is kept is then labelled anew. 2: labels carry text."""
JOB = f"{NAME}@{VERSION}"
CLOSURES, LABELS, CURATION = "closures", "labeled-trajectories", "curation"
