"""Show what a control policy would do: on a synthetic fleet, or on recorded snapshots. Pure."""
