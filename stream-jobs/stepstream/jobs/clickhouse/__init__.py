"""ClickHouse: its tables (`migrations/`, `migrate.py`), records as their rows, and trajectories out of it again."""
