"""Load, run, shard and save the trained model and its critic."""
