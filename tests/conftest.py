"""Load the shared fixtures, order the tests, split the ports among test processes, and summarise skips."""

import os
from pathlib import Path

import pytest
import required_tools
from hypothesis import HealthCheck, settings

from stepstream.embedded import ports

# `tests/support` is on the `pythonpath` that pyproject.toml gives to pytest.
pytest_plugins = [
    "progress",
    "stack_fixtures",
    "loop_fixtures",
    "store_fixtures",
    "clickhouse_http",
    "view_rows",
    "gateway_fixtures",
    "agents_fixtures",
    "node_project",
    "browser",
    "console_packages",
    "console_world",
]

# No deadline: the time of an example depends on the machine's load.
settings.register_profile("stepstream", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("stepstream")


# Tests that start processes run first, those of whole stacks before all, so that short tests end the run.
FOLDERS = ("faults", "end_to_end", "integration", "contract", "unit")
# They take minutes: one trains a real model behind vLLM, one builds examples, three run thousands of schedules. The
# others need no stack, which would take time from the first.
LONGEST = (
    "test_demo_model.py",
    "test_examples.py",
    "test_owners_of_govern.py",
    "test_owners_of_label.py",
    "test_owners_of_measure.py",
)
TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order tests by `FOLDERS`, after the longest files."""

    def order(item: pytest.Item) -> tuple[bool, int]:
        return item.path.name not in LONGEST, FOLDERS.index(item.path.relative_to(TESTS).parts[0])

    items.sort(key=order)


def pytest_configure(config: pytest.Config) -> None:
    """Give each parallel test process its own range of ports, since a port found free is bound only later."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        share = len(ports.FREE_PORTS) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        first = ports.FREE_PORTS.start + int(worker.removeprefix("gw")) * share
        ports.FREE_PORTS = range(first, first + share)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one table of the skipped tests with the remedy of each."""
    skipped = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", ())]
    if lines := required_tools.summary(skipped):
        terminalreporter.section("skipped")
        for line in lines:
            terminalreporter.write_line(line)
