"""Test the answers of the plugin to calls that are in flight when vLLM's engine dies."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from required_tools import require_package

from stepstream.services.inference.vllm_plugin import ServingPlugin

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # of what vLLM imports


def test_a_call_in_flight_when_the_engine_dies_is_503_and_the_server_ends() -> None:
    """vLLM's own handler answers 500, which no gateway sends to another worker."""
    require_package("vllm")
    from vllm.entrypoints.serve.exception_handling.handlers.vllm_error import vllm_error_handler
    from vllm.exceptions import VLLMError
    from vllm.v1.engine.exceptions import EngineDeadError

    async def generate() -> None:
        raise EngineDeadError

    app = FastAPI()
    app.add_exception_handler(VLLMError, vllm_error_handler)
    app.add_api_route("/generate", generate)
    app.state.args = SimpleNamespace(log_error_stack=False)
    app.state.server = SimpleNamespace(should_exit=False)
    app.state.engine_client = SimpleNamespace(errored=True, is_running=False)
    ServingPlugin().attach_router(app)
    answer = TestClient(app, raise_server_exceptions=False).get("/generate")
    assert answer.status_code == 503
    assert "EngineCore encountered an issue" in answer.json()["error"]["message"]
    assert app.state.server.should_exit


class _DyingEngine:
    """An engine client whose engine dies while it loads: that call is never answered, later ones fail."""

    errored = False

    async def pause_generation(self, **_: Any) -> None: ...

    async def start_weight_update(self) -> None:
        self.errored = True
        await asyncio.Event().wait()

    async def generate(self, *_: Any) -> Any:
        if self.errored:
            raise RuntimeError("the engine is dead")
        yield


@pytest.mark.asyncio
async def test_a_swap_ends_with_the_engine_and_releases_the_calls_that_wait_for_it() -> None:
    require_package("vllm")
    from stepstream.services.inference.vllm_swap import SwapFailedError, Swapper, SwapRequest

    client = _DyingEngine()
    swapper = Swapper(client, "old", 1)
    swapper.guard_requests()
    swap = asyncio.create_task(swapper.swap(SwapRequest("new", 2)))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="the engine is dead"):
        await anext(client.generate("prompt"))
    with pytest.raises(SwapFailedError, match="ended during the swap"):
        await swap


class _BusyEngine:
    """An engine client with a request that never ends: only a pause of all requests ends a wait for it."""

    errored = False

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._paused = asyncio.Event()

    async def pause_generation(self, mode: str, **_: Any) -> None:
        self.calls.append(mode)
        if mode == "keep":
            self._paused.set()
        await self._paused.wait()

    async def start_weight_update(self) -> None: ...

    async def update_weights(self, _request: Any) -> None: ...

    async def finish_weight_update(self, version: str) -> None:
        self.calls.append(f"version {version}")

    async def resume_generation(self) -> None:
        self.calls.append("resume")

    async def generate(self, *_: Any) -> Any:
        yield


@pytest.mark.asyncio
async def test_a_request_that_does_not_end_in_time_goes_on_with_the_new_weights() -> None:
    require_package("vllm")
    from stepstream.services.inference.vllm_swap import Swapper, SwapRequest

    client = _BusyEngine()
    swapper = Swapper(client, "old", 1)
    swapper.guard_requests()
    await asyncio.wait_for(swapper.swap(SwapRequest("new", 2, drain=True, drain_s=0.05)), 10.0)
    assert client.calls == ["wait", "keep", "version 2", "resume"]
    assert swapper.version == 2
