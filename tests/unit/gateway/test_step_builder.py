"""A step stores only new tokens and messages, from which the whole prompt can be restored."""

from itertools import count
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.config import GatewaySettings
from stepstream.jobs.governance.validation import check_step
from stepstream.services.gateway.context.cache import ContextCache
from stepstream.services.gateway.context.endings import EndingFile
from stepstream.services.gateway.context.step_indices import StepIndexFile
from stepstream.services.gateway.context.tree import prompt_of
from stepstream.services.gateway.identity import Identity, identify
from stepstream.services.gateway.protocols.base import Answer, failed_answer
from stepstream.services.gateway.protocols.chat.protocol import CHAT
from stepstream.services.gateway.protocols.messages import record_message
from stepstream.services.gateway.step_builder import Call, Timing, branch_call, build_step
from stepstream.topics.events import Step, new_message, new_sampling, new_tool_call
from stepstream.topics.ids import token_digest


def new_cache(limit: int = 10, limit_bytes: int = 1 << 20) -> ContextCache:
    names = count()
    return ContextCache(limit, limit_bytes, lambda: f"new-{next(names)}", StepIndexFile(), EndingFile())


def record(
    cache: ContextCache, messages: list[dict[str, Any]], answer: Answer, identity: Identity, **request: Any
) -> Step:
    conversation = CHAT.read({"model": "m", "messages": messages} | request)
    prompt = prompt_of(conversation.messages)
    position = cache.place(identity.tenant, identity.trajectory_id, identity.step_index, prompt)
    call = Call(identity, conversation, prompt, position, "e", 1)
    return build_step(cache, call, answer, Timing(1.0), "gateway/0")


def identity_of(trajectory_id: str = "t") -> Identity:
    return Identity(trajectory_id=trajectory_id, agent="a", consent="train", tenant="default")


def answer_with(prompt: list[int], response: list[int], text: str = "x", **fields: Any) -> Answer:
    spans = [{"version": 3, "start": 0, "end": len(response)}]
    values: dict[str, Any] = {
        "message": new_message(role="assistant", content=text),
        "model": "m",
        "finish_reason": "stop",
        "prompt_token_ids": prompt,
        "token_ids": response,
        "logprobs": [-0.5] * len(response),
        "weight_versions": spans,
    }
    return Answer(**(values | fields))


@pytest.mark.parametrize("continues_by_id", [False, True])
def test_only_a_protocol_that_continues_by_id_can_continue_from_a_response_id(continues_by_id: bool) -> None:
    cache, identity = new_cache(), identity_of()
    conversation = CHAT.read({"model": "m", "messages": [{"role": "user", "content": "q"}]})
    prompt = prompt_of(conversation.messages)
    call = Call(identity, conversation, prompt, cache.place("default", "t", None, prompt), "e", 1)
    answer = answer_with([1], [2], response_id="chatcmpl-0123456789abcdef")
    step = build_step(cache, call, answer, Timing(1.0), "gateway/0", continues_by_id=continues_by_id)
    assert step["call_ids"] == [f"response:{answer.response_id}"]
    assert (cache.step_of_response("default", answer.response_id) is not None) == continues_by_id


def test_a_call_of_a_tool_that_was_not_offered_is_marked_and_still_recognised() -> None:
    cache = new_cache()
    question = {"role": "user", "content": "q"}
    raw = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("get", "fly")]
    response = {"role": "assistant", "content": "", "tool_calls": raw}
    answer = answer_with([1], [2], message=record_message(response))
    tools = [{"type": "function", "function": {"name": "get"}}]
    step = record(cache, [question], answer, identity_of(), tools=tools)
    assert [call["error"] for call in step["response"]["tool_calls"]] == [None, "unknown_tool"]
    # The agent repeats the call without the mark; it still equals the response of the step before.
    again = record(cache, [question, response], answer_with([1, 2, 3], [4]), identity_of(), tools=tools)
    assert (again["prompt_shared_messages"], again["messages"]) == (2, [])


@pytest.mark.parametrize("named", [True, False])
def test_an_alternative_begins_a_branch_that_a_conversation_may_continue(named: bool) -> None:
    cache = new_cache()
    identity = identify([(b"x-stepstream-group", b"g")], GatewaySettings(), "t" if named else "")
    question = {"role": "user", "content": "q"}
    first_step = record(cache, [question], answer_with([1], [2], "x"), identity)
    messages = [question, {"role": "assistant", "content": "x"}, {"role": "user", "content": "r"}]
    conversation = CHAT.read({"model": "m", "messages": messages})
    prompt = prompt_of(conversation.messages)
    position = cache.place(identity.tenant, identity.trajectory_id, None, prompt)
    call = Call(identity, conversation, prompt, position, "e", 1)
    other = build_step(cache, branch_call(cache, call, 1), answer_with([1, 2, 3], [5], "z"), Timing(1.0), "gateway/0")
    first = build_step(cache, call, answer_with([1, 2, 3], [4], "y"), Timing(1.0), "gateway/0")
    assert (first["trajectory_id"], first["group_id"]) == (first_step["trajectory_id"], "g")
    assert other["trajectory_id"] == f"{first_step['trajectory_id']}~{first['step_index']}.1"
    assert (other["step_index"], other["parent_trajectory_id"]) == (0, first_step["trajectory_id"])
    assert (other["parent_step_index"], other["group_id"]) == (0, None)
    assert (other["messages"], other["prompt_token_ids"]) == (conversation.messages, [1, 2, 3])
    assert (other["response_token_ids"], other["response"]["content"]) == ([5], "z")
    assert other["event_id"] != first["event_id"]
    continued = [*messages, {"role": "assistant", "content": "z"}, {"role": "user", "content": "s"}]
    step = record(cache, continued, answer_with([1, 2, 3, 5, 6], [7]), identity)
    if named:  # the caller's name decides; the alternative is only part of the prompt
        assert (step["trajectory_id"], step["step_index"]) == ("t", 2)
        assert (step["prompt_shared_messages"], step["prompt_token_ids"]) == (3, [5, 6])
    else:
        assert (step["trajectory_id"], step["step_index"]) == (other["trajectory_id"], 1)
        assert (step["prompt_shared_messages"], step["prompt_token_ids"]) == (4, [6])


@pytest.mark.parametrize("tools", [None, [], [{"type": "web_search"}], ["get"], [{"type": "function"}], [{"type": []}]])
def test_calls_are_not_marked_if_the_offered_tools_cannot_be_read(tools: Any) -> None:
    call = new_tool_call(call_id="1", name="fly", arguments="{}")
    message = new_message(role="assistant", tool_calls=[call])
    step = record(new_cache(), [], answer_with([1], [2], message=message), identity_of(), tools=tools)
    assert step["response"]["tool_calls"][0]["error"] == ("unknown_tool" if tools == [] else None)


def test_the_offered_tools_are_stored_if_they_changed() -> None:
    cache = new_cache()
    get, put = ([{"type": "function", "function": {"name": name}}] for name in ("get", "put"))
    messages: list[dict[str, Any]] = []
    stored = []
    for tools in (get, get, put, None, None, get):
        messages.append({"role": "user", "content": "q"})
        stored.append(record(cache, messages, answer_with([1], [2]), identity_of(), tools=tools)["tool_definitions"])
        messages.append({"role": "assistant", "content": "x"})
    assert [text if text is None else orjson.loads(text) for text in stored] == [get, None, put, [], None, get]
    assert (
        record(cache, messages[:3], failed_answer("busy"), identity_of(), tools=get)["tool_definitions"] is None
    )  # a branch
    # A step without a shared prefix stores them again: its tokens contain them.
    fresh = record(cache, [{"role": "user", "content": "other"}], answer_with([1], [2]), identity_of(), tools=get)
    assert orjson.loads(fresh["tool_definitions"] or "") == get


@pytest.mark.parametrize("field", ["documents", "functions", "chat_template"])
def test_tokens_of_a_prompt_with_unrecorded_text_are_left_out(field: str) -> None:
    step = record(new_cache(), [], answer_with([1], [2]), identity_of(), **{field: ["secret"]})
    assert (step["fidelity"], step["prompt_token_ids"]) == ("text", [])


IDS = st.lists(st.integers(0, 3), min_size=1, max_size=6)
TEXTS = st.sampled_from(["", "a", "b", "é"])


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[list[int], list[int], list[dict[str, Any]], str]]:
    """Steps whose prompts continue the step before, are edited, or are new."""
    steps: list[tuple[list[int], list[int], list[dict[str, Any]], str]] = []
    tokens: list[int] = []
    messages: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 6))):
        keep = draw(st.one_of(st.just(len(tokens)), st.integers(0, len(tokens))))
        prompt = tokens[:keep] + draw(IDS)
        common = messages[: draw(st.one_of(st.just(len(messages)), st.integers(0, len(messages))))]
        prompt_messages = [*common, {"role": "user", "content": draw(TEXTS)}]
        response, text = draw(IDS), draw(TEXTS)
        steps.append((prompt, response, prompt_messages, text))
        tokens = prompt + response
        messages = [*prompt_messages, {"role": "assistant", "content": text}]
    return steps


@given(conversations(), st.sampled_from([1, 1 << 20]))
def test_every_prompt_can_be_restored_from_stored_steps(
    conversation: list[tuple[list[int], list[int], list[dict[str, Any]], str]], limit_bytes: int
) -> None:
    cache = new_cache(limit_bytes=limit_bytes)
    contexts: list[tuple[list[int], list[Any]]] = []  # of each step: tokens and messages of prompt and response
    for index, (prompt, response, prompt_messages, text) in enumerate(conversation):
        step = record(cache, prompt_messages, answer_with(prompt, response, text), identity_of())
        assert step["step_index"] == index
        named = step["prompt_shared_step"]
        assert named is None or 0 <= named < index - 1
        tokens, messages = contexts[index - 1 if named is None else named] if contexts else ([], [])
        shared = tokens[: step["prompt_shared_tokens"]]
        assert shared + step["prompt_token_ids"] == prompt
        assert step["prompt_shared_digest"] == (token_digest(shared) if shared else None)
        restored = messages[: step["prompt_shared_messages"]] + step["messages"]
        assert [(m["role"], m["content"]) for m in restored] == [(m["role"], m["content"]) for m in prompt_messages]
        contexts.append((prompt + step["response_token_ids"], [*restored, step["response"]]))


def test_after_eviction_the_prompt_is_stored_whole() -> None:
    cache = new_cache(1)
    question = [{"role": "user", "content": "q"}]
    record(cache, question, answer_with([1], [2]), identity_of("t"))
    record(cache, question, answer_with([1], [2]), identity_of("other"))
    step = record(
        cache, [*question, {"role": "assistant", "content": "x"}], answer_with([1, 2, 3], [4]), identity_of("t")
    )
    assert (step["prompt_token_ids"], step["step_index"]) == ([1, 2, 3], 1)
    assert len(cache) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": None},
        {"logprobs": [-0.5]},
        {"token_ids": None},
        {"prompt_token_ids": []},
        {"prompt_token_ids": ["1"]},
        {"token_ids": [1, 2**31]},
        {"token_ids": [2, -3]},
        {"prompt_token_ids": [-1]},
        {"weight_versions": [{"version": 3, "start": 0, "end": 1}]},
        {"weight_versions": [{"version": 3, "start": 0, "end": 1}, {"version": 4, "start": 0, "end": 2}]},
        {"weight_versions": [{"version": 3}]},
        {"weight_versions": [{"version": -1, "start": 0, "end": 2}]},
        {"weight_versions": None},
        {"token_ids": 2},
        {"logprobs": [-0.5, 0.5]},
        {"logprobs": [-0.5, float("nan")]},
    ],
)
def test_uncertain_tokens_are_left_out(fields: dict[str, Any]) -> None:
    step = record(new_cache(), [], answer_with([1], [2, 3], **fields), identity_of())
    assert step["fidelity"] == "text"
    fields_of_tokens = (
        "prompt_token_ids",
        "response_token_ids",
        "response_logprobs",
        "policy_spans",
        "prompt_shared_digest",
    )
    assert not any(step[name] for name in fields_of_tokens)  # type: ignore[literal-required]
    check_step(step)  # `govern` accepts it


@pytest.mark.parametrize(
    ("mask", "fits"),
    [
        ({"counts": [2, 0], "token_ids": [1, 2]}, True),
        ({"counts": [2, 1], "token_ids": [1, 2, 3]}, True),
        ({"counts": [2, 1], "token_ids": [1, 2, 4]}, False),
        ({"counts": [2], "token_ids": [1, 2]}, False),
        ({"counts": [2, 1], "token_ids": [1, 2]}, False),
        ({"counts": [3, -1], "token_ids": [1, 2]}, False),
        ({"counts": [2, 0], "token_ids": [-1, 2]}, False),
        ({"counts": [2, 0], "token_ids": [2, 2**31]}, False),
        ({"counts": [0, 0], "token_ids": []}, False),
        ({"counts": 2}, False),
        ([[1, 2], [3]], False),
        (None, False),
    ],
    ids=str,
)
def test_a_sampling_mask_is_recorded_if_it_fits_the_tokens(mask: Any, fits: bool) -> None:
    step = record(new_cache(), [], answer_with([1], [2, 3], sampling_mask=mask), identity_of())
    assert step["fidelity"] == "token"
    assert step["sampling_mask"] == (mask if fits else None)
    check_step(step)  # `govern` accepts it


def test_a_response_may_have_spans_of_several_versions() -> None:
    versions = [{"version": 3, "start": 0, "end": 1}, {"version": 4, "start": 1, "end": 3}]
    step = record(new_cache(), [], answer_with([1], [2, 3, 4], weight_versions=versions), identity_of())
    assert [(s["start"], s["end"], s["version"], s["model"]) for s in step["policy_spans"]] == [
        (0, 1, 3, "m"),
        (1, 3, 4, "m"),
    ]


def test_a_failed_call_is_a_step_with_its_error() -> None:
    step = record(new_cache(), [{"role": "user", "content": "q"}], failed_answer("too_long"), identity_of())
    assert (step["error"], step["finish_reason"], step["fidelity"]) == ("too_long", "error", "text")
    assert step["messages"] == [new_message(role="user", content="q")]


def test_a_repeated_call_stays_in_the_trajectory_of_the_failed_one() -> None:
    cache = new_cache()
    question = [{"role": "user", "content": "q"}]
    unnamed = identity_of("")
    for _ in range(2):  # two conversations that are equal so far
        record(cache, question, answer_with([1], [2]), unnamed)
    longer = [*question, {"role": "assistant", "content": "x"}, {"role": "user", "content": "go on"}]
    tried = [
        record(cache, longer, failed_answer("busy"), unnamed),
        record(cache, longer, failed_answer("busy"), unnamed),
    ]
    done = record(cache, longer, answer_with([1, 2, 3], [4]), unnamed)
    assert [s["step_index"] for s in (*tried, done)] == [1, 2, 3]
    assert {s["trajectory_id"] for s in (*tried, done)} == {"new-1"}
    assert (done["prompt_shared_step"], done["prompt_shared_messages"], done["prompt_shared_tokens"]) == (0, 2, 2)


@pytest.mark.parametrize(
    ("request_", "sampling"),
    [
        ({}, (1.0, 1.0, None, None)),
        ({"temperature": 0, "top_p": 0.5, "max_tokens": 7, "seed": 5}, (0.0, 0.5, 7, 5)),
        ({"max_completion_tokens": 9, "max_tokens": 7}, (1.0, 1.0, 9, None)),
        ({"temperature": "hot", "seed": 2**70, "max_tokens": True}, (1.0, 1.0, None, None)),
    ],
)
def test_sampling_parameters_are_read(request_: dict[str, Any], sampling: tuple[Any, ...]) -> None:
    step = record(new_cache(), [], answer_with([1], [2]), identity_of(), **request_)
    temperature, top_p, max_tokens, seed = sampling
    assert step["sampling"] == new_sampling(temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed)


def test_usage_and_user_come_from_the_request_without_headers() -> None:
    answer = answer_with([1], [2], usage_prompt_tokens=1, usage_response_tokens=2)
    step = record(new_cache(), [], answer, identity_of(), user="someone")
    assert (step["usage_prompt_tokens"], step["usage_response_tokens"], step["user"]) == (1, 2, "someone")
    named = identity_of()
    named.user = "header"
    assert record(new_cache(), [], answer_with([1], [2]), named, user="someone")["user"] == "header"


def test_messages_of_every_shape_are_recorded() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "get", "arguments": '{"input":"a"}'}}
    image = [{"type": "image_url", "image_url": {"url": "u"}}]
    raw: list[Any] = [
        {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": image},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "4"},
        "nonsense",
    ]
    step = record(new_cache(), raw, answer_with([1], [2]), identity_of())
    assert [m["content"] for m in step["messages"]] == [
        "ab",
        '[{"type":"image_url","image_url":{"url":"u"}}]',
        "",
        "4",
        '"nonsense"',
    ]
    assert step["messages"][2]["tool_calls"][0]["arguments"] == '{"input":"a"}'
    assert step["messages"][3]["tool_call_id"] == "c"


def test_every_identity_header_reaches_the_step() -> None:
    headers = [
        (b"x-stepstream-trajectory", b"t"),
        (b"x-stepstream-step", b"0"),
        (b"x-stepstream-task", "tâche".encode()),
        (b"x-stepstream-group", b"g"),
        (b"x-stepstream-parent", b"p"),
        (b"x-stepstream-parent-step", b"4"),
        (b"x-stepstream-agent", b"agent"),
        (b"x-stepstream-environment", b"env"),
        (b"x-stepstream-harness", b"h@1"),
        (b"x-stepstream-split", b"eval"),
        (b"x-stepstream-consent", b"analyse"),
        (b"x-stepstream-tenant", b"acme"),
        (b"x-stepstream-user", b"u"),
    ]
    step = record(new_cache(), [], answer_with([1], [2]), identify(headers, GatewaySettings()))
    expected = {
        "trajectory_id": "t",
        "task_id": "tâche",
        "group_id": "g",
        "parent_trajectory_id": "p",
        "parent_step_index": 4,
        "agent": "agent",
        "environment": "env",
        "harness_version": "h@1",
        "split": "eval",
        "consent": "analyse",
        "tenant": "acme",
        "user": "u",
    }
    assert expected.items() <= step.items()
