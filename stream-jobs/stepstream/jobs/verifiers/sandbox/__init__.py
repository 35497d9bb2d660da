"""Run untrusted code with limits of time, memory, output, files and processes, and without a network."""
