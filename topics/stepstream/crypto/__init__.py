"""Seal personal fields under a key of each person, and erase the keys."""
