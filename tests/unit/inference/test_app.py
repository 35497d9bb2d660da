"""Test the worker over HTTP with a scripted engine: replies, streams, and errors."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from labelled_records import tiny_model

from stepstream.services.inference.app import App
from stepstream.services.inference.chat_template import ChatTemplate
from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.engine import Engine, EngineError, SamplingParams, TokenChunk, VersionSpan
from stepstream.services.inference.tool_parsers import CallLine
from stepstream.services.inference.worker import Worker

EOS = 2
NEVER = 10**6
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("get", "calc")]
REQUEST: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "q:a+c"}],
    "tools": TOOLS,
    "logprobs": True,
    "return_token_ids": True,
}


class ScriptedEngine(Engine):
    """Answers every request with the same tokens, half of them by version 3 and half by version 4."""

    def __init__(self) -> None:
        super().__init__()
        self.response: list[int] = []
        self.fault: Exception | None = None
        self.requests: list[tuple[Sequence[int], SamplingParams]] = []

    @property
    def version(self) -> int | None:
        return 4

    async def load(self, folder: Path, version: int) -> None:
        raise NotImplementedError

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams) -> AsyncGenerator[TokenChunk, None]:
        self.requests.append((prompt_ids, params))
        if self.fault is not None:
            raise self.fault
        stops = params.stops
        end = 1 + next((at for at, token in enumerate(self.response) if stops and stops.is_stopped_by(token)), NEVER)
        response = self.response[:end]
        half = len(response) // 2
        spans = [VersionSpan(3, 0, half), VersionSpan(4, half, len(response))]
        reason: Any = "stop" if response[-1] == EOS or end <= NEVER else "length"
        if params.stream:
            for token in response[:-1]:
                yield TokenChunk([token], [-0.5])
            yield TokenChunk(response[-1:], [-0.5], reason, spans)
        else:
            yield TokenChunk(response, [-0.5] * len(response), reason, spans)

    async def close(self) -> None:
        raise NotImplementedError


@dataclass
class Served:
    app: App
    worker: Worker
    engine: ScriptedEngine
    tokenizer: ChatTokenizer

    def script(self, text: str, *, ended: bool = True) -> list[int]:
        """Script the engine; returns the tokens."""
        ids = self.tokenizer.prompt_ids([{"role": "user", "content": text}], [])[1:-1]
        self.engine.response = [*ids, EOS] if ended else ids
        return self.engine.response

    async def call(
        self, method: str, path: str, body: Any = None, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> tuple[int, bytes]:
        """One HTTP request."""
        raw = body if isinstance(body, bytes) else orjson.dumps(body)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": raw}

        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app({"type": "http", "method": method, "path": path, "headers": headers}, receive, send)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)

    async def chat(self, **fields: Any) -> tuple[int, dict[str, Any]]:
        status, body = await self.call("POST", "/v1/chat/completions", REQUEST | fields)
        return status, orjson.loads(body)

    async def stream(self, **fields: Any) -> list[dict[str, Any]]:
        status, body = await self.call("POST", "/v1/chat/completions", REQUEST | {"stream": True} | fields)
        assert status == 200
        *events, done, _ = body.split(b"\n\n")
        assert done == b"data: [DONE]"
        return [orjson.loads(event.removeprefix(b"data: ")) for event in events]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return ChatTokenizer(tiny_model(tmp_path_factory.mktemp("model") / "m", 0))


@pytest.fixture
async def served(tokenizer: ChatTokenizer) -> Served:
    engine = ScriptedEngine()
    worker = Worker("demo", engine, 64)
    worker.tokenizer = tokenizer
    return Served(App(worker, CallLine()), worker, engine, tokenizer)


async def test_a_reply_has_tokens_logprobs_and_versions(served: Served) -> None:
    tokens = served.script("ans(11)")
    status, reply = await served.chat(temperature=0.7, max_tokens=9, seed=5, top_p=0.5)
    assert status == 200
    [choice] = reply["choices"]
    assert choice["message"] == {"role": "assistant", "content": "ans(11)", "refusal": None}
    assert (choice["finish_reason"], choice["token_ids"]) == ("stop", tokens)
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [-0.5] * len(tokens)
    assert choice["weight_versions"] == [
        {"version": 3, "start": 0, "end": 4},
        {"version": 4, "start": 4, "end": 8},
    ]
    [(prompt, params)] = served.engine.requests
    assert reply["prompt_token_ids"] == prompt
    assert params == SamplingParams(9, 0.7, 0.5, seed=5, stream=False)
    assert reply["usage"]["total_tokens"] == len(prompt) + len(tokens)
    _, plain = await served.chat(plain_logprobs=True)
    assert plain["choices"][0]["logprobs"] == {"values": [-0.5] * len(tokens)}


async def test_the_prompt_after_a_tool_call_continues_the_sampled_tokens(served: Served) -> None:
    tokens = served.script("get(a)")
    _, reply = await served.chat()
    [choice] = reply["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    [call] = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "get", "arguments": '{"input": "a"}'}
    tool = {"role": "tool", "tool_call_id": call["id"], "content": "4"}
    await served.chat(messages=[*REQUEST["messages"], choice["message"], tool])
    (first, _), (second, _) = served.engine.requests
    assert list(second)[: len(first) + len(tokens)] == [*first, *tokens]


async def test_a_cut_off_call_is_content(served: Served) -> None:
    served.script("get(a)", ended=False)
    _, reply = await served.chat()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["choices"][0]["message"]["content"] == "get(a)"


@pytest.mark.parametrize(
    ("stop", "text", "tokens"), [("1)", "ans(1", 7), (["(", "s("], "an", 4), (["x"], "ans(11)", 8)]
)
async def test_a_stop_string_ends_the_response_and_is_cut_from_the_text(
    served: Served, stop: str | list[str], text: str, tokens: int
) -> None:
    response = served.script("ans(11)")
    _, reply = await served.chat(stop=stop)
    [choice] = reply["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
    assert choice["token_ids"] == response[:tokens]
    assert choice["weight_versions"][-1]["end"] == tokens
    streamed = [event["choices"][0] for event in await served.stream(stop=stop)]
    assert "".join(each["delta"].get("content", "") for each in streamed) == text
    assert [token for each in streamed for token in each["token_ids"]] == response[:tokens]
    assert streamed[-1]["finish_reason"] == "stop"


async def test_several_responses_each_have_their_tokens_and_seed(served: Served) -> None:
    tokens = served.script("ans(11)")
    _, reply = await served.chat(n=3, seed=5)
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert [choice["token_ids"] for choice in reply["choices"]] == [tokens] * 3
    assert reply["usage"]["completion_tokens"] == 3 * len(tokens)
    assert [params.seed for _, params in served.engine.requests] == [5, 6, 7]
    *events, last = await served.stream(n=3, stream_options={"include_usage": True})
    for number in range(3):
        mine = [choice for event in events for choice in event["choices"] if choice["index"] == number]
        assert "".join(choice["delta"].get("content", "") for choice in mine) == "ans(11)"
        assert mine[0]["delta"]["role"] == "assistant"
        assert mine[-1]["weight_versions"] == reply["choices"][number]["weight_versions"]
    assert last["usage"] == reply["usage"]
    assert ["prompt_token_ids" in event for event in events] == [True] + [False] * (len(events) - 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_call_fails_if_one_of_several_responses_fails(served: Served, stream: bool) -> None:
    served.script("ans(11)")
    served.engine.fault = EngineError("the engine was closed")
    status, _ = await served.call("POST", "/v1/chat/completions", REQUEST | {"n": 2, "stream": stream})
    assert status == 503


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("text", ["ans(11)", "get(a)", "getting it", "g", "calc(1", ""])
async def test_a_stream_adds_up_to_the_complete_reply(served: Served, text: str, ended: bool) -> None:
    if not text and not ended:
        return
    tokens = served.script(text, ended=ended)
    _, reply = await served.chat()
    events = await served.stream(stream_options={"include_usage": True})
    *chunks, last = events
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    message = reply["choices"][0]["message"]
    assert "".join(delta.get("content") or "" for delta in deltas) == (message["content"] or "")
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [call["function"] for call in calls] == [call["function"] for call in message.get("tool_calls", [])]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [token for choice in choices for token in choice["token_ids"]] == tokens
    assert sum(len(choice["logprobs"]["content"]) for choice in choices) == len(tokens)
    assert choices[-1]["finish_reason"] == reply["choices"][0]["finish_reason"]
    assert choices[-1]["weight_versions"] == reply["choices"][0]["weight_versions"]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert chunks[0]["prompt_token_ids"] == reply["prompt_token_ids"]
    assert last["usage"] == reply["usage"]


async def test_content_is_streamed_as_soon_as_it_cannot_be_a_call(served: Served) -> None:
    served.script("grasp")
    events = await served.stream()
    pieces = [event["choices"][0]["delta"].get("content") for event in events]
    assert pieces[:4] == [None, "gr", "a", "s"]


async def test_token_ids_are_left_out_unless_requested(served: Served) -> None:
    served.script("ans(1)")
    _, reply = await served.chat(logprobs=False, return_token_ids=False)
    assert "prompt_token_ids" not in reply
    assert "token_ids" not in reply["choices"][0]
    assert reply["choices"][0]["logprobs"] is None


async def test_tool_choice_none_leaves_a_call_as_content(served: Served) -> None:
    served.script("get(a)")
    _, reply = await served.chat(tool_choice="none")
    assert reply["choices"][0]["message"]["content"] == "get(a)"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "king", "content": ""}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "get"}}]}]}, "messages[0]"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "get", "arguments": "{"}}]}]},
            "messages[0]",
        ),
        ({"messages": [{"role": "user", "content": "x" * 100}]}, "messages"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"stop": [""]}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"seed": True}, "seed"),
        ({"tools": [{"name": "get"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "get"}}}, "tool_choice"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"chat_template_kwargs": ["x"]}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"stepstream_started_at_us": -1}, "stepstream_started_at_us"),
        ({"stepstream_prefix": {"token_ids": [], "messages": 1}}, "stepstream_prefix"),
        ({"model": 7}, "model"),
        ({"stream_options": "all"}, "stream_options"),
    ],
)
async def test_the_error_names_the_invalid_field(served: Served, fields: dict[str, Any], named: str) -> None:
    served.script("ans(1)")
    status, reply = await served.chat(**fields)
    assert status == 400
    assert reply["error"]["type"] == "invalid_request_error"
    assert reply["error"]["param"] == named
    assert served.worker.in_flight == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("best_of", 2),
        ("guided_json", {"type": "object"}),
        ("structured_outputs", {"regex": "a+"}),
        ("reasoning_effort", "low"),
        ("thinking_token_budget", 5),
        ("prompt_logprobs", 1),
        ("min_tokens", 3),
        ("ignore_eos", True),
        ("stop_token_ids", [5]),
        ("bad_words", ["x"]),
        ("allowed_token_ids", [5]),
        ("use_beam_search", True),
        ("functions", [{"name": "get"}]),
        ("chat_template", "{{ messages }}"),
        ("continue_final_message", True),
        ("truncate_prompt_tokens", 4),
        ("modalities", ["audio"]),
        ("a_field_of_next_year", 1),
    ],
)
async def test_a_field_without_effect_is_refused_by_name(served: Served, name: str, value: Any) -> None:
    served.script("ans(1)")
    status, reply = await served.chat(**{name: value})
    assert (status, reply["error"]["param"]) == (400, name)
    assert served.engine.requests == []


async def test_values_that_ask_for_nothing_are_accepted(served: Served) -> None:
    served.script("ans(1)")
    neutral = {"response_format": {"type": "text"}, "best_of": 1, "ignore_eos": False, "stop_token_ids": []}
    status, _ = await served.chat(**neutral, user="u", metadata={"a": "b"}, parallel_tool_calls=True, top_k=-1)
    assert status == 200
    [(_, params)] = served.engine.requests
    assert params == SamplingParams(params.max_tokens)


async def test_sampling_fields_reach_the_engine(served: Served) -> None:
    served.script("ans(1)")
    fields: dict[str, Any] = {
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "repetition_penalty": 1.1,
    }
    await served.chat(**fields, logit_bias={"7": -100, "5": 2})
    [(_, params)] = served.engine.requests
    assert params == SamplingParams(params.max_tokens, **fields, logit_bias=((5, 2.0), (7, -100.0)))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_continues_the_recorded_ids(served: Served, stream: bool) -> None:
    tokens = served.script("get(a)")
    _, reply = await served.chat()
    [choice] = reply["choices"]
    tool = {"role": "tool", "tool_call_id": "c", "content": "4"}
    messages = [*REQUEST["messages"], choice["message"], tool]
    ids = [*reply["prompt_token_ids"], *tokens]
    fields = {"messages": messages, "stepstream_prefix": {"token_ids": ids, "messages": 2}}
    again = (await served.stream(**fields))[0] if stream else (await served.chat(**fields))[1]
    assert again["stepstream_prefix"] == "splice"
    assert again["prompt_token_ids"][: len(ids)] == ids
    ids[len(reply["prompt_token_ids"])] = 30  # another tool was called
    fields["stepstream_prefix"] = {"token_ids": ids, "messages": 2}
    other = (await served.stream(**fields))[0] if stream else (await served.chat(**fields))[1]
    assert (other["stepstream_prefix"], other["stepstream_prefix_reason"]) == ("none", "turn_differs")
    assert other["prompt_token_ids"] == again["prompt_token_ids"]
    assert "stepstream_prefix" not in reply
    _, page = await served.call("GET", "/metrics")
    assert b'prefixes_total{model="demo",reason="turn_differs",way="none"}' in page


async def test_the_template_s_arguments_and_date_reach_it(served: Served) -> None:
    served.script("ans(1)")
    source = "{{ bos_token }}{{ word }}{{ strftime_now('%d%m%Y') }}"
    served.tokenizer = served.worker.tokenizer = ChatTokenizer(served.tokenizer.folder)
    served.tokenizer.template = ChatTemplate({"default": source}, served.tokenizer.template.special)
    await served.chat(chat_template_kwargs={"word": "hi"}, stepstream_started_at_us=1_900_000_000_000_000)
    [(prompt, _)] = served.engine.requests
    assert served.tokenizer.decode(prompt) == "<bos>hi17032030"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"null"])
async def test_a_body_that_is_no_object_is_rejected(served: Served, body: bytes) -> None:
    status, reply = await served.call("POST", "/v1/chat/completions", body)
    assert status == 400
    assert b"JSON" in reply


async def test_another_model_is_not_found(served: Served) -> None:
    status, reply = await served.chat(model="demo-2")
    assert (status, reply["error"]["code"]) == (404, "model_not_found")
    assert "demo-2" in reply["error"]["message"]


async def test_another_path_is_not_found(served: Served) -> None:
    assert (await served.call("GET", "/v1/chat/completions"))[0] == 404
    assert (await served.call("GET", "/v2"))[0] == 404


async def test_a_failed_engine_answers_503(served: Served) -> None:
    served.engine.fault = EngineError("the engine has failed")
    status, reply = await served.chat()
    assert (status, reply["error"]["type"]) == (503, "server_error")
    status, reply = await served.chat(stream=True)
    assert status == 503


async def test_a_worker_without_a_checkpoint_answers_503(served: Served) -> None:
    served.worker.tokenizer = None
    status, body = await served.call("GET", "/health")
    assert (status, b"waiting for a checkpoint of 'demo'" in body) == (503, True)
    assert (await served.chat())[0] == 503
    assert orjson.loads((await served.call("GET", "/v1/models"))[1])["data"] == []


async def test_health_models_and_metrics(served: Served) -> None:
    status, body = await served.call("GET", "/health")
    assert (status, orjson.loads(body)) == (
        200,
        {"model": "demo", "version": 4, "in_flight": 0, "tracks": {"stable": 4}},
    )
    models = orjson.loads((await served.call("GET", "/v1/models"))[1])
    assert [(model["id"], model["version"]) for model in models["data"]] == [("demo", 4)]
    status, body = await served.call("GET", "/metrics")
    assert b"stepstream_inference_requests_total" in body


async def test_requests_in_flight_are_counted(served: Served) -> None:
    gate = asyncio.Event()
    served.script("ans(1)")

    async def receive() -> dict[str, Any]:
        await gate.wait()
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None: ...

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions"}
    request = asyncio.create_task(served.app(scope, receive, send))
    await asyncio.sleep(0)
    assert served.worker.in_flight == 1
    gate.set()
    await request
    assert served.worker.in_flight == 0


async def test_an_unknown_track_is_rejected(served: Served) -> None:
    header = (b"x-stepstream-track", b"beta")
    status, body = await served.call("POST", "/v1/chat/completions", REQUEST, [header])
    assert status == 400
    assert "x-stepstream-track is beta, not stable or canary" in orjson.loads(body)["error"]["message"]
