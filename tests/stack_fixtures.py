"""Fixtures that run parts of the embedded stack as real processes, on free ports and data of their own."""

from collections.abc import Callable, Iterator, Sequence
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
def broker_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings whose Kafka is a running broker, shared by the session: use topics of your own."""
    settings = isolated(load({}), tmp_path_factory.mktemp("broker"))
    with Stack(settings, ["broker"]) as stack:
        yield stack.settings


@pytest.fixture(scope="session")
def registry_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Settings whose Kafka and schema registry run, catalogue applied, shared by the session: use keys of your own."""
    settings = isolated(load({}), tmp_path_factory.mktemp("registry"))
    with Stack(settings, ["broker", "registry"]) as stack:
        yield stack.settings


@pytest.fixture
def stack_factory(tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """Starts a stack of the named processes: `stack_factory(["broker"], label={"idle_timeout_s": 1.0})`."""
    started: list[Stack] = []

    def start(processes: Sequence[str] | None = None, **sections: dict[str, Any]) -> Stack:
        settings = changed(isolated(load({}), tmp_path / f"stack-{len(started)}"), **sections)
        stack = Stack(settings, processes)
        started.append(stack)
        stack.start()
        return stack

    yield start
    for stack in started:
        stack.stop()
