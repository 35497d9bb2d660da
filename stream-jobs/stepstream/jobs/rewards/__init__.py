"""What a trajectory is worth: the specification (`spec.py`), which one rules (`specifications.py`), and the terms."""
