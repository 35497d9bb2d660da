"""Test a worker whose engine serves adapters beside its weights: both tracks on one engine."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from labelled_records import tiny_model

from stepstream.services.inference.app import App
from stepstream.services.inference.engine import CheckpointRefusedError, Engine, SamplingParams, TokenChunk
from stepstream.services.inference.forward import ChatForwarder
from stepstream.services.inference.tool_parsers import NoTools
from stepstream.services.inference.worker import Worker
from stepstream.topics.events import Checkpoint, new_checkpoint, new_served_version

ADAPTER = Path("/adapter")


class AdapterEngine(Engine):
    """Counts what it holds; answers nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.base: int | None = None
        self.adapters: list[int] = []
        self.refused: int | None = None

    @property
    def version(self) -> int | None:
        return self.base

    async def load(self, folder: Path, version: int) -> None:
        if version == self.refused:
            raise CheckpointRefusedError("shape")
        self.base = version

    async def load_adapter(self, folder: Path, version: int) -> None:
        if version == self.refused:
            raise CheckpointRefusedError("NaN")
        self.adapters.append(version)

    async def unload_adapter(self, version: int) -> None:
        self.adapters.remove(version)

    def served_name(self, version: int) -> str:
        return f"m@{version}" if version in self.adapters else ""

    def generate(self, prompt_ids: Sequence[int], params: SamplingParams) -> AsyncGenerator[TokenChunk, None]:
        raise NotImplementedError

    async def close(self) -> None:
        pass


class RecordingForwarder(ChatForwarder):
    """Keeps the bodies of the requests."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    async def __call__(self, body: bytes, receive: Any, send: Any) -> int:
        self.bodies.append(orjson.loads(body))
        return 200


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "base", 1)


@pytest_asyncio.fixture
async def engine() -> AdapterEngine:
    return AdapterEngine()


@pytest_asyncio.fixture
async def worker(engine: AdapterEngine) -> AsyncIterator[Worker]:
    made = Worker("m", engine, 64, tracks=("stable", "canary"), max_adapters=3)
    yield made
    await made.close()


def version(number: int, base_version: int | None = 1) -> Checkpoint:
    return new_checkpoint(
        event_id=f"c{number}",
        occurred_at_us=number,
        model="m",
        version=number,
        uri="file:///v",
        weights_sha256="",
        code_version="1",
        format="full" if base_version is None else "lora",
        base_version=base_version,
    )


async def test_both_tracks_share_the_base(worker: Worker, engine: AdapterEngine, base: Path) -> None:
    await worker.load_adapter(version(2), base, ADAPTER, "stable")
    assert (engine.base, engine.adapters, worker.tracks) == (1, [2], {"stable": 2})
    await worker.load_adapter(version(3), base, ADAPTER, "canary")
    assert worker.served_versions() == [
        new_served_version(track="stable", version=2, served_name="m@2"),
        new_served_version(track="canary", version=3, served_name="m@3"),
    ]
    await worker.load_adapter(version(3), base, ADAPTER, "stable")
    await worker.end_canary()
    assert worker.tracks == {"stable": 3}
    assert not worker.failed.done()


async def test_adapters_that_no_track_has_are_unloaded_oldest_first(
    worker: Worker, engine: AdapterEngine, base: Path
) -> None:
    await worker.load_adapter(version(2), base, ADAPTER, "canary" if engine.base else "stable")
    await worker.load_adapter(version(9), base, ADAPTER, "canary")
    for number in (3, 4, 5):
        await worker.load_adapter(version(number), base, ADAPTER, "stable")
    assert engine.adapters == [9, 4, 5]
    assert worker.tracks == {"stable": 5, "canary": 9}


async def test_a_canary_of_another_base_needs_a_worker_of_its_own(
    worker: Worker, engine: AdapterEngine, base: Path
) -> None:
    await worker.load_adapter(version(2), base, ADAPTER, "stable")
    with pytest.raises(CheckpointRefusedError, match="its base is version 7, this worker's is 1"):
        await worker.load_adapter(version(8, 7), base, ADAPTER, "canary")
    with pytest.raises(CheckpointRefusedError, match="holds one set of weights"):
        await worker.load(version(7, None), base, "canary")
    assert (engine.base, worker.tracks) == (1, {"stable": 2})


async def test_full_weights_do_not_replace_a_canary_of_adapters(
    worker: Worker, engine: AdapterEngine, base: Path
) -> None:
    """They would lie below the adapters of the track stable too."""
    await worker.load_adapter(version(2), base, ADAPTER, "stable")
    await worker.load_adapter(version(3), base, ADAPTER, "canary")
    with pytest.raises(CheckpointRefusedError, match="holds one set of weights"):
        await worker.load(version(7, None), base, "canary")
    assert (engine.base, worker.tracks) == (1, {"stable": 2, "canary": 3})


async def test_new_weights_end_a_canary_of_adapters(worker: Worker, engine: AdapterEngine, base: Path) -> None:
    await worker.load_adapter(version(2), base, ADAPTER, "stable")
    await worker.load_adapter(version(3), base, ADAPTER, "canary")
    await worker.load(version(7, None), base)
    assert (engine.base, worker.tracks) == (7, {"stable": 7})
    assert worker.slot("stable").served_name == "m"


async def test_refused_weights_leave_a_canary_of_adapters(worker: Worker, engine: AdapterEngine, base: Path) -> None:
    await worker.load_adapter(version(2), base, ADAPTER, "stable")
    await worker.load_adapter(version(3), base, ADAPTER, "canary")
    engine.refused = 7
    with pytest.raises(CheckpointRefusedError, match="shape"):
        await worker.load(version(7, None), base)
    with pytest.raises(CheckpointRefusedError, match="shape"):
        await worker.load_adapter(version(8, 7), base, ADAPTER, "stable")
    engine.refused = 8
    with pytest.raises(CheckpointRefusedError, match="NaN"):
        await worker.load_adapter(version(8, 7), base, ADAPTER, "stable")
    assert (engine.base, worker.tracks) == (1, {"stable": 2, "canary": 3})
    assert await served_name(worker) == "m@3"


async def test_a_request_for_the_model_or_any_version_gets_its_track_s_adapters(worker: Worker, base: Path) -> None:
    await worker.load_adapter(version(2), base, ADAPTER, "stable")
    await worker.load_adapter(version(3), base, ADAPTER, "canary")
    forward = RecordingForwarder()
    app = App(worker, NoTools(), forward)

    async def ask(model: str, track: bytes) -> str:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": orjson.dumps({"model": model, "messages": []})}

        async def send(_message: Any) -> None: ...

        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions"}
        await app(scope | {"headers": [(b"x-stepstream-track", track)]}, receive, send)
        return str(forward.bodies[-1]["model"])

    assert [await ask(name, b"stable") for name in ("m", "m@2", "m@1")] == ["m@2"] * 3
    assert [await ask(name, b"canary") for name in ("m", "m@3")] == ["m@3"] * 2
    assert await ask("another", b"stable") == "another"


async def test_the_base_changes_after_the_requests_of_its_adapters(
    worker: Worker, engine: AdapterEngine, base: Path
) -> None:
    """A request that comes meanwhile gets the adapters of the new base."""
    await worker.load_adapter(version(2), base, ADAPTER, "stable")
    await worker.load_adapter(version(3), base, ADAPTER, "canary")
    changes: list[tuple[Callable[[], Coroutine[Any, Any, None]], str]] = [
        (lambda: worker.load_adapter(version(8, 7), base, ADAPTER, "stable"), "m@8"),
        (lambda: worker.load(version(9, None), base), "m"),
    ]
    for change, name in changes:
        before = engine.base
        async with worker.request("stable"):
            async with worker.request("canary") as slot:
                running = slot.served_name
                changing, late = asyncio.create_task(change()), asyncio.create_task(served_name(worker))
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert (engine.base, slot.served_name, changing.done(), late.done()) == (before, running, False, False)
        await changing
        assert await late == name
    assert engine.base == 9


async def served_name(worker: Worker) -> str:
    async with worker.request("canary") as slot:
        return slot.served_name


async def test_full_weights_swap_under_running_requests(worker: Worker, engine: AdapterEngine, base: Path) -> None:
    """Also after adapters were served: the spans of a reply then name both versions."""
    await worker.load_adapter(version(2), base, ADAPTER, "stable")
    await worker.load(version(7, None), base)
    async with worker.request("stable"):
        await worker.load(version(8, None), base)
        assert engine.base == 8


async def test_refused_adapters_of_another_base_leave_what_was_served(
    worker: Worker, engine: AdapterEngine, base: Path
) -> None:
    engine.refused = 8
    await worker.load_adapter(version(2), base, ADAPTER, "stable")
    for served in ("m@2", "m"):
        with pytest.raises(CheckpointRefusedError, match="NaN"):
            await worker.load_adapter(version(8, 7), base, ADAPTER, "stable")
        assert (engine.base, worker.slot("stable").served_name) == (1 if served == "m@2" else 5, served)
        await worker.load(version(5, None), base)
    assert await served_name(worker) == "m"
