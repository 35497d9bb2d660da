"""Test the worker process on a real broker: it waits, loads, refuses, swaps under load, drains, reports its status."""

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from engine_models import TransformersModel
from inference_workers import VersionPublisher, WorkerClient
from service_process import ServiceProcess
from stack_fixtures import with_settings
from waiting import wait_until

from stepstream.config import Settings
from stepstream.embedded.ports import free_block
from stepstream.jobs.verifiers import process_reward
from stepstream.jobs.verifiers.base import Case, Turn, Verdict
from stepstream.jobs.verifiers.options import VerifierContext
from stepstream.topics.events import new_message

MODEL = "worker-test"


@pytest.fixture(scope="module")
def settings(registry_settings: Settings) -> Settings:
    port = free_block(1)
    worker: dict[str, Any] = {"model": MODEL, "port": port, "worker_id": f"worker-{port}", "status_every_s": 0.3}
    return with_settings(registry_settings, inference=worker)


@pytest.fixture(scope="module")
def worker(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    log = tmp_path_factory.mktemp("log") / "worker.log"
    process = ServiceProcess("stepstream.services.inference", settings, lambda: True, log)
    process.launch()
    yield process
    if process.status is None:
        process.kill()


@pytest.fixture
def publisher(settings: Settings, tmp_path: Path) -> Iterator[VersionPublisher]:
    publisher = VersionPublisher(settings, tmp_path, MODEL)
    yield publisher
    publisher.close()


def test_a_worker_waits_loads_refuses_swaps_and_drains(
    worker: ServiceProcess, settings: Settings, publisher: VersionPublisher, tmp_path: Path
) -> None:
    """All stages use one process, since each start imports torch."""
    client = WorkerClient(settings)

    def status_is(state: str, version: int | None, newest: int | None) -> bool:
        statuses = publisher.statuses(settings.inference.worker_id)
        return bool(statuses) and (statuses[-1]["state"], statuses[-1]["version"], statuses[-1]["newest_version"]) == (
            state,
            version,
            newest,
        )

    # Without a checkpoint it listens, and names the model that it waits for.
    wait_until(lambda: f"waiting for a checkpoint of '{MODEL}'" in worker.log_text)
    assert client.get("/health")[0] == 503
    assert client.chat()[0] == 503
    wait_until(lambda: status_is("starting", None, None))

    # It loads the first checkpoint of its model and ignores other models.
    first = publisher.make(1, seed=1)
    publisher.publish(first | {"model": "another", "version": 9})
    publisher.publish(first)
    wait_until(lambda: client.version() == 1)
    prompt = client.chat()[1]["prompt_token_ids"]
    assert client.chat()[1]["choices"][0]["token_ids"] == TransformersModel(tmp_path / "v1").greedy(prompt, 12)
    assert client.chat(model="another")[0] == 404
    assert [verdict.category for verdict in step_verdicts(settings)] == [f"{MODEL}@1"] * 2
    wait_until(lambda: status_is("serving", 1, 1))

    # It refuses a file whose digest differs from the event, reports it, and serves the old version.
    damaged = publisher.make(2, seed=2)
    weights = tmp_path / "v2" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00")
    publisher.publish(damaged)
    wait_until(lambda: status_is("refused", 1, 2))
    reason = publisher.statuses(settings.inference.worker_id)[-1]["reason"]
    assert reason is not None
    assert "model.safetensors has sha256" in reason
    assert b"stepstream_inference_refused_checkpoints_total 1.0" in client.get("/metrics")[1]
    assert client.chat()[1]["choices"][0]["weight_versions"] == [{"version": 1, "start": 0, "end": 12}]

    # It swaps checkpoints in under load; no request fails.
    replies: list[tuple[int, dict[str, Any]]] = []
    stop = threading.Event()

    def agent() -> None:
        while not stop.is_set():
            replies.append(client.chat(temperature=2.0, max_tokens=200))

    agents = [threading.Thread(target=agent) for _ in range(4)]
    for thread in agents:
        thread.start()
    for version in (3, 4, 5):
        publisher.publish(publisher.make(version, seed=version))
        wait_until(lambda version=version: client.version() == version)  # type: ignore[misc]
        answered = len(replies)
        wait_until(lambda answered=answered: len(replies) >= answered + 4)  # type: ignore[misc]
    stop.set()
    for thread in agents:
        thread.join()
    assert {status for status, _ in replies} == {200}
    served = [reply["choices"][0]["weight_versions"] for _, reply in replies]
    assert {span["version"] for spans in served for span in spans} == {1, 3, 4, 5}
    assert client.chat()[1]["choices"][0]["token_ids"] == TransformersModel(tmp_path / "v5").greedy(prompt, 12)
    wait_until(lambda: status_is("serving", 5, 5))

    # After SIGTERM it finishes open requests.
    before = len(replies)
    requests: list[threading.Thread] = []

    def has_open_request() -> bool:
        """Return True if a request is in flight; send another one if the last has ended."""
        if not any(thread.is_alive() for thread in requests):
            requests.append(threading.Thread(target=lambda: replies.append(client.chat(max_tokens=450))))
            requests[-1].start()
        return bool(json.loads(client.get("/health")[1])["in_flight"] == 1)

    wait_until(has_open_request)
    assert worker.stop() == 0
    for thread in requests:
        thread.join()
    assert [status for status, _ in replies[before:]] == [200] * len(requests)
    assert publisher.statuses(settings.inference.worker_id)[-1]["state"] == "stopping"


def step_verdicts(settings: Settings) -> Sequence[Verdict]:
    """Verify two steps with the worker as the process reward model."""
    messages = [new_message(role="user", content="q:a+c"), new_message(role="assistant", content="get(a)")]
    prm = process_reward.make(
        {"model": MODEL, "url": f"http://127.0.0.1:{settings.inference.port}", "question": "q:a"},
        VerifierContext(settings),
    )
    verdicts = prm.verify(Case("t", "", "", turns=[Turn(0, messages), Turn(1, messages * 2)]))
    assert all(0 < verdict.value < 1 for verdict in verdicts)
    return verdicts


def test_a_port_in_use_stops_the_start(settings: Settings, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = ServiceProcess(
            "stepstream.services.inference",
            with_settings(settings, inference={"port": port}),
            lambda: True,
            tmp_path / "log",
        )
        process.launch()
        wait_until(lambda: process.status is not None)
    assert process.status == 1
    assert "set STEPSTREAM_INFERENCE_PORT" in process.log_text.splitlines()[-1]
