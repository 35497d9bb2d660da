"""Connect to ClickHouse, migrate its tables (`migrations/`), insert records as rows, and export trajectories."""
