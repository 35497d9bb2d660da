"""A stream is relayed to its end, and gives an answer, even if chunks are malformed."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.gateway.protocols.anthropic.protocol import ANTHROPIC
from stepstream.services.gateway.protocols.base import ModelProtocol, RequestedAdditions
from stepstream.services.gateway.protocols.chat.protocol import CHAT
from stepstream.services.gateway.protocols.responses.protocol import RESPONSES
from stepstream.services.gateway.streams import NativeRelay, StreamRelay, TranslatedRelay

ODD = st.sampled_from([None, 0, 1.5, True, "x", [], ["x"], {}, {"a": 1}, [None], [{"type": "text", "text": "a"}]])
CALL = st.fixed_dictionaries({}, optional=dict.fromkeys(("index", "id", "type", "function", "custom"), ODD))
DELTA = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("role", "content", "refusal", "reasoning", "reasoning_content", "function_call"), ODD)
    | {"tool_calls": ODD | st.lists(CALL, max_size=2)},
)
CHOICE = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("index", "finish_reason", "token_ids", "logprobs", "weight_versions"), ODD)
).flatmap(lambda choice: (ODD | DELTA).map(lambda delta: choice | {"delta": delta}))
CHUNK = st.fixed_dictionaries(
    {"choices": ODD | st.lists(CHOICE, max_size=2)},
    optional=dict.fromkeys(("id", "model", "usage", "prompt_token_ids"), ODD),
)


@given(st.lists(CHUNK, max_size=3))
@pytest.mark.parametrize("protocol", [CHAT, RESPONSES, ANTHROPIC], ids=lambda protocol: protocol.name)
def test_a_stream_of_any_chunks_is_relayed_and_gives_an_answer(
    protocol: ModelProtocol, chunks: list[dict[str, Any]]
) -> None:
    request = {"model": "m", "input": "x", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    translation = protocol.translation(request, None)
    requested = RequestedAdditions(logprobs=False, token_ids=False)
    relay: StreamRelay = (
        NativeRelay(protocol, requested, 0.0)
        if translation is None
        else TranslatedRelay(protocol, translation, requested, 0.0)
    )
    for chunk in chunks:
        relay.feed(b"data: %b\n\n" % orjson.dumps(chunk))
    relay.end()
    assert relay.answer().message["role"]


def test_a_chunk_that_the_gateway_cannot_write_reaches_the_caller_unchanged() -> None:
    relay = NativeRelay(CHAT, RequestedAdditions(logprobs=False, token_ids=False), 0.0)
    delta = b'{"content":"a","more":' + b"[" * 300 + b"]" * 300 + b"}"
    chunk = b'data: {"choices":[{"index":0,"token_ids":[1],"delta":' + delta + b"}]}\n\n"
    assert relay.feed(chunk) == chunk
    relay.end()
    assert relay.answer().error == "malformed_response"
