"""Read Anthropic's Messages, and translate it to Chat Completions and back."""
