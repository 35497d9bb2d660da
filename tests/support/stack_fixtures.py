"""Provide parts of the embedded stack as real processes, with free ports and their own data."""

import fcntl
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import TIMEOUT_S

from stepstream.config import Settings, load
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack

START_S = 900.0
"""Longest start of a stack: a dozen processes, which together wait for each other and import for minutes of a core."""
REFRESH_S = 30
"""Time between two refreshes of rollups; at the default, an idle store costs a tenth of a slow core."""


def with_settings(settings: Settings, **sections: dict[str, Any]) -> Settings:
    """Return the settings with some fields replaced: `with_settings(settings, label={"idle_timeout_s": 1.0})`."""
    return settings.model_copy(
        update={name: getattr(settings, name).model_copy(update=fields) for name, fields in sections.items()}
    )


def with_long_deadlines(settings: Settings) -> Settings:
    """Return the settings with deadlines for a loaded machine that may pause for many seconds.

    A test of a deadline sets its own.
    """
    return with_settings(
        settings,
        stack={"start_deadline_s": START_S},
        kafka={"deadline_s": TIMEOUT_S},
        schema_registry={"deadline_s": TIMEOUT_S, "timeout_s": 60.0},
        registry={"write_timeout_s": 60.0},
        clickhouse={"deadline_s": TIMEOUT_S},
        # A restart of a killed job may take longer than the default; it must not close trajectories.
        label={"end_grace_s": TIMEOUT_S},
    )


@pytest.fixture(scope="session")
def base_settings() -> Settings:
    """The defaults for a tiny model, with long deadlines; of the environment only Kafka's jars' folder counts."""
    home = {name: value for name, value in os.environ.items() if name == "STEPSTREAM_BROKER_HOME"}
    tiny = {"STEPSTREAM_LEARNER_PRESET": "tiny", "STEPSTREAM_INFERENCE_MAX_MODEL_LEN": "512"}
    return with_settings(with_long_deadlines(load({**home, **tiny})), clickhouse={"refresh_s": REFRESH_S})


@pytest.fixture(scope="session")
def with_topics_and_tables(
    base_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Settings], Settings]:
    """Return a function that gives settings a log with the catalogue's topics, and tables, before their first start.

    A broker takes longer to make a hundred partitions, and a store to apply all migrations, than most tests take. So
    all test processes copy one log and one store. `test_stack.py` and others test that a stack makes both itself.
    """
    data = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        data = data.parent
    made = data / "made"
    with (data / "made.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            with Stack(isolated(base_settings, data / "applied"), ["broker", "registry", "store"]) as stack:
                pass
            unfinished = data / "unfinished"
            unfinished.mkdir()
            for name in ("kafka", "store"):
                shutil.move(stack.settings.paths.data / name, unfinished / name)
            unfinished.rename(made)

    def give(settings: Settings) -> Settings:
        shutil.copytree(made, settings.paths.data, symlinks=True, dirs_exist_ok=True)
        return settings

    return give


@pytest.fixture(scope="session")
def broker_settings(
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Settings]:
    """Settings of a running broker that the session shares: use your own topics."""
    with Stack(with_topics_and_tables(isolated(base_settings, tmp_path_factory.mktemp("broker"))), ["broker"]) as stack:
        yield stack.settings


@pytest.fixture(scope="session")
def registry_settings(
    base_settings: Settings, broker_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Settings]:
    """As `broker_settings`, with a registry and the catalogue's topics: use your own keys."""
    settings = isolated(base_settings, tmp_path_factory.mktemp("registry"))
    settings = with_settings(settings, kafka={"bootstrap": broker_settings.kafka.bootstrap})
    with Stack(settings, ["broker", "registry"]) as stack:
        yield stack.settings


@pytest.fixture
def stack_factory(
    base_settings: Settings, with_topics_and_tables: Callable[[Settings], Settings], tmp_path: Path
) -> Iterator[Callable[..., Stack]]:
    """Start a stack of the named processes: `stack_factory(["broker"], label={"idle_timeout_s": 1.0})`.

    `settings=` of an earlier stack reuses its data and ports; `deferred=` names processes that are not started.
    """
    started: list[Stack] = []

    def start(
        processes: Collection[str] | None = None,
        settings: Settings | None = None,
        deferred: Collection[str] = (),
        **sections: dict[str, Any],
    ) -> Stack:
        if settings is None:
            settings = with_topics_and_tables(isolated(base_settings, tmp_path / f"stack-{len(started)}"))
        stack = Stack(with_settings(settings, **sections), processes, deferred=deferred)
        started.append(stack)
        stack.start()
        return stack

    yield start
    for stack in reversed(started):
        stack.stop()
