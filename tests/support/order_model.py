"""Serve a scripted model over the chat completions and Responses APIs, plain and streamed."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CALLS = {0: [("call_a", "lookup", 4711), ("call_b", "lookup", 4712)], 2: [("call_c", "refund", 4712)]}
"""Tool calls (id, name, order) by the number of tool results in the prompt."""
USAGE = {0: (20, 12), 2: (40, 14), 3: (50, 15)}
"""Prompt and response tokens by the number of tool results in the prompt."""


class OrderModel(BaseHTTPRequestHandler):
    """Chat model that looks up two orders, refunds one and answers; without tools it answers at once."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        is_response = self.path.endswith("/responses")
        reply = response(request) if is_response else completion(request)
        if request.get("stream"):
            events = response_events(reply) if is_response else completion_events(reply)
            self._send("text/event-stream", "".join(events).encode())
        else:
            self._send("application/json", json.dumps(reply).encode())

    def _send(self, content_type: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def order_model() -> Iterator[str]:
    """Serve the model; yield its base URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), OrderModel) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join()


def _answer(request: dict[str, Any], results: int) -> tuple[str, list[tuple[str, str, str]]]:
    calls = CALLS.get(results, []) if "tools" in request else []
    text = "Let me refund." if results == 2 else "" if calls else "4711 was sent; 4712 is refunded."
    return text, [(call_id, name, json.dumps({"order": order})) for call_id, name, order in calls]


def completion(request: dict[str, Any]) -> dict[str, Any]:
    """Answer a chat completion request."""
    results = sum(message["role"] == "tool" for message in request["messages"])
    text, calls = _answer(request, results)
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in calls
        ]
    prompt, answer = USAGE[results]
    return {
        "id": f"chatcmpl-{results}",
        "object": "chat.completion",
        "created": 1,
        "model": "demo-2026",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer},
    }


def response(request: dict[str, Any]) -> dict[str, Any]:
    """Answer a request of the Responses API."""
    results = sum(item.get("type") == "function_call_output" for item in request["input"])
    text, calls = _answer(request, results)
    output: list[dict[str, Any]] = []
    if text:
        content = {"type": "output_text", "text": text, "annotations": []}
        output.append(
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [content]}
        )
    output += [
        {
            "type": "function_call",
            "id": f"fc_{call_id}",
            "call_id": call_id,
            "name": name,
            "arguments": arguments,
            "status": "completed",
        }
        for call_id, name, arguments in calls
    ]
    prompt, answer = USAGE[results]
    return {
        "id": f"resp_{results}",
        "object": "response",
        "created_at": 1,
        "model": "demo-2026",
        "status": "completed",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": request.get("tools", []),
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": answer,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + answer,
        },
    }


def response_events(reply: dict[str, Any]) -> Iterator[str]:
    """Yield a response as server-sent events."""
    for number, (kind, fields) in enumerate(_response_events(reply)):
        yield f"event: {kind}\ndata: {json.dumps({'type': kind, 'sequence_number': number, **fields})}\n\n"


def completion_events(reply: dict[str, Any]) -> Iterator[str]:
    """Yield a chat completion as server-sent events."""
    choice = reply["choices"][0]
    delta = choice["message"]
    for index, call in enumerate(delta.get("tool_calls", [])):
        call["index"] = index
    for part, finish in ((delta, None), ({}, choice["finish_reason"])):
        chunk = {**reply, "object": "chat.completion.chunk", "usage": None}
        chunk["choices"] = [{"index": 0, "delta": part, "finish_reason": finish}]
        yield f"data: {json.dumps(chunk)}\n\n"
    last = {**reply, "object": "chat.completion.chunk", "choices": []}
    yield f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n"


def _response_events(reply: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "response.created", {"response": {**reply, "status": "in_progress", "output": [], "usage": None}}
    for index, item in enumerate(reply["output"]):
        begun = {**item, "content": []} if item["type"] == "message" else {**item, "arguments": ""}
        yield "response.output_item.added", {"output_index": index, "item": begun}
        if item["type"] == "message":
            place = {"item_id": item["id"], "output_index": index, "content_index": 0}
            part = item["content"][0]
            yield "response.content_part.added", {**place, "part": {**part, "text": ""}}
            yield "response.output_text.delta", {**place, "delta": part["text"], "logprobs": []}
            yield "response.output_text.done", {**place, "text": part["text"], "logprobs": []}
            yield "response.content_part.done", {**place, "part": part}
        else:
            place = {"item_id": item["id"], "output_index": index}
            yield "response.function_call_arguments.delta", {**place, "delta": item["arguments"]}
            yield (
                "response.function_call_arguments.done",
                {**place, "name": item["name"], "arguments": item["arguments"]},
            )
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield "response.completed", {"response": reply}
