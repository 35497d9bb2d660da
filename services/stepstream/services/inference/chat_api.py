"""Write replies of OpenAI's chat completion protocol, with vLLM's extensions for token ids."""

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from stepstream.services.inference.chat_request import ChatRequest
from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.engine import TokenChunk
from stepstream.services.inference.prompt import Prompt
from stepstream.services.inference.tool_parsers import ParsedCall


def whole_response(last: TokenChunk) -> dict[str, Any]:
    """Return the fields of a choice that describe its whole response: its version spans, and its mask if requested."""
    fields: dict[str, Any] = {"weight_versions": [span._asdict() for span in last.versions]}
    return fields if last.mask is None else fields | {"sampling_mask": last.mask._asdict()}


def finish_reason(reason: str | None, call: ParsedCall | None) -> str | None:
    """Return OpenAI's `finish_reason`."""
    return "tool_calls" if call is not None and reason == "stop" else reason


def logprobs(request: ChatRequest, tokenizer: ChatTokenizer, chunks: Iterable[TokenChunk]) -> dict[str, Any] | None:
    """Return a choice's `logprobs`: OpenAI's `content`, one entry a token, or plain `values`; None: not requested."""
    if not request.logprobs:
        return None
    if request.plain_logprobs:
        return {"values": [logprob for chunk in chunks for logprob in chunk.logprobs]}
    entries: list[dict[str, Any]] = [
        {"token": tokenizer.token(token), "logprob": logprob, "bytes": None, "top_logprobs": []}
        for chunk in chunks
        for token, logprob in zip(chunk.token_ids, chunk.logprobs, strict=True)
    ]
    return {"content": entries, "refusal": None}


def tool_calls(call: ParsedCall, *, indexed: bool) -> list[dict[str, Any]]:
    """Return OpenAI's `tool_calls` with one call; `indexed`: with an index, as in a stream."""
    fields: dict[str, Any] = {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
    return [{"index": 0, **fields} if indexed else fields]


def usage(prompt: int, response: int) -> dict[str, int]:
    """Return OpenAI's `usage`, in tokens."""
    return {"prompt_tokens": prompt, "completion_tokens": response, "total_tokens": prompt + response}


def new_reply(kind: str, model: str) -> dict[str, Any]:
    """Return the first fields of every reply and chunk."""
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }


def complete_choice(
    request: ChatRequest,
    tokenizer: ChatTokenizer,
    number: int,
    chunks: Sequence[TokenChunk],
    text: str,
    call: ParsedCall | None,
) -> dict[str, Any]:
    """Return one complete choice, for a request that does not stream."""
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if call is not None:
        message |= {"content": None, "tool_calls": tool_calls(call, indexed=False)}
    choice: dict[str, Any] = {
        "index": number,
        "message": message,
        "finish_reason": finish_reason(chunks[-1].finish_reason, call),
        "logprobs": logprobs(request, tokenizer, chunks),
        **whole_response(chunks[-1]),
    }
    if request.return_token_ids:
        choice["token_ids"] = tokens_of(chunks)
    return choice


def tokens_of(chunks: Iterable[TokenChunk]) -> list[int]:
    """Return a response's token ids."""
    return [token for chunk in chunks for token in chunk.token_ids]


def complete_reply(request: ChatRequest, prompt: Prompt, choices: list[dict[str, Any]], response_tokens: int) -> bytes:
    """Return the body of a complete reply; `response_tokens`: of all choices together."""
    reply = new_reply("chat.completion", request.model) | prompt.fields
    if request.return_token_ids:
        reply["prompt_token_ids"] = prompt.token_ids
    return orjson.dumps(reply | {"choices": choices, "usage": usage(len(prompt.token_ids), response_tokens)})


def event(data: dict[str, Any]) -> bytes:
    """Encode one server-sent event."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


DONE = b"data: [DONE]\n\n"
