"""Test that the stock clients record their calls, and succeed if recording fails."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from order_model import completion, completion_events, response, response_events

from stepstream import sdk
from stepstream.sdk.clients import recording

QUESTION: Any = {"role": "user", "content": "Where are 4711 and 4712?"}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}]
FLAT_TOOLS: list[Any] = [{"type": "function", "name": "lookup", "parameters": {"type": "object"}, "strict": False}]
CLAUDE_TOOLS: list[Any] = [{"name": "lookup", "input_schema": {"type": "object"}}]
Handler = Callable[[httpx2.Request], httpx2.Response]


@pytest.fixture(autouse=True)
def instrumented(sink: sdk.MemorySink) -> Iterator[None]:
    sdk.instrument()
    sdk.instrument()
    yield
    sdk.uninstrument()


def claude(request: dict[str, Any]) -> dict[str, Any]:
    blocks = [
        {"type": "thinking", "thinking": "two orders", "signature": "s"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "lookup", "input": {"order": 4711}},
        {"type": "tool_use", "id": "toolu_2", "name": "lookup", "input": {"order": 4712}},
    ]
    is_answered = any(isinstance(message["content"], list) for message in request["messages"])
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-2026",
        "content": [{"type": "text", "text": "Both were sent."}] if is_answered else blocks,
        "stop_reason": "end_turn" if is_answered else "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "cache_read_input_tokens": 10, "output_tokens": 12},
    }


def claude_events(reply: dict[str, Any]) -> Iterator[str]:
    def event(kind: str, **fields: Any) -> str:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"

    begun = {**reply, "content": [], "stop_reason": None, "usage": {**reply["usage"], "output_tokens": 1}}
    yield event("message_start", message=begun)
    for index, block in enumerate(reply["content"]):
        name = {"text": "text", "thinking": "thinking", "tool_use": "input"}[block["type"]]
        text = json.dumps(block["input"]) if name == "input" else block[name]
        field = {"input": "partial_json"}.get(name, name)
        kind = {"input": "input_json_delta"}.get(name, f"{name}_delta")
        empty: Any = {} if name == "input" else ""
        yield event("content_block_start", index=index, content_block={**block, name: empty})
        for piece in (text[:5], text[5:]):
            yield event("content_block_delta", index=index, delta={"type": kind, field: piece})
        yield event("content_block_stop", index=index)
    delta = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=delta, usage={"output_tokens": reply["usage"]["output_tokens"]})
    yield event("message_stop")


def upstream(request: httpx2.Request) -> httpx2.Response:
    body = json.loads(request.content)
    path = request.url.path
    if path.endswith("/messages"):
        reply, events = claude(body), claude_events
    elif path.endswith("/responses"):
        reply, events = response(body), response_events
    else:
        reply, events = completion(body), completion_events
    if body.get("stream"):
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, content="".join(events(reply)).encode())
    return httpx2.Response(200, json=reply)


def openai_client(handler: Handler = upstream) -> openai.OpenAI:
    http = httpx2.Client(transport=httpx2.MockTransport(handler))
    return openai.OpenAI(api_key="none", base_url="http://model/v1", http_client=http, max_retries=0)


def async_openai_client(handler: Handler = upstream) -> openai.AsyncOpenAI:
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(handler))
    return openai.AsyncOpenAI(api_key="none", base_url="http://model/v1", http_client=http, max_retries=0)


def claude_client(handler: Handler = upstream) -> anthropic.Anthropic:
    http = httpx2.Client(transport=httpx2.MockTransport(handler))
    return anthropic.Anthropic(api_key="none", base_url="http://model", http_client=http, max_retries=0)


def async_claude_client(handler: Handler = upstream) -> anthropic.AsyncAnthropic:
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(handler))
    return anthropic.AsyncAnthropic(api_key="none", base_url="http://model", http_client=http, max_retries=0)


CHAT: dict[str, Any] = {"model": "demo", "messages": [QUESTION], "tools": TOOLS, "temperature": 0.5, "max_tokens": 9}
RESPONSES: dict[str, Any] = {
    "model": "demo",
    "input": [QUESTION],
    "tools": FLAT_TOOLS,
    "temperature": 0.5,
    "max_output_tokens": 9,
}
MESSAGES: dict[str, Any] = {
    "model": "demo",
    "messages": [QUESTION],
    "tools": CLAUDE_TOOLS,
    "extra_body": {"temperature": 0.5},
    "max_tokens": 9,
}


def chat(stream: bool) -> None:
    reply: Any = openai_client().chat.completions.create(**CHAT, stream=stream)
    assert not stream or len(list(reply)) == 3


def raw_chat(stream: bool) -> None:
    reply: Any = openai_client().chat.completions.with_raw_response.create(**CHAT, stream=stream).parse()
    assert len(list(reply)) == 3 if stream else reply.usage.prompt_tokens == 20


def responses(stream: bool) -> None:
    reply: Any = openai_client().responses.create(**RESPONSES, stream=stream)
    assert not stream or len(list(reply)) > 3


def messages(stream: bool) -> None:
    reply: Any = claude_client().messages.create(**MESSAGES, stream=stream)
    assert not stream or len(list(reply)) > 3


def message_helper(stream: bool) -> None:
    with claude_client().messages.stream(**MESSAGES) as events:
        assert events.get_final_message().usage.output_tokens == 12


def async_chat(stream: bool) -> None:
    async def call() -> None:
        reply: Any = await async_openai_client().chat.completions.create(**CHAT, stream=stream)
        assert not stream or len([event async for event in reply]) == 3

    asyncio.run(call())


def async_responses(stream: bool) -> None:
    async def call() -> None:
        reply: Any = await async_openai_client().responses.create(**RESPONSES, stream=stream)
        assert not stream or len([event async for event in reply]) > 3

    asyncio.run(call())


def async_messages(stream: bool) -> None:
    async def call() -> None:
        reply: Any = await async_claude_client().messages.create(**MESSAGES, stream=stream)
        assert not stream or len([event async for event in reply]) > 3

    asyncio.run(call())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "call",
    [chat, raw_chat, responses, messages, message_helper, async_chat, async_responses, async_messages],
    ids=lambda call: call.__name__,
)
def test_a_call_of_a_stock_client_is_a_step(
    sink: sdk.MemorySink, call: Callable[[bool], None], stream: bool, recwarn: pytest.WarningsRecorder
) -> None:
    with sdk.trajectory("task", trajectory_id="t1") as t:
        call(stream)
        assert t.last_index == 0
    (step,) = sink.of("steps")
    assert [(m["role"], m["content"]) for m in step["messages"]] == [("user", QUESTION["content"])]
    calls = [(c["name"], c["arguments"].replace(" ", "")) for c in step["response"]["tool_calls"]]
    assert calls == [("lookup", '{"order":4711}'), ("lookup", '{"order":4712}')]
    assert (step["model"], step["finish_reason"], step["error"]) == (step["model"], "tool_calls", None)
    assert step["model"] in ("demo-2026", "claude-2026")
    assert (step["usage_prompt_tokens"], step["usage_response_tokens"]) == (20, 12)
    assert (step["sampling"]["temperature"], step["sampling"]["max_tokens"]) == (0.5, 9)
    assert json.loads(step["tool_definitions"])
    assert (step["first_token_ms"] is not None) == (stream or call is message_helper)
    assert step["duration_ms"] > 0
    assert [str(warning.message) for warning in recwarn] == []


def test_the_next_prompt_shares_all_of_an_answer(sink: sdk.MemorySink) -> None:
    with sdk.trajectory("task"):
        client, claude_messages = claude_client(), [QUESTION]
        reply: Any = client.messages.create(**{**MESSAGES, "messages": claude_messages})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "sent"}
            for block in reply.content
            if block.type == "tool_use"
        ]
        more: Any = [
            *claude_messages,
            {"role": "assistant", "content": reply.content},
            {"role": "user", "content": results},
        ]
        client.messages.create(**{**MESSAGES, "messages": more})
    with sdk.trajectory("task"):
        items: list[Any] = [QUESTION]
        answer = openai_client().responses.create(**{**RESPONSES, "input": items})
        items += answer.output
        items += [{"type": "function_call_output", "call_id": item.call_id, "output": "sent"} for item in answer.output]
        openai_client().responses.create(**{**RESPONSES, "input": items})
    _, claude_step, _, responses_step = sink.of("steps")
    for step in (claude_step, responses_step):
        assert (step["step_index"], step["prompt_shared_messages"]) == (1, 2)
        assert [(m["role"], m["content"]) for m in step["messages"]] == [("tool", "sent"), ("tool", "sent")]
    assert claude_step["response"]["content"] == "Both were sent."


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_tokens_of_the_server_make_the_step_trainable(sink: sdk.MemorySink, stream: bool) -> None:
    versions = [{"start": 0, "end": 1, "version": 7}, {"start": 1, "end": 2, "version": 8}]
    logprobs: dict[str, Any] = {
        "content": [{"token": t, "logprob": -0.5, "bytes": None, "top_logprobs": []} for t in "ab"]
    }
    sampled = {"token_ids": [4, 5], "logprobs": logprobs, "weight_versions": versions, "finish_reason": "stop"}

    def tokens(request: httpx2.Request) -> httpx2.Response:
        reply = {"id": "c1", "created": 1, "model": "demo", "prompt_token_ids": [1, 2, 3]}
        message = {"role": "assistant", "content": "ab"}
        if not stream:
            choice = {"index": 0, "message": message, **sampled}
            return httpx2.Response(200, json={**reply, "object": "chat.completion", "choices": [choice]})
        chunk = {**reply, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": message, **sampled}]}
        content = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=content)

    with sdk.trajectory("task"):
        answer: Any = openai_client(tokens).chat.completions.create(
            model="demo", messages=[QUESTION], stream=stream, logprobs=True, extra_body={"return_token_ids": True}
        )
        assert list(answer) if stream else answer.choices[0].message.content == "ab"
    (step,) = sink.of("steps")
    assert (step["fidelity"], step["prompt_token_ids"], step["response_token_ids"]) == ("token", [1, 2, 3], [4, 5])
    assert step["response_logprobs"] == [-0.5, -0.5]
    assert [(s["start"], s["end"], s["version"]) for s in step["policy_spans"]] == [(0, 1, 7), (1, 2, 8)]


def test_errors_and_cut_streams_are_recorded_as_the_caller_saw_them(sink: sdk.MemorySink) -> None:
    with sdk.trajectory("task"):
        with pytest.raises(openai.BadRequestError):
            openai_client(lambda _: httpx2.Response(400, json={"error": {}})).chat.completions.create(**CHAT)
        with openai_client().chat.completions.create(model="demo", messages=CHAT["messages"], stream=True) as events:
            next(events)  # the agent has read enough
        with openai_client().responses.create(**RESPONSES, stream=True):
            pass
    failed, cut, unread = sink.of("steps")
    assert (failed["error"], failed["finish_reason"]) == ("BadRequestError", "error")
    assert (cut["error"], cut["finish_reason"], bool(cut["response"]["content"])) == (None, "", True)
    assert (unread["error"], unread["response"]["content"]) == (None, "")


def test_the_call_succeeds_if_recording_fails(
    sink: sdk.MemorySink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise OSError("broken")

    for path in recording.APIS:
        monkeypatch.setitem(recording.APIS, path, Broken())
    with sdk.trajectory("task"):
        chat(False)
        chat(True)
    assert sink.of("steps") == []
    assert caplog.text.count("not recorded: broken") >= 2
    sdk.configure(enabled=False)
    with sdk.trajectory("task"):
        chat(False)
        chat(True)


def test_an_answer_that_cannot_be_read_leaves_no_gap(sink: sdk.MemorySink, caplog: pytest.LogCaptureFixture) -> None:
    reply = {"id": "c1", "object": "chat.completion", "created": 1, "model": "demo", "choices": []}
    with sdk.trajectory("task"):
        odd: Any = openai_client(lambda _: httpx2.Response(200, json=reply)).chat.completions.create(**CHAT)
        assert odd.choices == []
        chat(False)
    first, second = sink.of("steps")
    assert (first["step_index"], first["response"]["content"], second["step_index"]) == (0, "", 1)
    assert "not recorded" in caplog.text


def test_only_calls_of_a_trajectory_that_nothing_else_records_are_steps(sink: sdk.MemorySink) -> None:
    chat(False)
    with sdk.trajectory("task") as t, t.step([QUESTION]) as s:
        chat(False)
        s.response("by hand")
    with sdk.trajectory("task") as t:
        headers = t.headers()
        openai_client().chat.completions.create(**CHAT, extra_headers=headers)
    with sdk.trajectory("task"):  # another process's trajectory, as the environment gave it
        openai_client().with_options(default_headers=headers).chat.completions.create(**CHAT)
    assert [step["response"]["content"] for step in sink.of("steps")] == ["by hand"]


def test_threads_and_tasks_record_to_their_own_trajectories(sink: sdk.MemorySink) -> None:
    def in_thread(name: str) -> None:
        with sdk.trajectory("task", trajectory_id=name):
            for _ in range(3):
                chat(True)

    threads = [threading.Thread(target=in_thread, args=(f"thread-{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def in_task(client: openai.AsyncOpenAI, name: str) -> None:
        async with sdk.trajectory("task", trajectory_id=name):
            for _ in range(3):
                async for _ in await client.chat.completions.create(**CHAT, stream=True):
                    await asyncio.sleep(0)

    async def tasks() -> None:
        client = async_openai_client()
        await asyncio.gather(*(in_task(client, f"task-{number}") for number in range(3)))

    asyncio.run(tasks())
    by_name: dict[str, list[int]] = {}
    for step in sink.of("steps"):
        by_name.setdefault(step["trajectory_id"], []).append(step["step_index"])
    assert by_name == {f"{kind}-{number}": [0, 1, 2] for kind in ("thread", "task") for number in range(3)}


def test_uninstrumented_clients_record_nothing(sink: sdk.MemorySink) -> None:
    sdk.uninstrument()
    with sdk.trajectory("task"):
        chat(False)
    assert sink.of("steps") == []
