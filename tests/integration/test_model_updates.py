"""Test the public interface of model updates on a real broker: the SDK's subscription and `stepstream watch`."""

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from command_line import stepstream
from confluent_kafka import Producer
from stack_fixtures import with_settings
from waiting import TIMEOUT_S, wait_until

from stepstream import sdk
from stepstream.config import Settings, environment_of
from stepstream.topics.catalogue import CHECKPOINTS, WORKER_STATUS
from stepstream.topics.client import client_config
from stepstream.topics.codec import Codec
from stepstream.topics.events import Checkpoint, Track, new_checkpoint, new_served_version, new_worker_status
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer

pytest_plugins = ["node_project"]


class Model:
    """A model whose versions and worker the test writes, and whose decisions the commands write."""

    def __init__(self, settings: Settings, codec: Codec) -> None:
        self.name = f"m{uuid.uuid4().hex}"
        self.settings, self._codec = settings, codec
        self._producer = EventProducer(settings.kafka, codec, "test")

    def checkpoint(self, version: int) -> Checkpoint:
        return new_checkpoint(
            event_id=new_event_id(),
            occurred_at_us=now_us(),
            model=self.name,
            version=version,
            uri="file:///nowhere",
            weights_sha256="",
            code_version="test",
        )

    def publish(self, version: int) -> None:
        self._producer.send(CHECKPOINTS, f"{self.name}@{version}", self.checkpoint(version))
        self._producer.flush(TIMEOUT_S)

    def publish_in_transaction(self, version: int) -> None:
        """Publish as a fenced learner does: a commit marker follows the record."""
        producer = Producer(client_config(self.settings.kafka) | {"transactional.id": self.name})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        value = self._codec.encode(CHECKPOINTS, self.checkpoint(version))
        producer.produce(CHECKPOINTS, value, f"{self.name}@{version}")
        producer.commit_transaction(TIMEOUT_S)

    def serve(self, tracks: dict[Track, int]) -> None:
        status = new_worker_status(
            event_id=new_event_id(),
            occurred_at_us=1,  # the clock of the worker is behind
            worker_id=f"{self.name}-w",
            engine="torch",
            url="http://127.0.0.1:1",
            model=self.name,
            state="serving",
            tracks=[new_served_version(track=track, version=version) for track, version in tracks.items()],
        )
        self._producer.send(WORKER_STATUS, status["worker_id"], status)
        self._producer.flush(TIMEOUT_S)

    def run(self, action: str, version: int | None = None, *words: str) -> None:
        name = self.name if version is None else f"{self.name}@{version}"
        result = stepstream(self.settings, "models", action, name, *words)
        assert result.status == 0, result.stderr

    def change_all(self, seen: Callable[[int], object]) -> None:
        """Make one change of each kind; wait for each, because topics have no common order."""
        self.publish(3)
        seen(1)
        self.run("canary", 1, "--share", "0.25")
        seen(2)
        self.serve({"stable": 3, "canary": 1})
        seen(3)
        self.run("rollback")
        seen(4)

    def check(self, lines: list[dict[str, Any]]) -> None:
        """Check the state and the changes of `change_all`."""
        state, serving, published, canary, both, rollback = lines
        assert (state["change"], state["stable"], state["newest"], state["follows_newest"]) == ("state", 2, 2, True)
        assert (serving["change"], serving["tracks"], serving["state"]) == ("worker", {"stable": 2}, "serving")
        assert (published["change"], published["version"], published["stable"]) == ("published", 3, 3)
        assert (canary["change"], canary["version"], canary["canary_share"]) == ("canary", 1, 0.25)
        assert canary["author"]
        assert (both["change"], both["tracks"]) == ("worker", {"stable": 3, "canary": 1})
        assert (rollback["change"], rollback["stable"], "canary" in rollback) == ("rollback", 3, False)


@pytest.fixture
def model(registry_settings: Settings) -> Iterator[Model]:
    # A worker with one status stays live during the test.
    settings = with_settings(registry_settings, inference={"status_every_s": 60.0})
    with closing(Codec(settings)) as codec:
        made = Model(settings, codec)
        made.publish(1)
        made.publish_in_transaction(2)
        made.serve({"stable": 2})
        yield made


def test_a_subscription_yields_the_state_then_each_change(model: Model) -> None:
    with sdk.subscribe_models(model.name, settings=model.settings) as updates:
        lines = [next(updates).fields(), next(updates).fields()]
        model.change_all(lambda _count: lines.append(next(updates).fields()))
        model.check(lines)
        threading.Timer(0.1, updates.close).start()
        assert list(updates) == []


def test_watch_prints_the_state_then_each_change(model: Model, tmp_path: Path) -> None:
    follow([sys.executable, "-m", "stepstream.cli.main", "watch", "--model", model.name, "--json"], model, tmp_path)


def test_the_node_example_prints_the_same(model: Model, node_project: Path) -> None:
    follow(["node", "models.js", model.name], model, node_project)


def test_watch_once_prints_the_state_and_ends(model: Model) -> None:
    result = stepstream(model.settings, "watch", "--model", model.name, "--once")
    state, serving = result.stdout.splitlines()
    assert state.split() == ["now", "state", f"{model.name}:", "stable", "2", "(follows", "the", "newest)"]
    assert serving.endswith(f"worker     {model.name}: {model.name}-w serving: stable 2")


def follow(command: list[str], model: Model, folder: Path) -> None:
    """Run a program that prints updates as lines of JSON, make changes, and check its lines."""
    environment = {**os.environ, **environment_of(model.settings)}
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        lines: list[dict[str, Any]] = []
        assert process.stdout is not None
        output = process.stdout
        reader = threading.Thread(target=lambda: lines.extend(map(json.loads, output)))
        reader.start()
        try:
            wait_until(lambda: len(lines) == 2 or process.poll() is not None, lambda: str(lines))
            model.change_all(lambda count: wait_until(lambda: len(lines) == 2 + count, lambda: str(lines)))
        finally:
            process.terminate()
            reader.join()
    model.check(lines)
