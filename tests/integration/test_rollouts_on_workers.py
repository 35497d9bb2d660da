"""Test that two workers, and a restarted one, serve what each command decides, seconds after it."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from command_line import stepstream
from inference_workers import VersionPublisher, WorkerClient
from service_process import ServiceProcess
from stack_fixtures import with_settings
from waiting import wait_until

from stepstream.config import Settings
from stepstream.embedded.ports import free_block

MODEL = "two-workers"
WAIT = ("--wait", "20")


@pytest.fixture(scope="module")
def settings(registry_settings: Settings) -> list[Settings]:
    port = free_block(2)
    return [
        with_settings(
            registry_settings,
            inference={"model": MODEL, "port": port + n, "worker_id": f"two-{port + n}", "status_every_s": 1.0},
        )
        for n in range(2)
    ]


@pytest.fixture
def workers(settings: list[Settings], tmp_path: Path) -> Iterator[list[ServiceProcess]]:
    module = "stepstream.services.inference"
    with ExitStack() as stack:
        made = [ServiceProcess(module, one, lambda: True, tmp_path / f"{n}.log") for n, one in enumerate(settings)]
        for worker in made:
            worker.launch()
            stack.callback(worker.kill)
        yield made


@pytest.fixture
def publisher(settings: list[Settings], tmp_path: Path) -> Iterator[VersionPublisher]:
    publisher = VersionPublisher(settings[0], tmp_path, MODEL)
    yield publisher
    publisher.close()


def test_every_worker_serves_what_the_last_command_decided(
    settings: list[Settings], workers: list[ServiceProcess], publisher: VersionPublisher, tmp_path: Path
) -> None:
    """All commands use the same two processes, since each start imports torch."""
    clients = [WorkerClient(one) for one in settings]

    def decide(*words: str, status: int = 0) -> dict[str, Any]:
        result = stepstream(settings[0], "models", *words, "--json")
        assert result.status == status, result.stderr
        facts: dict[str, Any] = json.loads(result.stdout)
        return facts

    def versions_on(track: str | None) -> list[int]:
        replies = [client.chat(track)[1]["choices"][0]["weight_versions"] for client in clients]
        return [span["version"] for spans in replies for span in spans]

    for version in (1, 2, 3):
        publisher.publish(publisher.make(version, seed=version))
    wait_until(lambda: all(client.tracks() == {"stable": 3} for client in clients))

    # An older version is served again, and a canary beside it.
    assert decide("promote", f"{MODEL}@1", *WAIT)["problems"] == {}
    assert [client.tracks() for client in clients] == [{"stable": 1}] * 2
    decide("canary", f"{MODEL}@2", "--share", "0.5", *WAIT)
    wait_until(lambda: all(client.tracks() == {"stable": 1, "canary": 2} for client in clients))
    assert (versions_on(None), versions_on("stable"), versions_on("canary")) == ([1, 1], [1, 1], [2, 2])

    # A worker that was killed serves the same after its restart, although version 3 is the newest.
    workers[1].kill()
    workers[1].launch()
    wait_until(lambda: clients[1].tracks() == {"stable": 1, "canary": 2})

    # The canary is promoted, then taken back.
    decide("promote", f"{MODEL}@2", *WAIT)
    wait_until(lambda: all(client.tracks() == {"stable": 2} for client in clients))
    assert (versions_on("stable"), versions_on("canary")) == ([2, 2], [2, 2])
    decide("rollback", MODEL, *WAIT)
    assert [client.tracks() for client in clients] == [{"stable": 1}] * 2

    # A damaged version is refused by name and reason, and what was served goes on.
    damaged = publisher.make(4, seed=4)
    (tmp_path / "v4" / "model.safetensors").write_bytes(b"damaged")
    publisher.publish(damaged)
    problems = decide("promote", f"{MODEL}@4", "--wait", "3", status=1)["problems"]
    assert set(problems) == {one.inference.worker_id for one in settings}
    assert all("stable is 1, not 4" in problem and "sha256" in problem for problem in problems.values())
    assert versions_on("stable") == [1, 1]

    # A worker that restarts meanwhile serves what served before, and says so.
    workers[1].kill()
    workers[1].launch()
    wait_until(lambda: clients[1].tracks() == {"stable": 1})
    reasons = {worker["worker"]: worker["reason"] for worker in decide("status", MODEL, status=1)["workers"]}
    assert "sha256" in reasons[settings[1].inference.worker_id]
    assert reasons[settings[1].inference.worker_id].endswith(f"; {MODEL}@1 is served")

    # Workers that follow again serve the newest version that passes its checks.
    decide("follow", MODEL)
    wait_until(lambda: all(client.tracks() == {"stable": 3} for client in clients))
    status = decide("status", MODEL, status=1)
    assert [worker["tracks"] for worker in status["workers"]] == [{"stable": 3}] * 2
    assert {worker["state"] for worker in status["workers"]} == {"refused"}
