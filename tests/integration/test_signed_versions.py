"""Test that a worker with trusted keys serves no version that none of them signed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_models import TransformersModel
from inference_workers import VersionPublisher, WorkerClient
from service_process import ServiceProcess
from stack_fixtures import with_settings
from waiting import wait_until

from stepstream.config import Settings
from stepstream.crypto.signatures import create_key, load_key
from stepstream.embedded.ports import free_block
from stepstream.topics.events import Checkpoint
from stepstream.versions.signing import sign

MODEL = "signed-test"


class Learner:
    """Signs versions with a key of its own."""

    def __init__(self, key: Path) -> None:
        self.public_key = create_key(key)
        self._key = load_key(key)

    def signed(self, checkpoint: Checkpoint) -> Checkpoint:
        return {**checkpoint, "signatures": [sign(checkpoint, self._key)]}


@pytest.fixture
def trusted(tmp_path: Path) -> Learner:
    return Learner(tmp_path / "trusted.pem")


@pytest.fixture
def settings(registry_settings: Settings, trusted: Learner, tmp_path: Path) -> Settings:
    port = free_block(1)
    retired = Learner(tmp_path / "retired.pem")  # the setting takes several keys
    worker = {"model": MODEL, "port": port, "worker_id": f"signed-{port}", "status_every_s": 0.3}
    return with_settings(
        registry_settings, inference=worker | {"trusted_keys": [retired.public_key, trusted.public_key]}
    )


@pytest.fixture
def worker(settings: Settings, tmp_path: Path) -> Iterator[ServiceProcess]:
    process = ServiceProcess("stepstream.services.inference", settings, lambda: True, tmp_path / "worker.log")
    process.launch()
    yield process
    process.kill()


@pytest.fixture
def publisher(settings: Settings, tmp_path: Path) -> Iterator[VersionPublisher]:
    publisher = VersionPublisher(settings, tmp_path, MODEL)
    yield publisher
    publisher.close()


@pytest.mark.usefixtures("worker")
def test_a_worker_serves_only_what_a_trusted_key_signed(
    settings: Settings, publisher: VersionPublisher, trusted: Learner, tmp_path: Path
) -> None:
    """All stages use one process, since each start imports torch."""
    client, stranger = WorkerClient(settings), Learner(tmp_path / "stranger.pem")

    def is_refused(served: int | None, newest: int, reason: str) -> bool:
        statuses = publisher.statuses(settings.inference.worker_id)
        if not statuses or statuses[-1]["newest_version"] != newest or statuses[-1]["state"] != "refused":
            return False
        assert reason in (statuses[-1]["reason"] or "")
        assert statuses[-1]["version"] == served
        return True

    # The first version is unsigned: the worker serves nothing rather than that.
    publisher.publish(publisher.make(1, seed=1))
    wait_until(lambda: is_refused(None, 1, f"{MODEL}@1: no trusted key signed it, but nobody"))
    assert client.chat()[0] == 503

    first = trusted.signed(publisher.make(2, seed=2))
    publisher.publish(first)
    wait_until(lambda: client.version() == 2)
    expected = TransformersModel(tmp_path / "v2").greedy(client.chat()[1]["prompt_token_ids"], 12)

    unsigned = publisher.make(3, seed=3)
    of_a_stranger = stranger.signed(publisher.make(4, seed=4))
    replayed: Checkpoint = {**publisher.make(5, seed=5), "signatures": first["signatures"]}
    changed = trusted.signed(publisher.make(6, seed=6))
    changed["files"] = publisher.make(7, seed=7)["files"]
    for offered, reason in (
        (unsigned, "no trusted key signed it, but nobody"),
        (of_a_stranger, f"no trusted key signed it, but {of_a_stranger['signatures'][0]['key_id']}"),
        (replayed, f"its signature by key {first['signatures'][0]['key_id']} is wrong"),
        (changed, f"its signature by key {first['signatures'][0]['key_id']} is wrong"),
    ):
        publisher.publish(offered)
        wait_until(
            lambda offered=offered, reason=reason: is_refused(2, offered["version"], reason)  # type: ignore[misc]
        )
        choice = client.chat()[1]["choices"][0]
        assert choice["weight_versions"] == [{"version": 2, "start": 0, "end": len(choice["token_ids"])}]
        assert choice["token_ids"] == expected

    publisher.publish(trusted.signed(publisher.make(8, seed=8)))
    wait_until(lambda: client.version() == 8)
    assert publisher.statuses(settings.inference.worker_id)[-1]["reason"] is None
