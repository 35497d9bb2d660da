"""Fixtures that several kinds of tests share: parts of the embedded stack as real processes, on free ports."""

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
    "gateway_fixtures",
    "agents_fixtures",
]

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("stepstream", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("stepstream")


# What starts processes comes first, with whole stacks before all: what is left for the end is short.
FOLDERS = ("faults", "end_to_end", "integration", "contract", "unit")
TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts folders in the order of `FOLDERS`; first of all comes the longest file, which builds from source."""

    def place(item: pytest.Item) -> tuple[bool, int]:
        return item.path.name != "test_examples.py", FOLDERS.index(item.path.relative_to(TESTS).parts[0])

    items.sort(key=place)


def pytest_configure(config: pytest.Config) -> None:
    """Gives tests that run side by side ports of their own: a free one is taken some time after it was looked for."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        share = len(ports.FREE_PORTS) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        first = ports.FREE_PORTS.start + int(worker.removeprefix("gw")) * share
        ports.FREE_PORTS = range(first, first + share)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one table of the skipped tests, with the way to run each."""
    skipped = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", ())]
    if lines := required_tools.summary(skipped):
        terminalreporter.section("skipped")
        for line in lines:
            terminalreporter.write_line(line)
