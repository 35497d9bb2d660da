"""Read OpenAI's Responses, and translate it to Chat Completions and back."""
