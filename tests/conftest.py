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


# Folders of tests that start processes, in the order in which they run; those of whole stacks take longest.
PROCESS_FOLDERS = ("faults", "end_to_end", "integration", "contract")
# They take minutes: two run a demo, one builds examples.
LONGEST = ("test_demo_model.py", "test_demo_control.py", "test_examples.py")
# They need a core for minutes, so they run one after the other.
BUSIEST = ("test_owners_of_govern.py", "test_owners_of_label.py", "test_owners_of_measure.py")
# Fixtures of the session whose processes cost a tenth of a core as long as they run, and the number of test processes
# that share the files with each: one alone would end last.
SHARED = {"broker_settings": ("log", 2), "registry_settings": ("log", 2), "store_settings": ("tables", 1)}
LAST = 0.9
"""Place of the last file that starts processes, where 1 is the end of the run: short tests end it."""
TESTS = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files, and group those that one test process must run.

    Unit tests are mixed among those that start processes and wait half of their time, so that no core is idle.
    """
    groups = shared_groups(items)
    places = file_places(list(dict.fromkeys(item.path.relative_to(TESTS) for item in items)))
    items.sort(key=lambda item: (item.path not in groups, places[item.path.relative_to(TESTS)]))
    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups.get(item.path, str(item.path.relative_to(TESTS)))))


def shared_groups(items: list[pytest.Item]) -> dict[Path, str]:
    """Return the group of each file that uses a fixture of `SHARED`."""
    used: dict[Path, tuple[str, int]] = {}
    for item in items:
        shared = [SHARED[name] for name in getattr(item, "fixturenames", ()) if name in SHARED]
        if shared:
            used[item.path] = min(shared)
    return {path: f"{name}-{i % processes}" for i, (path, (name, processes)) in enumerate(sorted(used.items()))}


def file_places(files: list[Path]) -> dict[Path, tuple[float, str]]:
    """Return the place of each test file in the run, from 0 to 1, and its path."""

    def order(file: Path) -> tuple[bool, int]:
        return file.name not in LONGEST, PROCESS_FOLDERS.index(file.parts[0])

    waiting = sorted((file for file in files if file.parts[0] in PROCESS_FOLDERS), key=order)
    busiest = [file for file in files if file.name in BUSIEST]
    short = [file for file in files if file not in {*waiting, *busiest}]
    shares = ((waiting, LAST), (busiest, LAST), (short, 1.0))
    return {file: (end * i / len(part), str(file)) for part, end in shares for i, file in enumerate(part)}


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
