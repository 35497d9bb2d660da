"""Compute one update of the weights from the chosen groups."""
