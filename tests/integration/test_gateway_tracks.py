"""Test tracks over two gateways: the same choice, the share, and a rollback within seconds."""

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from announced_workers import EVERY_S, AnnouncedWorker, announced
from gateway_fixtures import gateway_process, gateway_settings, read_topic
from scripted_upstream import ScriptedUpstream
from stack_fixtures import with_settings
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings
from stepstream.topics.catalogue import ROLLOUTS
from stepstream.topics.codec import Codec
from stepstream.topics.events import new_rollout, new_served_version
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer

MODEL = f"tracks-{uuid.uuid4().hex[:8]}"
ADAPTER = f"{MODEL}-v8"
SHARE = 0.2
TRAJECTORIES = 1000
IN_FORCE_S = 5.0


@pytest.fixture(scope="module")
def workers() -> list[AnnouncedWorker]:
    """A worker of each track; the canary is an adapter with a name of its own."""
    stable = AnnouncedWorker(f"stable-{MODEL}", model=MODEL, tracks=[new_served_version(track="stable", version=7)])
    tracks = [new_served_version(track="canary", version=8, served_name=ADAPTER)]
    canary = AnnouncedWorker(f"canary-{MODEL}", model=MODEL, tracks=tracks)
    canary.version = 8
    return [stable, canary]


@pytest.fixture(scope="module")
def gateways(
    registry_settings: Settings, workers: list[AnnouncedWorker], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[httpx.Client]]:
    """Clients of two gateway processes that know both workers."""
    fast = with_settings(registry_settings, inference={"status_every_s": EVERY_S})
    with ExitStack() as stack:
        stack.enter_context(announced(registry_settings, *workers))
        clients = []
        for name in ("one", "two"):
            folder = tmp_path_factory.mktemp(name)
            settings = gateway_settings(fast, ScriptedUpstream(), find_workers=True, spool=folder / "spool")
            settings = settings.model_copy(update={"paths": settings.paths.model_copy(update={"data": folder})})
            stack.enter_context(gateway_process(settings, folder / "log"))
            url = f"http://127.0.0.1:{settings.gateway.port}"
            clients.append(stack.enter_context(httpx.Client(base_url=url, timeout=TIMEOUT_S)))
        for client in clients:
            wait_until(lambda client=client: len(client.get("/health").json()["upstreams"]) >= 2)  # type: ignore[misc]
        yield clients


def decide(settings: Settings, canary: int | None, share: float) -> None:
    """Publish a rollout."""
    codec = Codec(settings)
    producer = EventProducer(settings.kafka, codec, "test")
    record = new_rollout(
        event_id=new_event_id(),
        occurred_at_us=now_us(),
        model=MODEL,
        stable_version=7,
        canary_version=canary,
        canary_share=share,
    )
    producer.send(ROLLOUTS, MODEL, record)
    producer.flush(TIMEOUT_S)
    codec.close()


def ask(client: httpx.Client, name: str, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": name}], **fields}
    return client.post("/v1/chat/completions", json=body, headers={"x-stepstream-trajectory": name})


def canaries(client: httpx.Client, worker: AnnouncedWorker, names: list[str]) -> set[str]:
    """Call once for each trajectory; return those that reached the canary's worker."""
    before = len(worker.requests)
    with ThreadPoolExecutor(8) as pool:
        assert {reply.status_code for reply in pool.map(lambda name: ask(client, name), names)} == {200}
    return {request["messages"][0]["content"] for request in worker.requests[before:]}


def test_two_gateways_agree_and_a_rollback_is_in_force_within_seconds(
    registry_settings: Settings, gateways: list[httpx.Client], workers: list[AnnouncedWorker]
) -> None:
    stable, canary = workers
    decide(registry_settings, 8, 1.0)
    for client in gateways:
        wait_until(lambda client=client: canaries(client, canary, [str(uuid.uuid4())]) != set())  # type: ignore[misc]
    decide(registry_settings, 8, SHARE)
    for client in gateways:
        wait_until(lambda client=client: not canaries(client, canary, [str(uuid.uuid4())]))  # type: ignore[misc]

    names = [str(uuid.uuid4()) for _ in range(TRAJECTORIES)]
    chosen = [canaries(client, canary, names) for client in gateways]
    assert chosen[0] == chosen[1]
    assert 0.15 < len(chosen[0]) / TRAJECTORIES < 0.25

    # The worker gets the track and its own name of the model; caller and step get the model's.
    name = sorted(chosen[0])[0]
    for fields in ({}, {"stream": True}):
        reply = ask(gateways[0], name, **fields)
        assert f'"model":"{MODEL}"' in reply.text
        assert ADAPTER not in reply.text
    assert canary.requests[-1]["model"] == ADAPTER
    assert canary.headers[-1]["x-stepstream-track"] == "canary"
    assert stable.requests[-1]["model"] == MODEL
    steps = read_topic(registry_settings, "steps", name, 4)
    assert {step["track"] for step in steps} == {"canary"}
    assert {(span["model"], span["version"]) for step in steps for span in step["policy_spans"]} == {(MODEL, 8)}

    # The canary's failures are the canary's, so that its error rate shows.
    failed = str(uuid.uuid4())
    while not canaries(gateways[0], canary, [failed]):
        failed = str(uuid.uuid4())
    canary.status = 500
    assert ask(gateways[0], failed).status_code == 500
    canary.status = 200
    errors = {(step["track"], step["error"]) for step in read_topic(registry_settings, "steps", failed, 2)}
    assert errors == {("canary", None), ("canary", "scripted_error")}

    # A known trajectory keeps its track when the share rises.
    decide(registry_settings, 8, 1.0)
    wait_until(lambda: canaries(gateways[0], canary, [str(uuid.uuid4())]) != set())
    kept = [each for each in names if each not in chosen[0]][:20]
    assert canaries(gateways[0], canary, kept) == set()

    decided = time.monotonic()
    decide(registry_settings, None, 0.0)
    for client in gateways:
        wait_until(lambda client=client: not canaries(client, canary, [name]))  # type: ignore[misc]
    assert time.monotonic() - decided < IN_FORCE_S


def test_a_canary_that_no_worker_serves_is_stable_and_counted(
    registry_settings: Settings, gateways: list[httpx.Client], workers: list[AnnouncedWorker]
) -> None:
    stable, canary = workers
    decide(registry_settings, 8, 1.0)
    client = gateways[0]
    wait_until(lambda: canaries(client, canary, [str(uuid.uuid4())]) != set())
    canary.silent = True
    wait_until(lambda: canary.url not in client.get("/health").text)
    name = str(uuid.uuid4())
    assert ask(client, name).status_code == 200
    assert stable.requests[-1]["messages"][0]["content"] == name
    assert "stepstream_gateway_canary_unserved_total 1.0" in client.get("/metrics").text
    (step,) = read_topic(registry_settings, "steps", name, 1)
    assert step["track"] == "stable"
    canary.silent = False
