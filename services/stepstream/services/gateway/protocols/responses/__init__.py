"""Speak OpenAI's Responses over Chat Completions."""
