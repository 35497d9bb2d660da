"""Implement the `stepstream` command, one module for each subcommand or group."""
