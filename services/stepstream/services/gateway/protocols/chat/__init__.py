"""Read OpenAI's Chat Completions."""
