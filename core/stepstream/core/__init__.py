"""Run processes and parse JSON: code that every layer uses and that knows no topic."""
