"""OpenAI's client accepts translated replies: whole, streamed and parsed."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import openai
import orjson
import pytest
from aiohttp import web
from pydantic import BaseModel
from waiting import TIMEOUT_S

from stepstream.embedded.ports import free_block
from stepstream.services.gateway.errors import BadRequest
from stepstream.services.gateway.protocols.base import History
from stepstream.services.gateway.protocols.responses.protocol import ResponsesProtocol

Raw = dict[str, Any]

TOOL: Any = {
    "type": "function",
    "name": "get",
    "parameters": {
        "type": "object",
        "properties": {"key": {"type": "string"}},
        "required": ["key"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Value(BaseModel):
    """Form of the answer."""

    value: int


def answer(request: Raw) -> Raw:
    """Answer as a model that reasons, looks up two keys in parallel, then joins the results."""
    results = [message["content"] for message in request["messages"] if message["role"] == "tool"]
    if "response_format" in request:
        return {"content": '{"value": 7}'}
    if request.get("tools") and not results:
        calls = [
            {"id": f"c{n}", "type": "function", "function": {"name": "get", "arguments": f'{{"key": "{key}"}}'}}
            for n, key in enumerate("aü")
        ]
        return {"content": None, "reasoning_content": "I need both.", "tool_calls": calls}
    return {"content": f"Summe: {'+'.join(results)} ✓"}


def chunks(message: Raw) -> Iterator[Raw]:
    """Yield `message` in pieces of two characters."""
    deltas: list[Raw] = []
    for name in ("reasoning_content", "content"):
        text = message.get(name) or ""
        deltas += [{name: text[start : start + 2]} for start in range(0, len(text), 2)]
    for index, call in enumerate(message.get("tool_calls", ())):
        arguments = call["function"]["arguments"]
        deltas.append({"tool_calls": [call | {"index": index, "function": call["function"] | {"arguments": ""}}]})
        pieces = [arguments[start : start + 2] for start in range(0, len(arguments), 2)]
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in pieces]
    ending = "tool_calls" if message.get("tool_calls") else "stop"
    for delta in deltas:
        yield {"id": "c", "created": 17, "model": "m", "choices": [{"index": 0, "delta": delta}]}
    yield {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": ending}]}
    yield {"id": "c", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}}


class Server:
    """A minimal server around the translation."""

    def __init__(self) -> None:
        self.protocol = ResponsesProtocol()
        self.saved_responses: dict[str, History] = {}
        self.breaks = False
        port = free_block(1)
        self.url = f"http://127.0.0.1:{port}/v1"
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(port, ready))
        self._thread.start()
        assert ready.wait(TIMEOUT_S)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)

    def _run(self, port: int, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_post("/v1/responses", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.0)
        self._loop.run_until_complete(runner.setup())
        self._loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", port).start())
        ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        request = await http.json()
        try:
            call = self.protocol.translation(request, self.saved_responses.get(request.get("previous_response_id")))
        except BadRequest as error:
            body = self.protocol.error_body(str(error), error.type)
            return web.Response(body=body, status=400, content_type="application/json")
        message = answer(call.request)
        own = self.protocol.read(request).instructions
        self.saved_responses[call.response_id] = History(
            [*call.request["messages"][own:], {"role": "assistant"} | message]
        )
        if not request.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return web.json_response(call.reply({"id": "c", "created": 17, "model": "m", "choices": [choice]}))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(http)
        for number, chunk in enumerate(chunks(message)):
            if self.breaks and number == 3:
                await response.write(call.end("the upstream is gone"))
                return response
            await response.write(call.feed(orjson.loads(orjson.dumps(chunk))))
        await response.write(call.end())
        return response


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.stop()


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    server.breaks = False
    with openai.OpenAI(base_url=server.url, api_key="any", max_retries=0) as opened:
        yield opened


def results(response: Any) -> list[Any]:
    calls = [item for item in response.output if item.type == "function_call"]
    return [{"type": "function_call_output", "call_id": call.call_id, "output": call.arguments} for call in calls]


SUM = 'Summe: {"key": "a"}+{"key": "ü"} ✓'


def test_a_task_with_parallel_tools_and_history_at_the_client(client: openai.OpenAI) -> None:
    items: list[Any] = [{"role": "user", "content": "go"}]
    first = client.responses.create(model="m", input=items, tools=[TOOL])
    assert [item.type for item in first.output] == ["reasoning", "function_call", "function_call"]
    items += [*first.output, *results(first)]
    assert client.responses.create(model="m", input=items, tools=[TOOL]).output_text == SUM


def test_a_task_with_history_at_the_server(client: openai.OpenAI) -> None:
    first = client.responses.create(model="m", input="go", tools=[TOOL], instructions="Be brief.")
    second = client.responses.create(model="m", input=results(first), tools=[TOOL], previous_response_id=first.id)
    assert second.output_text == SUM
    assert second.previous_response_id == first.id


def test_a_streamed_task_through_the_clients_accumulator(client: openai.OpenAI) -> None:
    with client.responses.stream(model="m", input="go", tools=[TOOL]) as stream:
        kinds = {event.type for event in stream}
        first = stream.get_final_response()
    assert "response.reasoning_text.delta" in kinds
    assert "response.function_call_arguments.delta" in kinds
    calls = [item for item in first.output if item.type == "function_call"]
    assert [(call.call_id, call.parsed_arguments) for call in calls] == [("c0", {"key": "a"}), ("c1", {"key": "ü"})]
    assert first.usage is not None
    assert first.usage.total_tokens == 14
    with client.responses.stream(
        model="m", input=results(first), tools=[TOOL], previous_response_id=first.id
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert text == stream.get_final_response().output_text == SUM


async def test_the_async_client_streams(server: Server) -> None:
    server.breaks = False
    async with (
        openai.AsyncOpenAI(base_url=server.url, api_key="any", max_retries=0) as client,
        client.responses.stream(model="m", input="go") as stream,
    ):
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert final.output_text == "Summe:  ✓"
    assert events[-1].type == "response.completed"


def test_structured_output_is_parsed(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model="m", input="go", text_format=Value)
    assert parsed.output_parsed == Value(value=7)
    with client.responses.stream(model="m", input="go", text_format=Value) as stream:
        assert stream.get_final_response().output_parsed == Value(value=7)


def test_an_unsupported_feature_is_a_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="built-in tool 'web_search'"):
        client.responses.create(model="m", input="go", tools=[{"type": "web_search"}])


def test_a_broken_stream_is_reported(server: Server, client: openai.OpenAI) -> None:
    server.breaks = True
    events = list(client.responses.create(model="m", input="go", stream=True))
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1].type == "response.failed"
    assert events[-1].response.error is not None
    assert events[-1].response.error.message == "the upstream is gone"
    assert events[-1].response.output_text == "Summe:"
