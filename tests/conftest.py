"""Fixtures that several kinds of tests share: parts of the embedded stack as real processes, on free ports."""

# tests/ is on pytest's pythonpath (pyproject.toml)
pytest_plugins = ["loop_fixtures", "stack_fixtures", "store_fixtures", "gateway_fixtures", "agents_fixtures"]
