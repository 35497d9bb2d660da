"""Check every engine against the contract of `stepstream.services.inference.engine`."""

import asyncio
import json
import math
import random
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from broken_versions import cut, emptied, with_tensor, without_a_tensor
from engine_models import TransformersModel, trained_version
from labelled_records import tiny_model
from reference_sampling import reference_logprobs, response_logprobs
from required_tools import require_package
from waiting import TIMEOUT_S

from stepstream.config import InferenceSettings
from stepstream.learner.model.checkpoint import describe
from stepstream.services.gateway.protocols.chat.protocol import CHAT
from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.engine import (
    BadPromptError,
    CheckpointRefusedError,
    Engine,
    SamplingMask,
    SamplingParams,
    TokenChunk,
    VersionSpan,
)
from stepstream.services.inference.sampling import Context
from stepstream.services.inference.stop_strings import StopStrings
from stepstream.services.inference.torch_engine import TorchEngine
from stepstream.services.inference.vllm_engine import VllmEngine
from stepstream.topics.events import new_checkpoint
from stepstream.versions.shared_memory import SharedVersionReader, SharedVersions

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_LENGTH = 256
TOLERANCE = 1e-4
PROMPT = [1, 30, 81, 14, 76, 16, 99]
SECOND_END = 3
"""A token that ends a turn by generation_config.json only, as in some instruct models."""


@dataclass
class Served:
    engine: Engine
    folders: list[Path]
    references: list[TransformersModel]
    loads: int = 0

    async def load(self, which: int) -> int:
        """Load one of the models under a new version."""
        self.loads += 1
        await self.engine.load(self.folders[which], self.loads)
        return self.loads


def torch_engine() -> Engine:
    return TorchEngine(max_batch=16, max_length=MAX_LENGTH, threads=1)


def vllm_engine() -> Engine:
    require_package("vllm")
    return VllmEngine(InferenceSettings(engine="vllm", max_batch=16, max_model_len=MAX_LENGTH, kv_cache_bytes=64 << 20))


@pytest_asyncio.fixture(
    loop_scope="module",
    scope="module",
    params=[
        pytest.param(torch_engine, id="torch"),
        pytest.param(vllm_engine, id="vllm", marks=pytest.mark.vllm),
    ],
)
async def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """Start the engine on a version that the learner trained, as a restarted worker does; two models to swap."""
    base = tmp_path_factory.mktemp("models")
    roots = [tiny_model(base / f"root-{seed}", seed) for seed in range(2)]
    for root in roots:
        config = json.loads((root / "generation_config.json").read_bytes())
        ends = [config["eos_token_id"], SECOND_END]
        (root / "generation_config.json").write_text(json.dumps(config | {"eos_token_id": ends}))
    folders = [trained_version(roots[0], base / "trained-0"), trained_version(roots[1], base / "trained-1")]
    engine = request.param()
    served = Served(engine, folders, [TransformersModel(folder) for folder in folders])
    await served.load(0)
    yield served
    await engine.close()


async def complete(engine: Engine, prompt: list[int], **params: Any) -> tuple[list[int], list[float], TokenChunk]:
    chunks = [chunk async for chunk in engine.generate(prompt, SamplingParams(**params))]
    assert [chunk.finish_reason is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    tokens = [token for chunk in chunks for token in chunk.token_ids]
    logprobs = [logprob for chunk in chunks for logprob in chunk.logprobs]
    assert len(tokens) == len(logprobs)
    return tokens, logprobs, chunks[-1]


def prompts(count: int) -> list[list[int]]:
    rng = random.Random(5)
    return [[1, *(rng.randrange(4, 100) for _ in range(rng.randrange(1, 60)))] for _ in range(count)]


async def test_logprobs_are_those_of_the_sampled_distribution(served: Served) -> None:
    await served.load(0)
    temperatures = [0.5, 1.0, 1.7]
    tested_prompts = prompts(12)
    replies = await asyncio.gather(
        *(
            complete(served.engine, prompt, max_tokens=20, temperature=temperature)
            for prompt in tested_prompts
            for temperature in temperatures
        )
    )
    requests = [(prompt, temperature) for prompt in tested_prompts for temperature in temperatures]
    for (prompt, temperature), (tokens, logprobs, _) in zip(requests, replies, strict=True):
        assert served.references[0].logprobs(prompt, tokens, temperature) == pytest.approx(logprobs, abs=TOLERANCE)


async def test_sampling_follows_the_distribution(served: Served) -> None:
    await served.load(0)
    replies = await asyncio.gather(*(complete(served.engine, PROMPT, max_tokens=1) for _ in range(2000)))
    counts = dict.fromkeys(range(100), 0)
    for tokens, _, _ in replies:
        counts[tokens[0]] += 1
    for token, count in counts.items():
        [logprob] = served.references[0].logprobs(PROMPT, [token])
        expected = 2000 * 2.718281828**logprob
        assert abs(count - expected) <= 6 * (expected + 1) ** 0.5, token


async def test_greedy_tokens_match_the_reference(served: Served) -> None:
    await served.load(1)
    for prompt in prompts(4):
        tokens, logprobs, last = await complete(served.engine, prompt, max_tokens=24, temperature=0.0)
        assert tokens == served.references[1].greedy(prompt, 24)
        assert served.references[1].logprobs(prompt, tokens) == pytest.approx(logprobs, abs=TOLERANCE)
        assert last.finish_reason == ("stop" if tokens[-1] == 2 else "length")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_response_with_its_last_token(served: Served, stream: bool) -> None:
    await served.load(1)
    tokenizer = ChatTokenizer(served.folders[1])
    prompt = prompts(1)[0]
    greedy, _, _ = await complete(served.engine, prompt, max_tokens=24, temperature=0.0)
    middle = next(index for index in range(6, 24) if greedy[index] != 2)
    stop = tokenizer.text(greedy[middle - 1 : middle + 1])
    end = next(length for length in range(1, 25) if stop in tokenizer.text(greedy[:length]))
    stops = StopStrings([stop, "never said"], tokenizer)
    tokens, logprobs, last = await complete(
        served.engine, prompt, max_tokens=24, temperature=0.0, stream=stream, stops=stops
    )
    assert tokens == greedy[:end]
    assert last.finish_reason == "stop"
    assert [(span.start, span.end) for span in last.versions] == [(0, end)]
    assert served.references[1].logprobs(prompt, tokens) == pytest.approx(logprobs, abs=TOLERANCE)


async def test_top_p_keeps_the_nucleus_and_renormalises(served: Served) -> None:
    await served.load(0)
    exact = sorted(((served.references[0].logprobs(PROMPT, [token])[0], token) for token in range(100)), reverse=True)
    nucleus: dict[int, float] = {}
    for logprob, token in exact:
        if sum(nucleus.values()) >= 0.3:
            break
        nucleus[token] = 2.718281828**logprob
    share = sum(nucleus.values())
    for tokens, logprobs, _ in await asyncio.gather(
        *(complete(served.engine, PROMPT, max_tokens=1, top_p=0.3) for _ in range(50))
    ):
        assert tokens[0] in nucleus
        assert 2.718281828 ** logprobs[0] == pytest.approx(nucleus[tokens[0]] / share, rel=1e-3)


@pytest.mark.parametrize(
    "fields",
    [
        {"top_p": 0.6},
        {"top_k": 5},
        {"min_p": 0.1},
        {"presence_penalty": 1.0},
        {"frequency_penalty": 0.7},
        {"repetition_penalty": 1.3},
        {"logit_bias": ((30, 4.0), (81, -100.0))},
        {"top_p": 0.8, "top_k": 20, "min_p": 0.02, "presence_penalty": 0.5, "repetition_penalty": 1.1},
    ],
    ids=lambda fields: "+".join(fields),
)
async def test_logprobs_at_temperature_0_7_with_each_kind_of_truncation(served: Served, fields: dict[str, Any]) -> None:
    """And the masks: the ids that were left, none for a token with more than were asked for."""
    await served.load(0)
    params = SamplingParams(max_tokens=16, temperature=0.7, mask_ids=20, **fields)
    tested = prompts(6)
    requests = [{"stream": number % 2 == 1, "mask_ids": 20, **fields} for number in range(len(tested))]
    replies = await asyncio.gather(
        *(
            complete(served.engine, prompt, max_tokens=16, temperature=0.7, **request)
            for prompt, request in zip(tested, requests, strict=True)
        )
    )
    for prompt, (tokens, logprobs, last) in zip(tested, replies, strict=True):
        logits = served.references[0].logits(prompt, tokens)
        expected = response_logprobs(logits, prompt, tokens, params)
        assert expected == pytest.approx(logprobs, abs=TOLERANCE)
        assert last.mask == expected_mask(logits, prompt, tokens, params)


def expected_mask(logits: Any, prompt: list[int], tokens: list[int], params: SamplingParams) -> SamplingMask:
    mask = SamplingMask([], [])
    for at in range(len(tokens)):
        left = reference_logprobs(logits[at : at + 1], params, Context(prompt, tokens[:at]))
        ids = [token for token, logprob in enumerate(left) if math.isfinite(logprob)]
        mask.append(ids if params.truncates and len(ids) <= params.mask_ids else ())
    return mask


async def test_a_bias_of_an_unknown_token_is_refused(served: Served) -> None:
    with pytest.raises(BadPromptError):
        await complete(served.engine, PROMPT, max_tokens=2, logit_bias=((100, 1.0),))


async def test_a_seed_decides_the_response(served: Served) -> None:
    await served.load(0)
    alone, _, _ = await complete(served.engine, PROMPT, max_tokens=30, seed=11)
    crowd = [complete(served.engine, prompt, max_tokens=30) for prompt in prompts(10)]
    (again, _, _), (other, _, _), *_ = await asyncio.gather(
        complete(served.engine, PROMPT, max_tokens=30, seed=11),
        complete(served.engine, PROMPT, max_tokens=30, seed=12),
        *crowd,
    )
    assert again == alone
    assert other != alone


async def test_length_limits(served: Served) -> None:
    tokens, _, last = await complete(served.engine, PROMPT, max_tokens=5, temperature=2.0, seed=3)
    assert (len(tokens), last.finish_reason) == (5, "length")
    for prompt in ([], [1] * MAX_LENGTH):
        with pytest.raises(BadPromptError):
            await complete(served.engine, prompt, max_tokens=5)
    with pytest.raises(BadPromptError):
        await complete(served.engine, [1, 100_000], max_tokens=5)


async def test_every_end_of_the_generation_config_ends_a_response(served: Served) -> None:
    await served.load(1)
    tokens, _, last = await complete(served.engine, PROMPT, max_tokens=5, logit_bias=((SECOND_END, 100.0),))
    assert (tokens, last.finish_reason) == ([SECOND_END], "stop")


async def test_a_stream_has_several_chunks_and_the_same_tokens(served: Served) -> None:
    version = await served.load(0)
    at_once, _, last = await complete(served.engine, PROMPT, max_tokens=20, temperature=0.0)
    chunks = [
        chunk
        async for chunk in served.engine.generate(PROMPT, SamplingParams(max_tokens=20, temperature=0.0, stream=True))
    ]
    assert len(chunks) > 1
    assert [token for chunk in chunks for token in chunk.token_ids] == at_once
    assert list(chunks[-1].versions) == list(last.versions) == [VersionSpan(version, 0, len(at_once))]


async def test_more_requests_than_the_batch_holds(served: Served) -> None:
    replies = await asyncio.gather(*(complete(served.engine, prompt, max_tokens=6) for prompt in prompts(60)))
    assert len(replies) == 60


async def test_closing_a_stream_early_frees_the_request(served: Served) -> None:
    stream = served.engine.generate(PROMPT, SamplingParams(max_tokens=200, temperature=2.0, stream=True))
    await anext(stream)
    await stream.aclose()
    tokens, _, _ = await complete(served.engine, PROMPT, max_tokens=3)
    assert 0 < len(tokens) <= 3


async def test_hot_swap_under_load(served: Served) -> None:
    """No request fails, each token comes from its span's version, and the last state equals a fresh engine's."""
    first = await served.load(0)
    stop = asyncio.Event()
    replies: list[tuple[list[int], list[int], list[float], TokenChunk]] = []

    async def agent(prompt: list[int]) -> None:
        while not stop.is_set():
            replies.append((prompt, *await complete(served.engine, prompt, max_tokens=150, temperature=2.0)))

    agents = [asyncio.create_task(agent(prompt)) for prompt in prompts(12)]
    for which in (1, 0, 1, 0, 1):
        before = len(replies)
        await until(lambda before=before: len(replies) >= before + 8)  # type: ignore[misc]
        await served.load(which)
    stop.set()
    await asyncio.gather(*agents)
    spans = [list(last.versions) for _, _, _, last in replies]
    assert {span.version for span_list in spans for span in span_list} == set(range(first, first + 6))
    assert any(len(span_list) > 1 for span_list in spans)
    for prompt, tokens, logprobs, last in replies:
        assert [span.start for span in last.versions] == [0, *(span.end for span in last.versions)][:-1]
        assert last.versions[-1].end == len(tokens)
        for span in last.versions:
            reference = served.references[(span.version - first) % 2]
            exact = reference.logprobs(prompt, tokens, 2.0)[span.start : span.end]
            assert exact == pytest.approx(logprobs[span.start : span.end], abs=TOLERANCE)
    for prompt in prompts(3):
        tokens, _, _ = await complete(served.engine, prompt, max_tokens=16, temperature=0.0)
        assert tokens == served.references[1].greedy(prompt, 16)


async def test_a_version_in_memory_is_served_after_the_learner_has_ended(served: Served, tmp_path: Path) -> None:
    folder = served.folders[1]
    files = describe(folder.parent)
    checkpoint = new_checkpoint(
        event_id="0197-abcdef", occurred_at_us=0, model="demo", version=1, uri="s3://nowhere", files=files,
        weights_sha256="", code_version="",
    )  # fmt: skip
    shared, reader = SharedVersions(tmp_path, "demo", 1 << 30), SharedVersionReader(tmp_path)
    shared.put(1, checkpoint["event_id"], folder)
    await served.load(0)
    taken = reader.take(checkpoint)
    shared.close()
    await served.engine.load(taken, 1000)
    tokens, _, last = await complete(served.engine, PROMPT, max_tokens=8, temperature=0.0)
    assert tokens == served.references[1].greedy(PROMPT, 8)
    assert last.versions[0].version == 1000
    await served.load(0)
    reader.close()


@pytest.mark.parametrize(("text", "called"), [("get(a)", True), ("geez", False), ("get(a", False)])
async def test_vllm_has_our_tool_parsers(served: Served, text: str, called: bool) -> None:
    """The default parser, in whole and streamed replies; the model is made to write the text."""
    if not isinstance(served.engine, VllmEngine):
        pytest.skip("the torch engine's worker parses in its own process: tests/unit/inference/test_app.py")
    tools = [{"type": "function", "function": {"name": "get", "parameters": {}}}]
    body = {"model": "demo", "messages": [{"role": "user", "content": "q"}], "tools": tools, "max_tokens": 30}
    body |= {"structured_outputs": {"choice": [text]}}
    async with served.engine.post("/v1/chat/completions", json.dumps(body).encode()) as answer:
        message = (await answer.json())["choices"][0]["message"]
    stream = CHAT.stream()
    async with served.engine.post("/v1/chat/completions", json.dumps(body | {"stream": True}).encode()) as answer:
        async for line in answer.content:
            if line.startswith(b"data: {"):
                stream.add(json.loads(line[6:]))
    streamed = stream.answer()
    if called:
        [call] = message["tool_calls"]
        assert call["function"] == {"name": "get", "arguments": '{"input": "a"}'}
        assert [(c["name"], c["arguments"]) for c in streamed.message["tool_calls"]] == [("get", '{"input": "a"}')]
        assert streamed.finish_reason == "tool_calls"
    else:
        assert (message["content"], message.get("tool_calls") or []) == (text, [])
        assert (streamed.message["content"], streamed.message["tool_calls"]) == (text, [])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        pytest.param(cut, "header describes", id="cut"),
        pytest.param(emptied, "cannot be read", id="empty"),
        pytest.param(with_tensor(lambda tensor: tensor[:-1]), "has shape", id="misshapen"),
        pytest.param(with_tensor(lambda tensor: tensor * float("nan")), "has a NaN", id="nan"),
        pytest.param(without_a_tensor, r"differ in 1 tensors", id="incomplete"),
    ],
)
async def test_a_bad_version_is_refused_and_the_served_one_stays(
    served: Served, damage: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    version = await served.load(0)
    broken = shutil.copytree(served.folders[1], tmp_path / "broken")
    damage(broken)
    with pytest.raises(CheckpointRefusedError, match=rf"broken.*{reason}"):
        await served.engine.load(broken, 99)
    assert served.engine.version == version
    tokens, _, last = await complete(served.engine, PROMPT, max_tokens=8, temperature=0.0)
    assert tokens == served.references[0].greedy(PROMPT, 8)
    assert last.versions[0].version == version


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.005)
