"""Build a tiny Llama-shaped model with a character tokenizer, and warm-start it in seconds."""
