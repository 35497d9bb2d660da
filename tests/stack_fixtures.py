"""Fixtures that run parts of the embedded stack as real processes, on free ports and data of their own."""

import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from stepstream.config import Settings, load
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack


def changed(settings: Settings, **sections: dict[str, Any]) -> Settings:
    """The settings with some fields replaced: `changed(settings, label={"idle_timeout_s": 1.0})`."""
    return settings.model_copy(
        update={name: getattr(settings, name).model_copy(update=fields) for name, fields in sections.items()}
    )


@pytest.fixture(scope="session")
def base_settings() -> Settings:
    """The defaults, whatever the caller's environment says, but for where Kafka's jars are."""
    home = {name: value for name, value in os.environ.items() if name == "STEPSTREAM_BROKER_HOME"}
    return load(home)


@pytest.fixture(scope="session")
def broker_settings(base_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings whose Kafka is a running broker, shared by the session: use topics of your own."""
    with Stack(isolated(base_settings, tmp_path_factory.mktemp("broker")), ["broker"]) as stack:
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
def stack_factory(base_settings: Settings, tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """Starts a stack of the named processes: `stack_factory(["broker"], label={"idle_timeout_s": 1.0})`.

    `settings=` of an earlier stack gives its data and ports again; `held=` names processes to leave down.
    """
    started: list[Stack] = []

    def start(
        processes: Collection[str] | None = None,
        settings: Settings | None = None,
        held: Collection[str] = (),
        **sections: dict[str, Any],
    ) -> Stack:
        if settings is None:
            settings = isolated(base_settings, tmp_path / f"stack-{len(started)}")
        stack = Stack(changed(settings, **sections), processes, held=held)
        started.append(stack)
        stack.start()
        return stack

    yield start
    for stack in reversed(started):
        stack.stop()
