"""Erase a person: find the person's records, destroy their keys, delete what is unencrypted, delete table rows.

`erase.py` runs these steps in order. docs/decisions/erasure.md gives the reasons.
"""
