"""Fixtures that run parts of the embedded stack as real processes, on free ports and data of their own."""

import fcntl
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S

from stepstream.config import Settings, load
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack


def changed(settings: Settings, **sections: dict[str, Any]) -> Settings:
    """The settings with some fields replaced: `changed(settings, label={"idle_timeout_s": 1.0})`."""
    return settings.model_copy(
        update={name: getattr(settings, name).model_copy(update=fields) for name, fields in sections.items()}
    )


def unhurried(settings: Settings) -> Settings:
    """The settings for a machine that may stand still for many seconds, and that does more than this stack.

    Where a deadline is what a test is about, it sets its own.
    """
    return changed(
        settings,
        stack={"start_deadline_s": PATIENCE_S},
        broker={"session_timeout_s": 20.0},
        kafka={"deadline_s": PATIENCE_S},
        schema_registry={"deadline_s": PATIENCE_S, "timeout_s": 60.0},
        registry={"write_timeout_s": 60.0},
        clickhouse={"deadline_s": PATIENCE_S},
        # A job without work asks as often for more; by default a stack's jobs take a tenth of a core with that.
        jobs={"within_s": 0.05},
        # A job that was killed may be away for longer than steps are waited for: that is to close no trajectory.
        label={"end_grace_s": PATIENCE_S},
    )


@pytest.fixture(scope="session")
def base_settings() -> Settings:
    """The defaults, unhurried, whatever the caller's environment says but for where Kafka's jars are."""
    home = {name: value for name, value in os.environ.items() if name == "STEPSTREAM_BROKER_HOME"}
    return unhurried(load(home))


@pytest.fixture(scope="session")
def with_topics(base_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Settings], Settings]:
    """Gives settings, before their stack's first start, a log in which the catalogue is applied already.

    Making a hundred partitions takes a broker longer than all else that it does for most tests, so it is done once, for
    whoever runs beside this session too, and copied. That a stack makes them itself is for `test_stack.py` and others.
    """
    data = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        data = data.parent
    made = data / "topics"
    with (data / "topics.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            with Stack(isolated(base_settings, data / "applied"), ["broker", "registry"]) as stack:
                pass
            shutil.move(stack.settings.paths.data / "kafka", made)

    def give(settings: Settings) -> Settings:
        shutil.copytree(made, settings.paths.data / "kafka")
        return settings

    return give


@pytest.fixture(scope="session")
def broker_settings(
    base_settings: Settings, with_topics: Callable[[Settings], Settings], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Settings]:
    """Settings whose Kafka is a running broker, shared by the session: use topics of your own."""
    with Stack(with_topics(isolated(base_settings, tmp_path_factory.mktemp("broker"))), ["broker"]) as stack:
        yield stack.settings


@pytest.fixture(scope="session")
def registry_settings(
    base_settings: Settings, broker_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Settings]:
    """As `broker_settings`, on the same broker, with a registry and the catalogue applied: use keys of your own."""
    settings = isolated(base_settings, tmp_path_factory.mktemp("registry"))
    settings = changed(settings, kafka={"bootstrap": broker_settings.kafka.bootstrap})
    with Stack(settings, ["broker", "registry"]) as stack:
        yield stack.settings


@pytest.fixture
def stack_factory(
    base_settings: Settings, with_topics: Callable[[Settings], Settings], tmp_path: Path
) -> Iterator[Callable[..., Stack]]:
    """Starts a stack of the named processes: `stack_factory(["broker"], label={"idle_timeout_s": 1.0})`.

    `settings=` of an earlier stack gives its data and ports again; `deferred=` names processes to leave down.
    """
    started: list[Stack] = []

    def start(
        processes: Collection[str] | None = None,
        settings: Settings | None = None,
        deferred: Collection[str] = (),
        **sections: dict[str, Any],
    ) -> Stack:
        if settings is None:
            settings = with_topics(isolated(base_settings, tmp_path / f"stack-{len(started)}"))
        stack = Stack(changed(settings, **sections), processes, deferred=deferred)
        started.append(stack)
        stack.start()
        return stack

    yield start
    for stack in reversed(started):
        stack.stop()
