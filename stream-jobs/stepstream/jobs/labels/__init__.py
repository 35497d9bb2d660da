"""From steps and feedback to the label of a trajectory.

`fold.py` follows one partition: `trajectory.py` is what it remembers of each, `store.py` how that is kept, and
`labelling.py` makes the label from the steps that `joining.py` joins into sequences.

What the `label` job and its topics are called.
"""

NAME = "label"
VERSION = "2"
"""Rises where the same inputs make another label: what is kept is then labelled anew. 2: labels carry text."""
JOB = f"{NAME}@{VERSION}"
CLOSURES, LABELS, CURATION = "closures", "labeled-trajectories", "curation"
