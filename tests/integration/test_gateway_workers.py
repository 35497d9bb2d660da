"""Test the gateway as a router: workers found by `worker-status`, their choice, and admission."""

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from announced_workers import EVERY_S, AnnouncedWorker, Announcer, announced
from gateway_fixtures import gateway_process, gateway_settings
from scripted_upstream import ScriptedUpstream, prompt_ids, response_ids
from service_process import ServiceProcess
from stack_fixtures import with_settings
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings
from stepstream.embedded.ports import free_block
from stepstream.services.gateway.membership import SILENT_INTERVALS

MODEL, OTHER = f"model-{uuid.uuid4().hex[:8]}", f"other-{uuid.uuid4().hex[:8]}"
QUESTION = [{"role": "user", "content": "q:a+c"}]


@pytest.fixture(scope="module")
def workers() -> list[AnnouncedWorker]:
    """Two workers of one model and one of another."""
    return [
        AnnouncedWorker(f"first-{MODEL}", model=MODEL),
        AnnouncedWorker(f"second-{MODEL}", model=MODEL),
        AnnouncedWorker(f"only-{OTHER}", model=OTHER),
    ]


@pytest.fixture(scope="module")
def announcer(registry_settings: Settings, workers: list[AnnouncedWorker]) -> Iterator[Announcer]:
    """The workers announce themselves."""
    with announced(registry_settings, *workers) as made:
        yield made


@pytest.fixture(scope="module")
def router_settings(registry_settings: Settings) -> Settings:
    """Settings of a gateway that finds workers; the one of its settings does not exist."""
    settings = with_settings(registry_settings, inference={"status_every_s": EVERY_S})
    return gateway_settings(
        settings, ScriptedUpstream(), find_workers=True, max_queue_per_worker=3, upstream_deadline_s=2.0
    )


@pytest.fixture(scope="module")
def gateway(
    router_settings: Settings, announcer: Announcer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    with gateway_process(router_settings, tmp_path_factory.mktemp("gateway") / "gateway.log") as process:
        yield process


@pytest.fixture
def http(gateway: ServiceProcess, workers: list[AnnouncedWorker]) -> Iterator[httpx.Client]:
    """A client of the gateway that knows all workers."""
    with client_of(gateway) as client:
        wait_until(lambda: knows(client, *workers))
        yield client


def client_of(gateway: ServiceProcess) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{gateway.settings.gateway.port}", timeout=TIMEOUT_S)


def knows(client: httpx.Client, *workers: ScriptedUpstream) -> bool:
    known = {upstream["url"] for upstream in client.get("/health").json()["upstreams"]}
    return {worker.url for worker in workers} <= known


def ask(client: httpx.Client, model: str = MODEL, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
    body = {"model": model, "messages": QUESTION, "max_tokens": 8}
    return client.post(path, json=body, headers={name.replace("_", "-"): value for name, value in headers.items()})


def count(client: httpx.Client, line: str) -> float:
    """Return a metric, 0 if it is absent."""
    values = [text.rsplit(" ", 1)[1] for text in client.get("/metrics").text.splitlines() if text.startswith(line)]
    return sum(map(float, values))


def test_the_model_selects_the_workers(http: httpx.Client, workers: list[AnnouncedWorker]) -> None:
    before = [len(worker.requests) for worker in workers]
    for _ in range(4):
        assert ask(http, OTHER).status_code == 200
    assert [len(worker.requests) - count for worker, count in zip(workers, before, strict=True)] == [0, 0, 4]
    assert count(http, f'stepstream_gateway_workers{{model="{MODEL}",state="serving"}}') == 2


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1/chat/completions", lambda body: body["error"]["message"]),
        ("/v1/responses", lambda body: body["error"]["message"]),
        ("/v1/messages", lambda body: (body["type"] == "error" and body["error"]["message"]) or ""),
    ],
)
def test_an_unknown_model_is_404_and_names_the_known_ones(http: httpx.Client, path: str, message: Any) -> None:
    reply = ask(http, "nonesuch", path)
    assert reply.status_code == 404
    text = message(reply.json())
    assert "no inference worker serves the model 'nonesuch'" in text
    assert MODEL in text
    assert OTHER in text


def test_the_models_of_all_workers_are_listed(http: httpx.Client) -> None:
    listed = {model["id"] for model in http.get("/v1/models").json()["data"]}
    assert {MODEL, OTHER} <= listed


def test_a_trajectory_stays_at_its_worker(http: httpx.Client, workers: list[AnnouncedWorker]) -> None:
    kept = count(http, 'stepstream_gateway_worker_choices_total{result="kept"}')
    for _ in range(8):
        name = str(uuid.uuid4())
        before = [len(worker.requests) for worker in workers]
        for _ in range(3):
            assert ask(http, x_stepstream_trajectory=name).status_code == 200
        assert sorted(len(worker.requests) - old for worker, old in zip(workers, before, strict=True)) == [0, 0, 3]
    assert count(http, 'stepstream_gateway_worker_choices_total{result="kept"}') == kept + 16


def test_full_workers_are_429_with_retry_after(http: httpx.Client, workers: list[AnnouncedWorker]) -> None:
    only = workers[2]
    only.hold()
    before = len(only.requests)
    with ThreadPoolExecutor(3) as pool:
        held = [pool.submit(ask, http, OTHER) for _ in range(3)]
        wait_until(lambda: len(only.requests) == before + 3)
        for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
            reply = ask(http, OTHER, path)
            assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
            assert reply.json()["error"]["type"] == "rate_limit_error"
            assert "3 requests of at most 3 are in flight" in reply.json()["error"]["message"]
        assert ask(http).status_code == 200
        only.release()
        assert [each.result().status_code for each in held] == [200] * 3
    assert count(http, 'stepstream_gateway_calls_total{result="overloaded"}') == 3


def test_a_stopping_worker_leaves_at_once_and_a_silent_one_after_three_intervals(
    http: httpx.Client, announcer: Announcer, workers: list[AnnouncedWorker]
) -> None:
    first, second, only = workers
    first.silent = True
    wait_until(lambda: not knows(http, first))
    assert [ask(http).status_code for _ in range(4)] == [200] * 4
    only.silent = True
    announcer.publish(only, state="stopping")
    wait_until(lambda: not knows(http, only))
    reply = ask(http, OTHER)  # its model stays known: the call waits for a worker to return
    assert reply.status_code == 503
    assert f"no inference worker of the model '{OTHER}' answered: none is alive" in reply.json()["error"]["message"]
    first.silent = only.silent = False
    wait_until(lambda: knows(http, *workers))
    assert second.described["state"] == "serving"


def test_the_last_known_workers_stay_without_kafka(
    router_settings: Settings, announcer: Announcer, workers: list[AnnouncedWorker], tmp_path: Path
) -> None:
    """Silence of all is no departure; the same gateway starts without Kafka, with the workers of its settings."""
    for worker in workers:
        worker.silent = False
    with gateway_process(with_port(router_settings), tmp_path / "log") as gateway, client_of(gateway) as client:
        wait_until(lambda: knows(client, *workers))
        for worker in workers:
            worker.silent = True
        silent_since = time.monotonic()
        wait_until(lambda: time.monotonic() > silent_since + 2 * SILENT_INTERVALS * EVERY_S)
        assert knows(client, *workers)
        assert [ask(client, model).status_code for model in (MODEL, OTHER)] == [200, 200]
    unreachable = router_settings.kafka.model_copy(update={"bootstrap": f"127.0.0.1:{free_block(1)}"})
    settings = with_settings(
        with_port(router_settings).model_copy(update={"kafka": unreachable}),
        gateway={"upstreams": [workers[1].url]},
    )
    with gateway_process(settings, tmp_path / "log") as gateway, client_of(gateway) as client:
        assert ask(client, "any-model").status_code == 200
    for worker in workers:
        worker.silent = False


@pytest.mark.parametrize("stream", [False, True])
def test_a_worker_gets_the_tokens_of_the_step_before(
    http: httpx.Client, workers: list[AnnouncedWorker], stream: bool
) -> None:
    """The third call repeats the second's answer in another way: its tokens are unknown."""
    only, name = workers[2], str(uuid.uuid4())
    told = {"stepstream_prefix": "splice"}
    results = {result: prefixes(http, result) for result in ("splice", "broken", "none")}

    def call(messages: list[dict[str, str]]) -> dict[str, Any]:
        body = {"model": OTHER, "messages": messages, "stream": stream}
        reply = http.post("/v1/chat/completions", json=body, headers={"x-stepstream-trajectory": name})
        assert reply.status_code == 200
        assert "stepstream_" not in reply.text
        return only.requests[-1]

    first = call(QUESTION)
    assert "stepstream_prefix" not in first
    only.reply_fields = told
    answer, turn = {"role": "assistant", "content": "hello"}, {"role": "user", "content": "and?"}
    second = call([*QUESTION, answer, turn])
    ids = [*prompt_ids(QUESTION), *response_ids("hello")]
    assert second["stepstream_prefix"] == {"token_ids": ids, "messages": 2}
    assert second["stepstream_started_at_us"] == first["stepstream_started_at_us"]
    third = call([*QUESTION, {"role": "assistant", "content": "edited"}, turn])
    assert "stepstream_prefix" not in third
    only.reply_fields = {"stepstream_prefix": "none", "stepstream_prefix_reason": "text_changed"}
    only.prompt_ids = lambda messages: [9, *prompt_ids(messages)]
    call([*QUESTION, answer, turn, answer, turn])
    only.reply_fields, only.prompt_ids = {}, prompt_ids
    expected = {"splice": 1, "none": 1, "broken": 1}
    assert {result: prefixes(http, result) - before for result, before in results.items()} == expected
    assert f'model="{OTHER}",reason="text_changed",result="broken"' in http.get("/metrics").text


def prefixes(client: httpx.Client, result: str) -> float:
    lines = [line for line in client.get("/metrics").text.splitlines() if f'result="{result}"' in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if "stepstream_gateway_prefixes_total" in line)


def with_port(settings: Settings) -> Settings:
    return with_settings(settings, gateway={"port": free_block(1)})
