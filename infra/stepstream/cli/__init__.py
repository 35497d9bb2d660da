"""The `stepstream` command."""
