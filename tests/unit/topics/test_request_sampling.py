"""Every protocol records how a response was sampled: truncation, penalties, biases and grammars."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.gateway.protocols.anthropic.protocol import ANTHROPIC
from stepstream.services.gateway.protocols.base import ModelProtocol
from stepstream.services.gateway.protocols.chat.protocol import CHAT
from stepstream.services.gateway.protocols.responses.protocol import RESPONSES
from stepstream.topics.events import Sampling, new_sampling

SCHEMA = {"type": "json_schema", "schema": {}}
FUNCTION = {"type": "function", "function": {"name": "get"}}
TOOL = {"name": "get", "parameters": {}, "input_schema": {}, "type": "function"}
CHANGES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0.7, "top_p": 0.9}, {"temperature": 0.7, "top_p": 0.9}),
    ({"top_k": 20, "min_p": 0.05}, {"top_k": 20, "min_p": 0.05}),
    ({"top_k": -1}, {}),
    (
        {"presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1},
        {"presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1},
    ),
    ({"logit_bias": {"5": -100}}, {"logit_bias": True}),
    ({"logit_bias": {}}, {}),
    ({"allowed_token_ids": [1]}, {"logit_bias": True}),
    ({"bad_words": ["a"]}, {"logit_bias": True}),
    ({"min_tokens": 4}, {"logit_bias": True}),
    ({"thinking_token_budget": 0}, {"logit_bias": True}),
    ({"thinking_token_budget": -1}, {}),
    ({"structured_outputs": {"regex": "a+"}}, {"constraint": "regex"}),
    ({"structured_outputs": {"json": {}}}, {"constraint": "json_schema"}),
    ({"structured_outputs": {"json": None, "json_object": False, "choice": ["a"]}}, {"constraint": "choice"}),
    ({"guided_grammar": "root ::= x"}, {"constraint": "grammar"}),
]
CHAT_ONLY: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"response_format": {"type": "json_object"}}, {"constraint": "json_object"}),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, {"constraint": "json_schema"}),
    ({"response_format": {"type": "structural_tag"}}, {"constraint": "grammar"}),
    ({"response_format": {"type": "text"}}, {}),
    ({"tool_choice": "auto"}, {}),
    ({"tool_choice": "none"}, {}),
    ({"tool_choice": "required"}, {"constraint": "tool_choice"}),
    ({"tool_choice": FUNCTION}, {"constraint": "tool_choice"}),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}, {}),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required"}}}, {"constraint": "tool_choice"}),
]
RESPONSES_ONLY: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"text": {"format": SCHEMA}}, {"constraint": "json_schema"}),
    ({"text": {"format": {"type": "json_object"}}}, {"constraint": "json_object"}),
    ({"text": {"format": {"type": "text"}}}, {}),
    ({"tool_choice": "required"}, {"constraint": "tool_choice"}),
    ({"tool_choice": {"type": "function", "name": "get"}}, {"constraint": "tool_choice"}),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [TOOL]}}, {}),
    ({"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [TOOL]}}, {"constraint": "tool_choice"}),
]
ANTHROPIC_ONLY: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"output_config": {"format": SCHEMA}}, {"constraint": "json_schema"}),
    ({"output_format": SCHEMA}, {"constraint": "json_schema"}),
    ({"tool_choice": {"type": "auto"}}, {}),
    ({"tool_choice": {"type": "any"}}, {"constraint": "tool_choice"}),
    ({"tool_choice": {"type": "tool", "name": "get"}}, {"constraint": "tool_choice"}),
]
_COMMON_ANTHROPIC = [CHANGES[0], ({"top_k": 20}, {"top_k": 20})]
QUESTION: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "q"}]},
    "responses": {"input": "q", "tools": [TOOL]},
    "anthropic": {"max_tokens": 9, "messages": [{"role": "user", "content": "q"}]},
}


def sampling(protocol: ModelProtocol, request: dict[str, Any]) -> Sampling:
    return protocol.read(QUESTION[protocol.name] | request).sampling


@pytest.mark.parametrize(("request_", "fields"), [*CHANGES, *CHAT_ONLY])
def test_chat_records_the_sampling(request_: dict[str, Any], fields: dict[str, Any]) -> None:
    assert sampling(CHAT, request_) == new_sampling(**fields)


@pytest.mark.parametrize(("request_", "fields"), [*CHANGES, *RESPONSES_ONLY])
def test_responses_records_the_sampling_natively_and_translated(
    request_: dict[str, Any], fields: dict[str, Any]
) -> None:
    whole = QUESTION["responses"] | request_
    assert RESPONSES.read(whole).sampling == new_sampling(**fields)
    assert CHAT.read(RESPONSES.translation(whole, None).request).sampling == new_sampling(**fields)


@pytest.mark.parametrize(("request_", "fields"), [*_COMMON_ANTHROPIC, *ANTHROPIC_ONLY])
def test_anthropic_records_the_sampling_natively_and_translated(
    request_: dict[str, Any], fields: dict[str, Any]
) -> None:
    whole = QUESTION["anthropic"] | request_
    assert ANTHROPIC.read(whole).sampling == new_sampling(max_tokens=9, **fields)
    assert CHAT.read(ANTHROPIC.translation(whole, None).request).sampling == new_sampling(max_tokens=9, **fields)


NAMES = sorted({name for each, _ in [*CHANGES, *CHAT_ONLY, *RESPONSES_ONLY, *ANTHROPIC_ONLY] for name in each})
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, "x", [], {}, ["x"], {"type": []}, {"type": {}}, {"format": []}, 2**70, 10**400, -1]
)


@pytest.mark.parametrize("protocol", [CHAT, RESPONSES, ANTHROPIC], ids=lambda protocol: protocol.name)
@given(request_=st.dictionaries(st.sampled_from(NAMES), ODD))
def test_malformed_parameters_never_fail(protocol: ModelProtocol, request_: dict[str, Any]) -> None:
    assert sampling(protocol, request_)["top_k"] >= 0
