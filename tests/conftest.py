"""Fixtures that several kinds of tests share: parts of the embedded stack as real processes, on free ports."""

pytest_plugins = ["stack_fixtures", "store_fixtures", "gateway_fixtures"]  # tests/ is on pytest's pythonpath (pyproject.toml)
