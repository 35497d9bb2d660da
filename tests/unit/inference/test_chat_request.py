"""Test each field of a chat request: honoured, of no effect, or refused by name."""

from typing import Any

import pytest
from labelled_records import tiny_model
from scripted_engine import REQUEST, Served, serve_scripted

from stepstream.services.inference.chat_template import ChatTemplate
from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.engine import SamplingParams


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return ChatTokenizer(tiny_model(tmp_path_factory.mktemp("model") / "m", 0))


@pytest.fixture
async def served(tokenizer: ChatTokenizer) -> Served:
    return serve_scripted(tokenizer)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "king", "content": ""}]}, "messages[0]"),
        ({"messages": [{"role": ["user"], "content": ""}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "get", "arguments": "{}"}}]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0]"),
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
        ({"stepstream_sampling_mask": 1025}, "stepstream_sampling_mask"),
        ({"stepstream_prefix": {"token_ids": [], "messages": 1}}, "stepstream_prefix"),
        ({"model": 7}, "model"),
        ({"stream_options": "all"}, "stream_options"),
        ({"stream_options": {"include_usage": True, "continuous_usage_stats": True}}, "stream_options"),
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
