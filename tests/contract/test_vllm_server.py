"""Test a worker on vLLM over HTTP: what the gateway reads, tool calls, adapters, swaps under load, refused versions."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import torch
import uvicorn
from engine_models import TransformersModel, adapters, trained_version
from labelled_records import tiny_model
from openai import AsyncOpenAI
from peft import PeftModel
from required_tools import require_package
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from stepstream.config import InferenceSettings
from stepstream.embedded.ports import free_block
from stepstream.services.gateway.protocols.base import Answer
from stepstream.services.gateway.protocols.chat.protocol import CHAT
from stepstream.services.inference.app import App
from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.engine import CheckpointRefusedError
from stepstream.services.inference.forward import ChatForwarder
from stepstream.services.inference.tool_parsers import NoTools
from stepstream.services.inference.vllm_engine import VllmEngine
from stepstream.services.inference.worker import Worker
from stepstream.topics.events import Checkpoint, Track, new_checkpoint

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.vllm]

MODEL = "tiny"
TOLERANCE = 1e-4
MESSAGES = [{"role": "user", "content": "q:a+c"}]
ASK: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 24}
RECORDED = {"logprobs": True, "return_token_ids": True, "plain_logprobs": True}
TOOLS = [{"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}]
DATED = "{%- if dated is defined -%}{{ strftime_now('%d %b %Y') }}{%- endif -%}"
CALL = '<tool_call>{"name": "get", "arguments": {"input": "%s"}}</tool_call>'


@dataclass
class Served:
    """A worker's application on a port, its engine, and two versions of its model."""

    url: str
    engine: VllmEngine
    worker: Worker
    folders: list[Path]
    references: list[TransformersModel]
    http: aiohttp.ClientSession
    loads: int = 0

    async def load(self, which: int) -> int:
        """Serve one of the versions under a new number."""
        self.loads += 1
        await self.worker.load(checkpoint(self.loads), self.folders[which])
        return self.loads

    async def post(self, headers: Any = None, **fields: Any) -> tuple[int, dict[str, Any]]:
        async with self.http.post(f"{self.url}/v1/chat/completions", json=ASK | fields, headers=headers) as answer:
            return answer.status, await answer.json()

    async def ask_base(self) -> Answer:
        """Return the answer of the full weights, which the worker's front gives only to a track that has them."""
        body = json.dumps(ASK | RECORDED).encode()
        async with self.engine.post("/v1/chat/completions", body) as answer:
            return CHAT.answer(await answer.json())

    async def engine_models(self) -> set[str]:
        async with self.engine._process.http.get("http://vllm/v1/models") as answer:
            return {model["id"] for model in (await answer.json())["data"]}

    async def ask(self, **fields: Any) -> Answer:
        """Return a complete reply as the gateway reads it."""
        status, reply = await self.post(**(RECORDED | fields))
        assert status == 200, reply
        return CHAT.answer(reply)

    async def stream(self, **fields: Any) -> Answer:
        """Return a streamed reply as the gateway reads it."""
        stream = CHAT.stream()
        async with self.http.post(
            f"{self.url}/v1/chat/completions", json=ASK | RECORDED | fields | {"stream": True}
        ) as answer:
            assert answer.status == 200
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    stream.add(json.loads(line[6:]))
        return stream.answer()

    def greedy(self, which: int, answer: Answer) -> list[int]:
        """Return the reference's tokens after the answer's prompt."""
        return self.references[which].greedy(answer.prompt_token_ids, ASK["max_tokens"])


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    require_package("vllm")
    base = tmp_path_factory.mktemp("models")
    roots = [tiny_model(base / f"root-{seed}", seed) for seed in range(2)]
    for root in roots:
        template = root / "chat_template.jinja"
        template.write_text(DATED + template.read_text())
    folders = [trained_version(root, base / f"v{seed}") for seed, root in enumerate(roots)]
    settings = InferenceSettings(
        engine="vllm", model=MODEL, tool_parser="hermes", max_batch=16, max_model_len=512, lora_rank=8,
        max_adapters=2, smoke_prompts=["q:a"], kv_cache_bytes=64 << 20,
        vllm_args=["--max-num-batched-tokens", "128"],
    )  # fmt: skip
    engine = VllmEngine(settings)
    worker = Worker(MODEL, engine, settings.max_model_len, tracks=("stable", "canary"), max_adapters=2)
    port = free_block(1)
    app = App(worker, NoTools(), ChatForwarder(engine))
    server = uvicorn.Server(uvicorn.Config(app, port=port, lifespan="off", log_config=None, timeout_keep_alive=120))
    task = asyncio.create_task(server.serve())
    async with aiohttp.ClientSession() as http:
        served = Served(
            f"http://127.0.0.1:{port}", engine, worker, folders, [TransformersModel(folder) for folder in folders], http
        )
        while not server.started:
            await asyncio.sleep(0.01)
        assert (await served.post())[0] == 503  # before the first version
        await served.load(0)
        yield served
    server.should_exit = True
    await task
    await worker.close()


async def test_the_gateway_reads_tokens_logprobs_and_versions(served: Served) -> None:
    version = await served.load(0)
    whole, streamed = await served.ask(), await served.stream()
    assert whole.prompt_token_ids == ChatTokenizer(served.folders[0]).prompt_ids(MESSAGES, [])
    assert whole.token_ids == served.greedy(0, whole)
    exact = served.references[0].logprobs(whole.prompt_token_ids, whole.token_ids)
    assert whole.logprobs == pytest.approx(exact, abs=TOLERANCE)
    assert whole.weight_versions == [{"version": version, "start": 0, "end": len(whole.token_ids)}]
    assert whole.model == MODEL
    for name in ("message", "token_ids", "prompt_token_ids", "weight_versions", "model", "finish_reason"):
        assert getattr(streamed, name) == getattr(whole, name), name
    assert streamed.logprobs == pytest.approx(whole.logprobs, abs=TOLERANCE)


@pytest.mark.parametrize("fields", [{"temperature": 0.7}, {"temperature": 0.7, "top_k": 3}, {"top_p": 0.5}])
async def test_logprobs_are_of_the_distribution_that_was_sampled(served: Served, fields: dict[str, float]) -> None:
    await served.load(0)
    answer = await served.ask(**({"temperature": 1} | fields), seed=5)
    assert answer.logprobs is not None
    exact = served.references[0].logprobs(answer.prompt_token_ids, answer.token_ids, fields.get("temperature", 1.0))
    if fields.keys() == {"temperature"}:
        assert answer.logprobs == pytest.approx(exact, abs=TOLERANCE)
    else:  # renormalised over fewer tokens
        assert all(found >= full - TOLERANCE for found, full in zip(answer.logprobs, exact, strict=True))
        assert sum(answer.logprobs) > sum(exact) + 1


@pytest.mark.parametrize("most", [8, 1024])
@pytest.mark.parametrize("fields", [{"top_k": 3}, {"top_p": 0.6}, {"structured_outputs": {"choice": ["ab", "cd"]}}])
async def test_the_sampling_mask_has_the_ids_that_were_left(served: Served, fields: dict[str, Any], most: int) -> None:
    await served.load(0)
    request = {"temperature": 0.7, "seed": 5, "stepstream_sampling_mask": most, **fields}
    whole, streamed = await served.ask(**request), await served.stream(**request)
    assert streamed.sampling_mask == whole.sampling_mask
    counts, ids = whole.sampling_mask["counts"], whole.sampling_mask["token_ids"]
    assert len(counts) == len(whole.token_ids)
    assert sum(counts) == len(ids)
    assert max(counts) <= most
    assert any(counts)
    assert "top_k" not in fields or set(counts) == {3}
    assert whole.logprobs is not None
    at = 0
    for index, (token, count) in enumerate(zip(whole.token_ids, counts, strict=True)):
        kept, at = ids[at : at + count], at + count
        if count:
            before = whole.prompt_token_ids + whole.token_ids[:index]
            shares = [served.references[0].logprobs(before, [each], 0.7)[0] for each in kept]
            own = shares[kept.index(token)] - torch.tensor(shares).logsumexp(0).item()
            assert own == pytest.approx(whole.logprobs[index], abs=TOLERANCE)
    openai = await served.ask(**request, plain_logprobs=False)  # the caller reads logprobs itself
    assert (openai.sampling_mask, openai.token_ids) == (whole.sampling_mask, whole.token_ids)
    status, reply = await served.post(stepstream_sampling_mask=-1)
    assert (status, reply["error"]["param"]) == (400, "stepstream_sampling_mask")


async def test_a_seed_gives_the_same_tokens_when_a_prompt_is_computed_in_parts(served: Served) -> None:
    await served.load(0)
    fields: dict[str, Any] = {"temperature": 1, "seed": 5, "messages": [{"role": "user", "content": "q:" + "a+c" * 90}]}
    in_parts, cached = await served.ask(**fields), await served.ask(**fields)
    assert len(in_parts.prompt_token_ids) > 256
    assert cached.token_ids == in_parts.token_ids


@pytest.mark.parametrize("field", ["guided_json", "best_of", "web_search_options", "prefix_answer"])
async def test_a_field_that_vllm_would_ignore_is_refused(served: Served, field: str) -> None:
    status, reply = await served.post(**{field: {}})
    assert (status, reply["error"]["param"]) == (400, field)
    for name, value in {"use_beam_search": True, "length_penalty": 0.5, "watermarking": True}.items():
        status, reply = await served.post(**{name: value})
        assert (status, reply["error"]["param"]) == (400, name)
    assert (await served.post(use_beam_search=False, length_penalty=1.0, user="someone", metadata={"a": "1"}))[0] == 200
    assert (await served.post(model="another"))[0] == 404


async def test_the_stock_client_gets_parallel_calls_and_structured_outputs(served: Served) -> None:
    client = AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
    both = {"structured_outputs": {"choice": [CALL % "a" + CALL % "b"]}}
    request: Any = {"model": MODEL, "messages": MESSAGES, "tools": TOOLS, "max_tokens": 200, "extra_body": both}
    whole = (await client.chat.completions.create(**request)).choices[0]
    assert whole.finish_reason == "tool_calls"
    calls = [call.function for call in whole.message.tool_calls or ()]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("get", {"input": c}) for c in "ab"]
    arguments: dict[int, str] = {}
    async for chunk in await client.chat.completions.create(**request, stream=True):
        for call in chunk.choices[0].delta.tool_calls or ():
            arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    assert [json.loads(arguments[index]) for index in (0, 1)] == [{"input": "a"}, {"input": "b"}]

    schema = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}
    reply = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "q:a"}],
        max_tokens=40,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    assert json.loads(reply.choices[0].message.content or "")["x"] in (1, 2)
    await client.close()


async def test_a_prompt_continues_the_recorded_ids(served: Served) -> None:
    said = {"role": "assistant", "content": "abc"}
    first = await served.ask(structured_outputs={"choice": [said["content"]]})
    assert first.message["content"] == said["content"]
    recorded = [*first.prompt_token_ids, *first.token_ids]
    messages = [*MESSAGES, said, {"role": "user", "content": "more"}]
    prefix = {"token_ids": recorded, "messages": 2}
    status, reply = await served.post(messages=messages, stepstream_prefix=prefix, **RECORDED)
    assert (status, reply["stepstream_prefix"]) == (200, "splice")
    assert reply["prompt_token_ids"] == ChatTokenizer(served.folders[0]).prompt_ids(messages, [])
    streamed = await served.stream(messages=messages, stepstream_prefix=prefix)
    assert (streamed.prefix, streamed.token_ids) == ("splice", reply["choices"][0]["token_ids"])
    edited = [*MESSAGES, {"role": "assistant", "content": "never said"}, messages[2]]
    _, reply = await served.post(messages=edited, stepstream_prefix=prefix, **RECORDED)
    assert (reply["stepstream_prefix"], reply["stepstream_prefix_reason"]) == ("none", "turn_differs")
    status, reply = await served.post(stepstream_prefix={"token_ids": []})
    assert (status, reply["error"]["param"]) == (400, "stepstream_prefix")


async def test_a_template_gets_the_date_of_the_trajectorys_start(served: Served) -> None:
    dated = {"chat_template_kwargs": {"dated": True}, "stepstream_started_at_us": 1_721_995_200_000_000}
    answer = await served.ask(**dated)
    assert "26 Jul 2024" in ChatTokenizer(served.folders[0]).decode(answer.prompt_token_ids)
    status, reply = await served.post(stepstream_started_at_us="yesterday")
    assert (status, reply["error"]["param"]) == (400, "stepstream_started_at_us")


async def test_twenty_swaps_under_load_fail_no_request(served: Served) -> None:
    """Each token comes from its span's version; after each swap the server equals a fresh engine."""
    first = await served.load(0)
    stop = asyncio.Event()
    answers: list[Answer] = []

    async def agent(number: int) -> None:
        while not stop.is_set():
            way = served.stream if number % 2 else served.ask
            answers.append(
                await way(temperature=2.0, max_tokens=120, messages=[{"role": "user", "content": f"{number}"}])
            )

    agents = [asyncio.create_task(agent(number)) for number in range(6)]
    for swap in range(20):
        which = (swap + 1) % 2
        await served.load(which)
        answer = await served.ask()
        assert answer.token_ids == served.greedy(which, answer)
    stop.set()
    await asyncio.gather(*agents)
    assert {answer.error for answer in answers} == {None}
    assert any(len(answer.weight_versions) > 1 for answer in answers)
    for answer in answers[::5]:
        assert answer.logprobs is not None
        for span in answer.weight_versions:
            reference = served.references[(span["version"] - first) % 2]
            exact = reference.logprobs(answer.prompt_token_ids, answer.token_ids, 2.0)[span["start"] : span["end"]]
            assert exact == pytest.approx(answer.logprobs[span["start"] : span["end"]], abs=TOLERANCE)


async def test_draining_ends_running_requests_on_the_old_weights(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    version = await served.load(0)
    draining = served.engine._inference.model_copy(update={"swap": "drain"})
    monkeypatch.setattr(served.engine, "_inference", draining)
    running = [asyncio.create_task(served.stream(temperature=2.0, max_tokens=200, seed=seed)) for seed in range(4)]
    while served.worker.in_flight < 4:
        await asyncio.sleep(0.001)
    with caplog.at_level("INFO", "stepstream"):
        assert await served.load(1) == version + 1
    assert all(part in caplog.text for part in ("pause_s", "load_s", "resume_s"))
    for answer in await asyncio.gather(*running):
        [span] = answer.weight_versions
        assert span["version"] in (version, version + 1)
    answer_after = await served.ask()
    assert answer_after.token_ids == served.greedy(1, answer_after)


async def test_a_version_that_fails_in_vllm_is_refused_and_the_served_one_stays(served: Served, tmp_path: Path) -> None:
    """Bypass the checks of the files: a tensor is missing in vLLM, a smoke prompt gives no finite token."""
    version = await served.load(0)
    served.loads += 2
    for name, reason in (("incomplete", "lacks 1 tensors"), ("overflowing", "is not finite")):
        folder = shutil.copytree(served.folders[1], tmp_path / name)
        tensors = load_file(folder / "model.safetensors")
        if name == "incomplete":
            del tensors["model.layers.1.mlp.down_proj.weight"]
            index = json.loads((folder / "model.safetensors.index.json").read_bytes())
            del index["weight_map"]["model.layers.1.mlp.down_proj.weight"]
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        else:
            tensors["model.norm.weight"] = tensors["model.norm.weight"].fill_(3e38)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        body = {"folder": str(folder), "version": 99, "smoke_prompts": ["q:a"]}
        async with served.engine.post("/stepstream/swap", json.dumps(body).encode()) as answer:
            message = (await answer.json())["error"]["message"]
            assert (answer.status, reason in message) == (409, True), message
        after = await served.ask()
        assert after.token_ids == served.greedy(0, after)
        assert after.weight_versions[0]["version"] == version


async def test_adapters_of_two_versions_and_the_base_answer_at_once(served: Served, tmp_path: Path) -> None:
    root, base = served.folders[0], await served.load(0)
    references, folders = {base: served.references[0]}, {}
    tracks: dict[int, Track] = {901: "stable", 902: "canary"}
    for version, track in tracks.items():
        folders[version] = adapters(root, tmp_path / str(version), seed=version)
        await served.worker.load_adapter(checkpoint(version, base), root, folders[version], track)
        merged = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(root), folders[version])
        references[version] = TransformersModel.of(merged.merge_and_unload())
    names = [status["served_name"] for status in served.worker.served_versions()]
    assert names == [f"{MODEL}@901", f"{MODEL}@902"]

    canary = {"headers": {"x-stepstream-track": "canary"}}
    requests = {901: [served.ask(), served.stream(), served.ask(model=f"{MODEL}@900")], 902: [served.ask(**canary)]}
    answers = await asyncio.gather(*(answer for version in requests for answer in requests[version]), served.ask_base())
    for version, answer in zip((901, 901, 901, 902, base), answers, strict=True):
        assert answer.model == MODEL
        assert answer.weight_versions == [{"version": version, "start": 0, "end": len(answer.token_ids)}]
        assert answer.token_ids == references[version].greedy(answer.prompt_token_ids, ASK["max_tokens"]), version
    assert len({tuple(answer.token_ids) for answer in answers}) == 3

    await served.worker.load_adapter(checkpoint(902, base), root, folders[902], "stable")  # promoted
    await served.worker.end_canary()
    assert (await served.ask()).weight_versions[0]["version"] == 902
    nan = adapters(root, tmp_path / "nan", 3, scale=float("nan"))
    large = adapters(root, tmp_path / "large", 3, rank=16)
    overflowing = adapters(root, tmp_path / "overflowing", 3, scale=1e30)  # the product of two finite weights
    for folder, reason in ((nan, "NaN"), (large, "rank"), (tmp_path / "no", "be read"), (overflowing, "smoke prompt")):
        with pytest.raises(CheckpointRefusedError, match=reason):
            await served.worker.load_adapter(checkpoint(903, base), root, folder, "stable")
        assert (await served.engine_models()) == {MODEL, f"{MODEL}@901", f"{MODEL}@902"}
    assert (await served.ask()).weight_versions[0]["version"] == 902

    # The base changes after the running requests, so that all their tokens are of the adapters on their own base.
    running = [asyncio.create_task(served.stream(temperature=2.0, max_tokens=200, seed=seed)) for seed in range(3)]
    while served.worker.in_flight < 3:
        await asyncio.sleep(0.001)
    version = await served.load(1)
    for answer in await asyncio.gather(*running):
        assert answer.weight_versions == [{"version": 902, "start": 0, "end": len(answer.token_ids)}]
        exact = references[902].logprobs(answer.prompt_token_ids, answer.token_ids, 2.0)
        assert exact == pytest.approx(answer.logprobs, abs=TOLERANCE)
    assert (await served.ask()).weight_versions[0]["version"] == version
    await served.load(0)


async def test_health_models_and_metrics(served: Served) -> None:
    async with served.http.get(f"{served.url}/health") as answer:
        assert (answer.status, (await answer.json())["version"]) == (200, served.worker.version)
    async with served.http.get(f"{served.url}/metrics") as answer:
        text = await answer.text()
    assert "stepstream_inference_version" in text
    assert "vllm:prompt_tokens_total" in text
    assert f'kv_cache_memory_bytes="{64 << 20}"' in text
    assert text.count("# TYPE process_cpu_seconds_total") == 1


def checkpoint(version: int, base: int | None = None) -> Checkpoint:
    """Return the event of a version, of which the worker needs only the numbers here."""
    return new_checkpoint(
        event_id="", occurred_at_us=0, model=MODEL, version=version, uri="", weights_sha256="", files=[],
        code_version="", base_version=base, format="full" if base is None else "lora",
    )  # fmt: skip
