"""Test the commands that decide what serves a model, with a real broker and registry and hand-written worker states."""

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from command_line import CommandResult, stepstream
from stack_fixtures import with_settings
from waiting import TIMEOUT_S

from stepstream.config import Settings
from stepstream.topics.catalogue import CHECKPOINTS, WORKER_STATUS
from stepstream.topics.codec import Codec
from stepstream.topics.events import Track, new_checkpoint, new_served_version, new_worker_status
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer


class Model:
    """A model with versions 1 to 3, whose workers' states the test writes."""

    def __init__(self, settings: Settings, producer: EventProducer) -> None:
        self.name = f"m{uuid.uuid4().hex}"
        self._settings, self._producer = settings, producer
        for version in (1, 2, 3):
            checkpoint = new_checkpoint(
                event_id=new_event_id(),
                occurred_at_us=now_us(),
                model=self.name,
                version=version,
                parent_version=version - 1 or None,
                uri="file:///nowhere",
                weights_sha256="",
                code_version="test",
            )
            producer.send(CHECKPOINTS, f"{self.name}@{version}", checkpoint)
        producer.flush(TIMEOUT_S)

    def run(self, action: str, version: int | None = None, *words: str) -> CommandResult:
        name = self.name if version is None else f"{self.name}@{version}"
        return stepstream(self._settings, "models", action, name, *words)

    def facts(self, action: str, version: int | None = None, *words: str) -> dict[str, Any]:
        result = self.run(action, version, *words, "--json")
        assert result.status == 0, result.stderr
        facts: dict[str, Any] = json.loads(result.stdout)
        return facts

    def report(self, worker: str, tracks: dict[Track, int]) -> None:
        """Write a worker's state."""
        state = new_worker_status(
            event_id=new_event_id(),
            occurred_at_us=1,  # the clock of the worker is behind
            worker_id=f"{self.name}-{worker}",
            engine="torch",
            url="http://127.0.0.1:1",
            model=self.name,
            version=tracks.get("stable"),
            state="serving",
            tracks=[new_served_version(track=track, version=version) for track, version in tracks.items()],
        )
        self._producer.send(WORKER_STATUS, state["worker_id"], state)
        self._producer.flush(TIMEOUT_S)


@pytest.fixture
def model(registry_settings: Settings) -> Iterator[Model]:
    # A worker with one status stays live during the test.
    settings = with_settings(registry_settings, inference={"status_every_s": 60.0})
    with closing(Codec(settings)) as codec:
        yield Model(settings, EventProducer(settings.kafka, codec, "test"))


def test_a_version_is_put_out_and_taken_back(model: Model) -> None:
    facts = model.facts("promote", 2, "--reason", "best on the held-out tasks")
    assert (facts["before"]["stable"], facts["before"]["follows_newest"]) == (3, True)
    assert (facts["after"]["stable"], facts["after"]["follows_newest"]) == (2, False)
    assert facts["reason"] == "best on the held-out tasks"
    assert facts["author"]

    text = model.run("canary", 3, "--share", "0.1")
    assert text.stdout.splitlines() == [
        f"canary: {model.name}: stable 2, canary 3 on 0.1 of trajectories",
        "before: stable 2",
    ]
    assert model.facts("promote", 3)["after"]["canary"] is None
    assert model.facts("rollback")["after"]["stable"] == 2
    assert model.facts("pin", 1)["after"]["pinned"] == [1]
    assert model.facts("unpin", 1)["after"]["pinned"] == []
    assert model.facts("follow")["after"]["stable"] == 3


def test_impossible_decisions_are_refused_and_change_nothing(model: Model) -> None:
    for action, version, words, message in (
        ("promote", 9, (), "was never published"),
        ("canary", 3, ("--share", "0.1"), "is the stable version already"),
        ("canary", 2, ("--share", "1.5"), "is not in (0, 1]"),
        ("canary", None, ("--stop",), "has no canary"),
        ("unpin", 1, (), "is not pinned"),
    ):
        refused = model.run(action, version, *words)
        assert refused.status == 1
        assert message in refused.stderr
    assert model.run("promote").status == 2
    assert model.run("canary", 2).status == 2
    assert model.run("status").stdout.startswith(f"{model.name}: stable 3 (follows the newest)")


def test_waiting_names_the_workers_that_do_not_serve_the_decision(model: Model) -> None:
    alone = model.run("promote", 2, "--wait", "0")
    assert alone.status == 1
    assert "no worker of" in alone.stderr

    model.report("a", {"stable": 2})
    model.report("b", {"stable": 3})
    behind = model.run("promote", 2, "--wait", "0.2")
    assert behind.status == 1
    assert behind.stderr.splitlines() == [f"{model.name}-b: stable is 3, not 2"]
    assert json.loads(model.run("status", None, "--json").stdout)["problems"] == {
        f"{model.name}-b": "stable is 3, not 2"
    }

    model.report("b", {"stable": 2})
    assert model.facts("promote", 2, "--wait", "5")["problems"] == {}
    status = model.run("status")
    assert status.status == 0
    assert "decided by" in status.stdout
    assert f"{model.name}-a" in status.stdout
