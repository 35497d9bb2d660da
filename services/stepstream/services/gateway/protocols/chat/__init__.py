"""Speak OpenAI's Chat Completions."""
