"""Load the shared fixtures, order the tests, split the ports among test processes, and summarise skips."""

import os
import re
import time
from functools import cache
from pathlib import Path

import pytest
import required_tools
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from stepstream.embedded import ports

# `tests/support` is on the `pythonpath` that pyproject.toml gives to pytest.
pytest_plugins = [
    "progress",
    "stack_fixtures",
    "loop_fixtures",
    "store_fixtures",
    "clickhouse_http",
    "fact_fixtures",
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
# They take minutes: one builds examples, one runs the loop twice.
LONGEST = ("test_examples.py", "test_reward_hack.py")
# They are marked `repeats` and run last. They need a core for minutes.
REPEATS = (
    *("test_demo_control.py", "test_demo_model.py", "test_loop_survives.py", "test_vllm_killed_while_loading.py"),
    *("test_owners_of_govern.py", "test_owners_of_label.py", "test_owners_of_measure.py"),
)
# Minutes after which a run begins no more of them; empty: they always run. `make test` sets it.
REPEATS_MINUTES = "TEST_REPEATS_MINUTES"
BEGAN = "TESTS_BEGAN"
# Fixtures of the session whose processes cost a tenth of a core as long as they run, with those that use them, and the
# number of test processes that share the files with each: all would start their own, and one alone would end last.
SHARED = {
    "log": (r"\b(broker_settings|registry_settings|console_world|recorded: Recorded)\b", 2),
    "tables": (r"\b(store_settings|own_database|view_settings|view_client)\b", 1),
}
LAST = 0.9
"""Place of the last file that starts processes, where 1 is the end of the run: short tests end it."""
TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mix unit tests among those that wait for processes, so that no core is idle."""
    places = file_places(list(dict.fromkeys(item.path.relative_to(TESTS) for item in items)))
    shared = shared_groups()
    items.sort(key=lambda item: (item.path not in shared, places[item.path.relative_to(TESTS)]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """With `--dist loadfile`, give all files of a group of `shared_groups` to one test process."""
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


class GroupScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Gives each test process whole files, and takes the files of a group for one."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        self._groups = {str(path.relative_to(config.rootpath)): group for path, group in shared_groups().items()}

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return self._groups.get(file, file)


@cache
def shared_groups() -> dict[Path, str]:
    """Return the group of each test file that names a fixture of `SHARED`."""
    groups: dict[Path, str] = {}
    texts = {
        path: path.read_text("utf-8")
        for folder in PROCESS_FOLDERS
        for path in sorted(TESTS.glob(f"{folder}/*.py"))
        if path.name not in REPEATS
    }
    for name, (fixtures, processes) in SHARED.items():
        files = [path for path, text in texts.items() if path not in groups and re.search(fixtures, text)]
        groups |= {path: f"{name}-{i % processes}" for i, path in enumerate(files)}
    return groups


def file_places(files: list[Path]) -> dict[Path, tuple[float, str]]:
    """Return the place of each test file in the run, from 0 to 1, and its path."""

    def order(file: Path) -> tuple[bool, int]:
        return file.name not in LONGEST, PROCESS_FOLDERS.index(file.parts[0])

    repeats = sorted((file for file in files if file.name in REPEATS), key=lambda file: REPEATS.index(file.name))
    rest = [file for file in files if file not in repeats]
    waiting = sorted((file for file in rest if file.parts[0] in PROCESS_FOLDERS), key=order)
    short = [file for file in rest if file not in waiting]
    places = {
        file: (end * i / len(part), str(file))
        for part, end in ((waiting, LAST), (short, 1.0))
        for i, file in enumerate(part)
    }
    return places | {file: (1.0 + i, str(file)) for i, file in enumerate(repeats)}


def pytest_configure(config: pytest.Config) -> None:
    """Give each parallel test process its own range of ports, since a port found free is bound only later."""
    os.environ.setdefault(BEGAN, str(time.time()))  # the processes of a parallel run inherit it
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        share = len(ports.FREE_PORTS) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        first = ports.FREE_PORTS.start + int(worker.removeprefix("gw")) * share
        ports.FREE_PORTS = range(first, first + share)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """On a slow machine, leave out what repeats other tests: a run must end within 90 minutes."""
    limit = os.environ.get(REPEATS_MINUTES, "")
    if limit and item.get_closest_marker("repeats") is not None:
        minutes = (time.time() - float(os.environ[BEGAN])) / 60
        if minutes > float(limit):
            pytest.skip(f"needs a faster machine: `pytest {item.path.relative_to(TESTS.parent)}` runs it")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one table of the skipped tests with the remedy of each."""
    skipped = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", ())]
    if lines := required_tools.summary(skipped):
        terminalreporter.section("skipped")
        for line in lines:
            terminalreporter.write_line(line)
