"""Test what the torch engine does at a swap by settings: end running requests first, and compute smoke prompts."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from labelled_records import tiny_model
from safetensors.torch import load_file, save_file
from torch import Tensor

from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.engine import CheckpointRefusedError, SamplingParams, TokenChunk
from stepstream.services.inference.llama import Llama, LlamaWeights
from stepstream.services.inference.torch_engine import TorchEngine

PROMPT = [3, 4, 5]
_FAULT = "malformed|cannot be read|do not fit|differs"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    root = tmp_path_factory.mktemp("models")
    return {version: tiny_model(root / str(version), version) for version in (1, 2)}


@pytest_asyncio.fixture
async def draining(folders: dict[int, Path]) -> AsyncIterator[TorchEngine]:
    engine = TorchEngine(4, 64, 1, drain=True)
    await engine.load(folders[1], 1)
    yield engine
    await engine.close()


async def finish(stream: AsyncIterator[TokenChunk]) -> list[int]:
    """Return the versions of a response that goes on to its end."""
    last = [chunk async for chunk in stream][-1]
    return [span.version for span in last.versions]


async def test_draining_ends_running_requests_on_the_old_weights_and_starts_waiting_ones_on_the_new(
    draining: TorchEngine, folders: dict[int, Path]
) -> None:
    streams = [
        draining.generate(PROMPT, SamplingParams(60, temperature=2.0, seed=seed, stream=True)) for seed in range(6)
    ]
    running = [await anext(stream) for stream in streams[:4]]  # the batch is full
    assert len(running) == 4
    waiting = [asyncio.create_task(finish(stream)) for stream in streams[4:]]
    await asyncio.sleep(0)  # their requests are queued now
    swap = asyncio.create_task(draining.load(folders[2], 2))
    before = await asyncio.gather(*(finish(stream) for stream in streams[:4]))
    await swap
    assert before == [[1]] * 4
    assert all(len(versions) == 1 for versions in await asyncio.gather(*waiting))
    assert await finish(draining.generate(PROMPT, SamplingParams(4))) == [2]


async def test_a_swap_waits_for_no_request_that_its_caller_left(
    draining: TorchEngine, folders: dict[int, Path]
) -> None:
    stream = draining.generate(PROMPT, SamplingParams(60, temperature=2.0, seed=1, stream=True))
    await anext(stream)
    swap = asyncio.create_task(draining.load(folders[2], 2))
    await stream.aclose()
    await swap
    assert draining.version == 2


def infinite_after(folder: Path, prompt: str, others: Sequence[str]) -> None:
    """Make a logit infinite after one prompt but not after others nor a test prompt, although every weight is finite.

    One row of the output layer is large and orthogonal to the states after the others.
    """
    weights = LlamaWeights(folder)
    tokenizer = ChatTokenizer(folder)

    def state(tokens: Sequence[int]) -> Tensor:
        llama = Llama(weights, 1, len(tokens))
        return llama.read(0, torch.tensor([tokens]), torch.tensor([len(tokens) - 1]))[0]

    test_prompt = torch.linspace(0, weights.shape.vocabulary - 1, 16).long().tolist()
    with torch.inference_mode():
        finite = torch.stack([state(tokens) for tokens in (test_prompt, *map(tokenizer.encode, others))])
        own = state(tokenizer.encode(prompt))
        row = own - finite.T @ torch.linalg.lstsq(finite.T, own).solution
    head = torch.zeros_like(weights.embedding)
    head[0] = row * (2 * torch.finfo().max / float(row @ own))
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"lm_head.weight": head}, folder / "model.safetensors", {"format": "pt"})


@pytest.fixture
def untied(folders: dict[int, Path], tmp_path: Path) -> dict[int, Path]:
    """The versions with an output layer of their own; the second has an infinite logit after `q:a`."""
    copies = {version: shutil.copytree(folder, tmp_path / str(version)) for version, folder in folders.items()}
    for folder in copies.values():
        config = json.loads((folder / "config.json").read_bytes())
        (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
        tensors = load_file(folder / "model.safetensors")
        head = tensors["model.embed_tokens.weight"].clone()
        save_file(tensors | {"lm_head.weight": head}, folder / "model.safetensors", {"format": "pt"})
    infinite_after(copies[2], "q:a", ["zz"])
    return copies


@pytest.mark.parametrize(("prompts", "is_refused"), [(["zz", "q:a"], True), (["zz"], False), ([], False)])
async def test_a_version_with_an_infinite_logit_after_a_smoke_prompt_is_refused(
    untied: dict[int, Path], prompts: Sequence[str], is_refused: bool
) -> None:
    engine = TorchEngine(4, 64, 1, smoke_prompts=prompts)
    await engine.load(untied[1], 1)
    if is_refused:
        with pytest.raises(CheckpointRefusedError, match="smoke prompt 'q:a'"):
            await engine.load(untied[2], 2)
    else:
        await engine.load(untied[2], 2)
    assert engine.version == (1 if is_refused else 2)
    await engine.close()


@pytest.mark.parametrize(
    "change",
    [
        {"num_attention_heads": 0},
        {"max_position_embeddings": "64"},
        {"rms_norm_eps": "small"},
        {"num_hidden_layers": 1.5},
        {"vocab_size": [3]},
        {"rope_parameters": 5},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_a_malformed_configuration_is_refused_and_the_served_version_stays(
    change: dict[str, object], draining: TorchEngine, folders: dict[int, Path], tmp_path: Path
) -> None:
    """Any other error would end the worker, and each of its restarts."""
    folder = shutil.copytree(folders[2], tmp_path / "other")
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(CheckpointRefusedError, match=_FAULT):
        await draining.load(folder, 2)
    assert draining.version == 1
    first = TorchEngine(4, 64, 1)
    try:
        with pytest.raises(CheckpointRefusedError, match=_FAULT):
            await first.load(folder, 2)
        await first.load(folders[2], 2)
    finally:
        await first.close()
