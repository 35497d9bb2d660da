"""Generate Anthropic content blocks, and split a message into stream events of any size."""

import json
from typing import Any

import orjson
from hypothesis import strategies as st

TEXTS = st.text(max_size=8)
# JSON keeps these exactly: integers below 2**53, finite floats.
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=3)


def _block(kind: str, **fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(kind)} | fields)


TEXT_BLOCKS = _block("text", text=TEXTS)
TOOL_USES = _block("tool_use", id=st.from_regex(r"toolu_[0-9]{4}", fullmatch=True), name=TEXTS, input=OBJECTS)
BLOCKS = st.one_of(
    TEXT_BLOCKS,
    _block("thinking", thinking=TEXTS, signature=TEXTS),
    _block("redacted_thinking", data=TEXTS),
    TOOL_USES,
    _block("server_tool_use", id=st.just("srvtoolu_1"), name=st.just("web_search"), input=OBJECTS),
    _block("web_search_tool_result", tool_use_id=st.just("srvtoolu_1"), content=st.lists(OBJECTS, max_size=2)),
)
CONTENTS = st.lists(BLOCKS, max_size=5)
_GROWING = {"text": "text_delta", "thinking": "thinking_delta"}


def message(content: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """Return a complete reply with these blocks."""
    usage = {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 3}
    reply = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": content}
    return reply | {"stop_reason": "end_turn", "stop_sequence": None, "usage": usage} | fields


def pieces(text: str, size: int) -> list[str]:
    """Return `text` in pieces of `size` characters."""
    return [text[start : start + size] for start in range(0, len(text), size)]


def events(reply: dict[str, Any], size: int) -> list[dict[str, Any]]:
    """Return the stream events of `reply`, its text in pieces of `size` characters."""
    start = reply | {"content": [], "stop_reason": None, "usage": {"input_tokens": 5, "cache_read_input_tokens": 2}}
    out: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(reply["content"]):
        opening, deltas = _cut(block, size)
        out.append({"type": "content_block_start", "index": index, "content_block": opening})
        out += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        out.append({"type": "content_block_stop", "index": index})
    usage = {"output_tokens": reply["usage"]["output_tokens"], "input_tokens": None}
    delta = {"stop_reason": reply["stop_reason"], "stop_sequence": reply["stop_sequence"]}
    return [*out, {"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]


def _cut(block: dict[str, Any], size: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    kind = block["type"]
    if kind in _GROWING:
        parts = [{"type": _GROWING[kind], kind: piece} for piece in pieces(block[kind], size)]
        signed = [{"type": "signature_delta", "signature": "s"}] if kind == "thinking" else []
        return block | {kind: ""}, parts + signed
    if "input" in block:
        spaced = json.dumps(block["input"], ensure_ascii=False)
        return block | {"input": {}}, [
            {"type": "input_json_delta", "partial_json": piece} for piece in pieces(spaced, size)
        ]
    return block, []


def as_resent(block: dict[str, Any]) -> dict[str, Any]:
    """Return the block as a client resends it in its next request: parsed, with additional fields."""
    decorated = block | {"cache_control": {"type": "ephemeral"}, "citations": None, "caller": None}
    resent: dict[str, Any] = orjson.loads(json.dumps(decorated))
    return resent
