"""Test 200 swaps of the torch engine under load; test_vllm_server.py does 20 of vLLM's, which take a second each."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from engine_models import TransformersModel, trained_version
from labelled_records import tiny_model

from stepstream.services.inference.engine import Engine, SamplingParams, TokenChunk, VersionSpan
from stepstream.services.inference.torch_engine import TorchEngine

SWAPS = 200
TOKENS = 6
PROMPTS = [[1, 30, 81, 14, 76, 16, 99], [1, 5], [1, *range(10, 60)]]


@pytest_asyncio.fixture
async def engines() -> AsyncIterator[list[TorchEngine]]:
    """Return the engine to swap and one for each folder that keeps its first weights."""
    made = [TorchEngine(max_batch=8, max_length=128, threads=1) for _ in range(3)]
    yield made
    for engine in made:
        await engine.close()


async def complete(engine: Engine, prompt: Sequence[int], **params: float) -> tuple[list[int], TokenChunk]:
    chunks = [chunk async for chunk in engine.generate(prompt, SamplingParams(**params))]  # type: ignore[arg-type]
    return [token for chunk in chunks for token in chunk.token_ids], chunks[-1]


async def greedy(engine: Engine, prompt: Sequence[int]) -> tuple[list[int], list[VersionSpan]]:
    tokens, last = await complete(engine, prompt, max_tokens=TOKENS, temperature=0.0)
    return tokens, list(last.versions)


@pytest.mark.asyncio
async def test_200_swaps_under_load_fail_no_request_and_leave_nothing_behind(
    engines: list[TorchEngine], tmp_path: Path
) -> None:
    """After each swap the greedy tokens equal those of an engine that never held other weights."""
    swapped, *fresh = engines
    folders = [trained_version(tiny_model(tmp_path / f"root-{seed}", seed), tmp_path / f"v{seed}") for seed in range(2)]
    expected: list[list[list[int]]] = []
    for engine, folder in zip(fresh, folders, strict=True):
        await engine.load(folder, 0)
        expected.append([(await greedy(engine, prompt))[0] for prompt in PROMPTS])
        assert expected[-1] == [TransformersModel(folder).greedy(prompt, TOKENS) for prompt in PROMPTS]
    assert all(first != second for first, second in zip(*expected, strict=True)), "the models must differ"

    await swapped.load(folders[0], 0)
    stop = asyncio.Event()
    answers: list[tuple[list[int], TokenChunk]] = []

    async def agent(prompt: Sequence[int]) -> None:
        while not stop.is_set():
            answers.append(await complete(swapped, prompt, max_tokens=60, temperature=2.0))

    agents = [asyncio.create_task(agent(prompt)) for prompt in PROMPTS]
    for version in range(1, SWAPS + 1):
        which = version % 2
        await swapped.load(folders[which], version)
        found = await asyncio.gather(*(greedy(swapped, prompt) for prompt in PROMPTS))
        assert found == [(tokens, [VersionSpan(version, 0, len(tokens))]) for tokens in expected[which]], version
    stop.set()
    await asyncio.gather(*agents)  # raises the error of a failed request

    spans = [list(last.versions) for _, last in answers]
    assert any(len(versions) > 1 for versions in spans)
    for (tokens, last), versions in zip(answers, spans, strict=True):
        assert last.finish_reason in ("stop", "length")
        assert [span.start for span in versions] == [0, *(span.end for span in versions)][:-1]
        assert versions[-1].end == len(tokens)
        assert all(after.version > before.version for before, after in itertools.pairwise(versions))
