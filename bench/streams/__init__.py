"""Provide the parts of `bench/stream.py`: traffic, workers, the plain loop and arrival times."""
