"""Seal personal fields under a key of each person, and destroy the keys of erased persons."""
