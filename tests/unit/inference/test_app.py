"""Test the worker over HTTP with a scripted engine: replies, streams, and errors."""

import asyncio
from typing import Any

import orjson
import pytest
from labelled_records import tiny_model
from scripted_engine import REQUEST, Served, serve_scripted

from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.engine import EngineError, SamplingParams


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return ChatTokenizer(tiny_model(tmp_path_factory.mktemp("model") / "m", 0))


@pytest.fixture
async def served(tokenizer: ChatTokenizer) -> Served:
    return serve_scripted(tokenizer)


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
    assert "sampling_mask" not in choice
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
    _, reply = await served.chat(stepstream_sampling_mask=5)
    events = await served.stream(stream_options={"include_usage": True}, stepstream_sampling_mask=5)
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
    assert reply["choices"][0]["sampling_mask"] == {"counts": [1] * len(tokens), "token_ids": tokens}
    assert choices[-1]["sampling_mask"] == reply["choices"][0]["sampling_mask"]
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


async def test_a_worker_is_ready_once_it_serves_a_version(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    status, body = await served.call("GET", "/ready")
    assert (status, orjson.loads(body)["version"]) == (200, served.worker.version)
    monkeypatch.setattr(type(served.worker), "version", None)
    status, body = await served.call("GET", "/ready")
    assert (status, orjson.loads(body)["message"]) == (503, "waiting for a checkpoint of 'demo'")
