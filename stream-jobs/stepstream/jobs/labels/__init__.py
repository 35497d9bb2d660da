"""Label closed trajectories with rewards and training data.

`fold` reads the events of one partition and collects each trajectory in a `TrajectoryState`. `publish` decides when a
label is due. `build_label` makes it, with the steps that `sequences` and `conversations` join.
"""

NAME = "label"
VERSION = "3"
"""Increased when the same inputs give another label; saved trajectories are then labelled again. 2: text in labels.
3: no cost unless that of every call is known."""
JOB = f"{NAME}@{VERSION}"
