"""From steps and feedback to the label of a trajectory.

`fold.py` follows one partition: `trajectory.py` is what it remembers of each, `store.py` how that is kept, and
`labelling.py` makes the label from the steps that `joining.py` joins into sequences.
"""
