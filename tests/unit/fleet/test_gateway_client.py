"""What an agent of the fleet does about a call that failed: wait, take it as its own doing, or give the attempt up."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from stepstream.config import FleetSettings
from stepstream.embedded.ports import free_block
from stepstream.services.fleet import gateway_client
from stepstream.services.fleet.gateway_client import GatewayClient, Lost, RecordedFault, Refused

NOBODY, FAULT = ((503, {"error": {"type": kind, "message": "m"}}) for kind in ("upstream_unavailable", "server_error"))
TOO_LONG = (400, {"error": {"type": "invalid_request_error", "message": "m"}})
CHOICE = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}
DONE = (200, {"id": "c", "object": "chat.completion", "created": 1, "model": "demo", "choices": [CHOICE]})


class Gateway:
    """Gives one answer after the other, each as that of a recorded step."""

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
    made = Gateway()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_block(1)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    made.url = f"http://127.0.0.1:{port}"
    yield made
    await runner.cleanup()


async def complete(gateway: Gateway, deadline_s: float = 60.0) -> Any:
    client = GatewayClient(FleetSettings(gateway_url=gateway.url, gateway_deadline_s=deadline_s))
    try:
        return await client.complete([], [], {gateway_client.STEP_HEADER: "4"}, 1.0)
    finally:
        await client.close()


async def test_where_no_worker_was_there_the_call_is_made_again_as_the_same_step(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_client, "PAUSE_S", 0.0)
    gateway.answers = [NOBODY, NOBODY, DONE]
    assert (await complete(gateway)).choices[0].message.content == "hello"
    assert gateway.steps == ["4"] * 3


@pytest.mark.parametrize(
    ("answer", "deadline_s", "fault"),
    [(NOBODY, 1e-9, RecordedFault), (FAULT, 60.0, RecordedFault), (TOO_LONG, 60.0, Refused)],
)
async def test_any_other_recorded_failure_stands(
    gateway: Gateway, answer: tuple[int, dict[str, Any]], deadline_s: float, fault: type[Lost | Refused]
) -> None:
    gateway.answers = [answer]
    with pytest.raises(fault):
        await complete(gateway, deadline_s)
    assert gateway.steps == ["4"]
