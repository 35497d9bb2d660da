"""Record the calls of the stock `openai` and `anthropic` clients as steps."""
