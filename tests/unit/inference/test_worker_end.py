"""Test the error with which a worker's process ends."""

import asyncio
from concurrent.futures import Future

import pytest

from stepstream.services.inference.__main__ import _fault_of
from stepstream.services.inference.engine import EngineError


@pytest.mark.parametrize(
    ("failed", "ended", "message"),
    [
        (EngineError("vLLM ended"), EngineError("vLLM does not answer"), "vLLM ended"),
        (None, EngineError("vLLM does not answer /v1/load_lora_adapter"), "vLLM does not answer /v1/load_lora_adapter"),
        (None, OSError("no route"), "cannot follow the checkpoints: no route; check Kafka and the schema registry"),
    ],
    ids=["engine", "engine, at a load", "log"],
)
def test_a_worker_that_ends_says_whose_fault_it_is(failed: EngineError | None, ended: Exception, message: str) -> None:
    async def fault() -> str:
        of_engine: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
        of_watcher: Future[None] = Future()
        if failed is not None:
            of_engine.set_result(failed)
        of_watcher.set_exception(ended)
        return str(_fault_of(of_engine, of_watcher))

    assert asyncio.run(fault()) == message


def test_a_worker_that_was_stopped_has_no_fault() -> None:
    async def fault() -> object:
        of_watcher: Future[None] = Future()
        assert _fault_of(asyncio.get_running_loop().create_future(), of_watcher) is None
        of_watcher.set_result(None)
        return _fault_of(asyncio.get_running_loop().create_future(), of_watcher)

    assert asyncio.run(fault()) is None
