"""Test the slots of a worker: a canary beside the stable version, and its end."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from labelled_records import tiny_model
from safetensors.torch import load_file, save_file

from stepstream.services.inference.engine import BadPromptError, CheckpointRefusedError, Engine, SamplingParams
from stepstream.services.inference.torch_engine import TorchEngine
from stepstream.services.inference.worker import Slot, Worker
from stepstream.topics.events import Checkpoint, new_checkpoint, new_checkpoint_file, new_served_version

PROMPT = [3, 4, 5]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    root = tmp_path_factory.mktemp("models")
    return {version: tiny_model(root / str(version), version) for version in (1, 2)}


def checkpoint(version: int) -> Checkpoint:
    return new_checkpoint(
        event_id=f"c{version}",
        occurred_at_us=version,
        model="m",
        version=version,
        uri="file:///v",
        weights_sha256="",
        files=[new_checkpoint_file(path="tokenizer.json", sha256="same", size_bytes=1)],
        code_version="1",
    )


def new_engine() -> Engine:
    return TorchEngine(4, 64, 1)


@pytest_asyncio.fixture
async def worker() -> AsyncIterator[Worker]:
    made = Worker("m", new_engine(), 64, tracks=("stable", "canary"), new_engine=new_engine)
    yield made
    await made.close()


async def served_version(slot: Slot) -> int:
    with slot.in_use():
        [chunk] = [chunk async for chunk in slot.engine.generate(PROMPT, SamplingParams(2, temperature=0))]
    [span] = chunk.versions
    return span.version


async def test_each_track_has_its_version(worker: Worker, folders: dict[int, Path]) -> None:
    await worker.load(checkpoint(1), folders[1])
    assert worker.served_versions() == [new_served_version(track="stable", version=1, served_name="m")]
    assert await served_version(worker.slot("canary")) == 1

    await worker.load(checkpoint(2), folders[2], "canary")
    assert worker.tracks == {"stable": 1, "canary": 2}
    assert await served_version(worker.slot("stable")) == 1
    assert await served_version(worker.slot("canary")) == 2

    await worker.load(checkpoint(1), folders[1], "canary")
    assert worker.tracks == {"stable": 1, "canary": 1}


async def test_an_engine_without_a_limit_applies_the_model_s(folders: dict[int, Path]) -> None:
    longest = json.loads((folders[1] / "config.json").read_text())["max_position_embeddings"]
    engine = TorchEngine(1, 2**31 - 1, 1)
    await engine.load(folders[1], 1)
    params = SamplingParams(2**31 - 1, temperature=0)
    with pytest.raises(BadPromptError, match=f"takes 1 to {longest - 1}"):
        await anext(aiter(engine.generate([3] * longest, params)))
    chunks = [chunk async for chunk in engine.generate([3] * (longest - 2), params)]
    assert 1 <= sum(len(chunk.token_ids) for chunk in chunks) <= 2
    await engine.close()


async def test_requests_of_an_ended_canary_finish_on_it(worker: Worker, folders: dict[int, Path]) -> None:
    await worker.load(checkpoint(1), folders[1])
    await worker.load(checkpoint(2), folders[2], "canary")
    slot = worker.slot("canary")
    with slot.in_use():
        running = slot.engine.generate(PROMPT, SamplingParams(40, temperature=2.0, seed=1, stream=True))
        first = await anext(running)
        await worker.end_canary()
        assert worker.tracks == {"stable": 1}
        assert worker.slot("canary") is worker.slot("stable")
        rest = [chunk async for chunk in running]
    assert {span.version for span in [first, *rest][-1].versions} == {2}
    while worker._retiring:
        await asyncio.wait(worker._retiring)
    assert not worker.failed.done()


async def test_a_refused_canary_leaves_nothing(worker: Worker, folders: dict[int, Path], tmp_path: Path) -> None:
    await worker.load(checkpoint(1), folders[1])
    with pytest.raises(CheckpointRefusedError):
        await worker.load(checkpoint(2), tmp_path, "canary")
    assert worker.tracks == {"stable": 1}


async def test_a_worker_of_one_set_of_weights_serves_every_track_with_it(folders: dict[int, Path]) -> None:
    worker = Worker("m", new_engine(), 64, tracks=("canary",))
    try:
        await worker.load(checkpoint(2), folders[2])
        assert not worker.holds_both_tracks
        assert worker.tracks == {"canary": 2}
        assert worker.version_on("stable") is None
        assert worker.slot("stable") is worker.slot("canary")
    finally:
        await worker.close()


async def test_finite_weights_with_infinite_logits_are_refused(
    worker: Worker, folders: dict[int, Path], tmp_path: Path
) -> None:
    await worker.load(checkpoint(1), folders[1])
    folder = tmp_path / "overflow"
    folder.mkdir()
    for file in folders[2].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], 3e38)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointRefusedError, match="logits for a test prompt are NaN or infinite"):
        await worker.load(checkpoint(2), folder)
    assert await served_version(worker.slot("stable")) == 1
