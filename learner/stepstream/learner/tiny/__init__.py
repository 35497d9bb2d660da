"""A tiny Llama-shaped model of our own: built, tokenised by character, and warm-started in seconds."""
