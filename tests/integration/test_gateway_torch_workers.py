"""Test the gateway in front of two inference workers with the torch engine: prefixes, tracks, and a killed worker."""

import re
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import stepstream
from gateway_fixtures import gateway_process, gateway_settings, read_topic
from inference_workers import VersionPublisher, WorkerClient
from scripted_upstream import ScriptedUpstream
from service_process import ServiceProcess
from stack_fixtures import with_settings
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings
from stepstream.embedded.ports import free_block

MODEL = "behind-gateway"
TURNS, TRAJECTORIES = 4, 8


@pytest.fixture(scope="module")
def settings(registry_settings: Settings) -> list[Settings]:
    """Settings of the two workers."""
    port = free_block(2)
    return [
        with_settings(
            registry_settings,
            inference={"model": MODEL, "port": port + n, "worker_id": f"routed-{port + n}", "status_every_s": 0.5},
        )
        for n in range(2)
    ]


@pytest.fixture
def workers(settings: list[Settings], tmp_path: Path) -> Iterator[list[ServiceProcess]]:
    """Two workers that serve version 1."""
    with ExitStack() as stack:
        publisher = VersionPublisher(settings[0], tmp_path, MODEL)
        stack.callback(publisher.close)
        for version in (1, 2):
            publisher.publish(publisher.make(version, seed=version))
        stepstream(settings[0], "models", "promote", f"{MODEL}@1")
        module = "stepstream.services.inference"
        made = [ServiceProcess(module, one, lambda: True, tmp_path / f"{n}.log") for n, one in enumerate(settings)]
        for worker in made:
            worker.launch()
            stack.callback(worker.kill)
        wait_until(lambda: all(WorkerClient(one).tracks() == {"stable": 1} for one in settings))
        yield made


@pytest.fixture
def http(settings: list[Settings], workers: list[ServiceProcess], tmp_path: Path) -> Iterator[httpx.Client]:
    """A client of a gateway that has found both workers."""
    routed = gateway_settings(settings[0], ScriptedUpstream(), find_workers=True, sampling_mask_ids=64)
    with gateway_process(routed, tmp_path / "gateway.log") as process:
        url = f"http://127.0.0.1:{process.settings.gateway.port}"
        with httpx.Client(base_url=url, timeout=TIMEOUT_S) as client:
            wait_until(lambda: metric(client, f'workers{{model="{MODEL}",state="serving"}}') == 2)
            yield client


def metric(client: httpx.Client, name: str) -> float:
    lines = re.findall(rf"^stepstream_gateway_{re.escape(name)} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    return sum(map(float, lines))


def converse(client: httpx.Client, name: str, turns: int) -> list[dict[str, Any]]:
    """Hold a conversation of a trajectory; return the messages."""
    messages: list[dict[str, Any]] = []
    for _ in range(turns):
        messages.append({"role": "user", "content": "q:a+c"})
        body = {"model": MODEL, "messages": messages, "max_tokens": 6, "temperature": 1.0, "top_k": 5}
        reply = client.post("/v1/chat/completions", json=body, headers={"x-stepstream-trajectory": name})
        assert reply.status_code == 200, reply.text
        assert "stepstream_" not in reply.text
        assert "sampling_mask" not in reply.text
        messages.append(reply.json()["choices"][0]["message"])
    return messages


def test_prefixes_are_continued_and_tracks_and_failures_are_followed(
    http: httpx.Client, settings: list[Settings], workers: list[ServiceProcess]
) -> None:
    """One test, since each start of a worker imports torch."""
    names = [str(uuid.uuid4()) for _ in range(TRAJECTORIES)]
    for name in names:
        converse(http, name, TURNS)
    kept = metric(http, f'prefixes_total{{model="{MODEL}",reason="",result="splice"}}')
    assert kept == TRAJECTORIES * (TURNS - 1)
    assert metric(http, 'worker_choices_total{result="kept"}') == TRAJECTORIES * (TURNS - 1)
    steps = sorted(read_topic(settings[0], "steps", names[0], TURNS), key=lambda step: step["step_index"])
    prompts = 0
    for step in steps:
        assert step["prompt_shared_tokens"] == prompts  # all tokens before, so all steps make one sequence
        prompts += len(step["prompt_token_ids"]) + len(step["response_token_ids"])
        mask, response = step["sampling_mask"], list(step["response_token_ids"])
        assert list(mask["counts"]) == [5] * len(response)
        ids = list(mask["token_ids"])
        assert all(token in ids[5 * at : 5 * at + 5] for at, token in enumerate(response))

    # All new trajectories of a full canary are answered by its version, and known ones keep theirs.
    stepstream(settings[0], "models", "canary", f"{MODEL}@2", "--share", "1.0", "--wait", "20")
    name = str(uuid.uuid4())
    wait_until(lambda: track(http, settings, str(uuid.uuid4())) == ("canary", 2))
    assert track(http, settings, name) == ("canary", 2)
    assert track(http, settings, names[0], TURNS) == ("stable", 1)

    # The end of the canary holds for its trajectories at once, at every worker.
    stepstream(settings[0], "models", "rollback", MODEL)
    wait_until(lambda: track(http, settings, str(uuid.uuid4())) == ("stable", 1))
    assert track(http, settings, name, 1) == ("stable", 1)

    # No call fails while a worker is killed: its trajectories move to the other.
    workers[0].kill()
    for each in names:
        converse(http, each, 1)
    wait_until(lambda: metric(http, f'workers{{model="{MODEL}",state="serving"}}') == 1)
    assert metric(http, 'calls_total{result="unanswered"}') == 0


def track(client: httpx.Client, settings: list[Settings], name: str, before: int = 0) -> tuple[str, int]:
    """Make a call; return track and version of its step, which has index `before`."""
    converse(client, name, 1)
    steps = read_topic(settings[0], "steps", name, before + 1)
    step = max(steps, key=lambda step: step["step_index"])
    return step["track"], step["policy_spans"][-1]["version"]
