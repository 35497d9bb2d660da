"""Inference workers: an engine that generates and swaps weights while it serves, behind OpenAI's protocol."""
