"""The parts of `bench/stream.py`: traffic, workers and the plain loop beside them, and what arrives when."""
