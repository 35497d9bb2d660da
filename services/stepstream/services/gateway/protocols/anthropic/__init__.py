"""Speak Anthropic's Messages over Chat Completions."""
