"""Describe, sign, store and fetch the files of published versions; decide which version serves a trajectory."""
