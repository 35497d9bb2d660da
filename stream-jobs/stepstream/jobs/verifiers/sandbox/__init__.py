"""Runs code that nobody trusts: limits of time, memory, output, files and processes, and no network."""
