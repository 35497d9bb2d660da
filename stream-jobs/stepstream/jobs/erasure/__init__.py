"""Erasing a person: what of theirs is where (`finding.py`), and the ways to make it go (`log.py`, `tables.py`).

`erasing.py` puts them in order. docs/decisions/erasure.md says why it is done like this.
"""
