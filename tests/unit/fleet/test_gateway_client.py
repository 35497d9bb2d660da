"""Test failed calls of an agent: retry, blame the request, or lose the attempt."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from stepstream.config import FleetSettings
from stepstream.embedded.ports import free_block
from stepstream.services.fleet import gateway_client
from stepstream.services.fleet.gateway_client import AttemptLost, GatewayClient, RecordedFailure, RequestRejected

NO_WORKER, SERVER_ERROR = (
    (503, {"error": {"type": kind, "message": "m"}}) for kind in ("upstream_unavailable", "server_error")
)
TOO_LONG = (400, {"error": {"type": "invalid_request_error", "message": "m"}})
CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}
DONE = (200, {"id": "c", "object": "chat.completion", "created": 1, "model": "demo", "choices": [CHOICE]})


class Gateway:
    """Returns the given answers in order, each marked as a recorded step."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.steps: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        step = request.headers[gateway_client.STEP_HEADER]
        self.steps.append(step)
        status, body = self.answers.pop(0)
        return web.json_response(body, status=status, headers={gateway_client.STEP_HEADER: step})


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    server = Gateway()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_block(1)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    server.url = f"http://127.0.0.1:{port}"
    yield server
    await runner.cleanup()


async def complete(gateway: Gateway, deadline_s: float = 60.0) -> Any:
    client = GatewayClient(FleetSettings(gateway_url=gateway.url, gateway_deadline_s=deadline_s))
    try:
        return await client.complete([], [], {gateway_client.STEP_HEADER: "4"}, 1.0)
    finally:
        await client.close()


async def test_a_call_that_no_worker_answered_is_retried_as_the_same_step(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_client, "PAUSE_S", 0.0)
    gateway.answers = [NO_WORKER, NO_WORKER, DONE]
    assert (await complete(gateway))["choices"][0]["message"]["content"] == "hello"
    assert gateway.steps == ["4"] * 3


@pytest.mark.parametrize(
    ("answer", "deadline_s", "fault"),
    [(NO_WORKER, 1e-9, RecordedFailure), (SERVER_ERROR, 60.0, RecordedFailure), (TOO_LONG, 60.0, RequestRejected)],
)
async def test_any_other_recorded_failure_is_raised(
    gateway: Gateway, answer: tuple[int, dict[str, Any]], deadline_s: float, fault: type[AttemptLost | RequestRejected]
) -> None:
    gateway.answers = [answer]
    with pytest.raises(fault):
        await complete(gateway, deadline_s)
    assert gateway.steps == ["4"]
