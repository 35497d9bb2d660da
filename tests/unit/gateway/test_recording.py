"""A step stores only what is new, and what it stores gives back the whole: prompts, messages and digests."""

from itertools import count
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.config import GatewaySettings
from stepstream.jobs.governance.validation import check_step
from stepstream.services.gateway.context.cache import ContextCache
from stepstream.services.gateway.context.step_indices import NextIndices
from stepstream.services.gateway.context.tree import prompt_of
from stepstream.services.gateway.identity import Identity, identify
from stepstream.services.gateway.protocols.base import Answer, failed
from stepstream.services.gateway.protocols.chat.protocol import CHAT
from stepstream.services.gateway.protocols.messages import record_message
from stepstream.services.gateway.step_builder import Call, Timing, branch
from stepstream.services.gateway.step_builder import build_step as record_call
from stepstream.topics.events import Step, new_message, new_tool_call
from stepstream.topics.ids import token_digest


def remembering(limit: int = 10, limit_bytes: int = 1 << 20) -> ContextCache:
    names = count()
    return ContextCache(limit, limit_bytes, lambda: f"new-{next(names)}", NextIndices())


def record(
    contexts: ContextCache, messages: list[dict[str, Any]], answer: Answer, identity: Identity, **request: Any
) -> Step:
    conversation = CHAT.read({"model": "m", "messages": messages} | request)
    prompt = prompt_of(conversation.messages)
    place = contexts.place(identity.tenant, identity.trajectory_id, identity.step_index, prompt)
    call = Call(identity, conversation, prompt, place, "e", 1)
    return record_call(contexts, call, answer, Timing(1.0), "gateway/0")


def whose(trajectory_id: str = "t") -> Identity:
    return Identity(trajectory_id=trajectory_id, agent="a", consent="train", tenant="default")


def answered(prompt: list[int], response: list[int], text: str = "x", **fields: Any) -> Answer:
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


def test_a_call_of_a_tool_that_was_not_on_offer_is_told_and_repeated_all_the_same() -> None:
    contexts = remembering()
    question = {"role": "user", "content": "q"}
    raw = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("get", "fly")]
    said = {"role": "assistant", "content": "", "tool_calls": raw}
    answer = answered([1], [2], message=record_message(said))
    offer = [{"type": "function", "function": {"name": "get"}}]
    step = record(contexts, [question], answer, whose(), tools=offer)
    assert [call["error"] for call in step["response"]["tool_calls"]] == [None, "unknown_tool"]
    # The agent sends the call back as it was made: it is the step before's response.
    again = record(contexts, [question, said], answered([1, 2, 3], [4]), whose(), tools=offer)
    assert (again["prompt_shared_messages"], again["messages"]) == (2, [])


@pytest.mark.parametrize("named", [True, False])
def test_an_alternative_begins_a_branch_in_which_a_conversation_may_go_on(named: bool) -> None:
    contexts = remembering()
    whom = identify([(b"x-stepstream-group", b"g")], GatewaySettings(), "t" if named else "")
    question = {"role": "user", "content": "q"}
    begun = record(contexts, [question], answered([1], [2], "x"), whom)
    messages = [question, {"role": "assistant", "content": "x"}, {"role": "user", "content": "r"}]
    conversation = CHAT.read({"model": "m", "messages": messages})
    prompt = prompt_of(conversation.messages)
    place = contexts.place(whom.tenant, whom.trajectory_id, None, prompt)
    call = Call(whom, conversation, prompt, place, "e", 1)
    other = record_call(contexts, branch(contexts, call, 1), answered([1, 2, 3], [5], "z"), Timing(1.0), "gateway/0")
    first = record_call(contexts, call, answered([1, 2, 3], [4], "y"), Timing(1.0), "gateway/0")
    assert (first["trajectory_id"], first["group_id"]) == (begun["trajectory_id"], "g")
    assert other["trajectory_id"] == f"{begun['trajectory_id']}~{first['step_index']}.1"
    assert (other["step_index"], other["parent_trajectory_id"]) == (0, begun["trajectory_id"])
    assert (other["parent_step_index"], other["group_id"]) == (0, None)
    assert (other["messages"], other["prompt_token_ids"]) == (conversation.messages, [1, 2, 3])
    assert (other["response_token_ids"], other["response"]["content"]) == ([5], "z")
    assert other["event_id"] != first["event_id"]
    went_on = [*messages, {"role": "assistant", "content": "z"}, {"role": "user", "content": "s"}]
    step = record(contexts, went_on, answered([1, 2, 3, 5, 6], [7]), whom)
    if named:  # the caller's word; the alternative is context
        assert (step["trajectory_id"], step["step_index"]) == ("t", 2)
        assert (step["prompt_shared_messages"], step["prompt_token_ids"]) == (3, [5, 6])
    else:
        assert (step["trajectory_id"], step["step_index"]) == (other["trajectory_id"], 1)
        assert (step["prompt_shared_messages"], step["prompt_token_ids"]) == (4, [6])


@pytest.mark.parametrize("tools", [None, [], [{"type": "web_search"}], ["get"], [{"type": "function"}], [{"type": []}]])
def test_calls_are_not_doubted_where_the_offer_cannot_be_told(tools: Any) -> None:
    call = new_tool_call(call_id="1", name="fly", arguments="{}")
    message = new_message(role="assistant", tool_calls=[call])
    step = record(remembering(), [], answered([1], [2], message=message), whose(), tools=tools)
    assert step["response"]["tool_calls"][0]["error"] == ("unknown_tool" if tools == [] else None)


def test_the_tools_on_offer_are_stored_where_they_are_others_than_before() -> None:
    contexts = remembering()
    get, put = ([{"type": "function", "function": {"name": name}}] for name in ("get", "put"))
    messages: list[dict[str, Any]] = []
    stored = []
    for tools in (get, get, put, None, None, get):
        messages.append({"role": "user", "content": "q"})
        stored.append(record(contexts, messages, answered([1], [2]), whose(), tools=tools)["tool_definitions"])
        messages.append({"role": "assistant", "content": "x"})
    assert [text if text is None else orjson.loads(text) for text in stored] == [get, None, put, [], None, get]
    assert record(contexts, messages[:3], failed("busy"), whose(), tools=get)["tool_definitions"] is None  # a branch
    # What shares nothing tells them again: nothing else would say what its tokens hold.
    fresh = record(contexts, [{"role": "user", "content": "other"}], answered([1], [2]), whose(), tools=get)
    assert orjson.loads(fresh["tool_definitions"] or "") == get


@pytest.mark.parametrize("field", ["documents", "functions", "chat_template"])
def test_tokens_of_a_prompt_with_text_that_is_recorded_nowhere_are_left_out(field: str) -> None:
    step = record(remembering(), [], answered([1], [2]), whose(), **{field: ["secret"]})
    assert (step["fidelity"], step["prompt_token_ids"]) == ("text", [])


IDS = st.lists(st.integers(0, 3), min_size=1, max_size=6)
TEXTS = st.sampled_from(["", "a", "b", "é"])


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[list[int], list[int], list[dict[str, Any]], str]]:
    """Steps whose prompts go on from the step before, or are edited, or are something else."""
    steps: list[tuple[list[int], list[int], list[dict[str, Any]], str]] = []
    tokens: list[int] = []
    messages: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 6))):
        keep = draw(st.one_of(st.just(len(tokens)), st.integers(0, len(tokens))))
        prompt = tokens[:keep] + draw(IDS)
        kept = messages[: draw(st.one_of(st.just(len(messages)), st.integers(0, len(messages))))]
        asked = [*kept, {"role": "user", "content": draw(TEXTS)}]
        response, text = draw(IDS), draw(TEXTS)
        steps.append((prompt, response, asked, text))
        tokens = prompt + response
        messages = [*asked, {"role": "assistant", "content": text}]
    return steps


@given(conversations(), st.sampled_from([1, 1 << 20]))
def test_what_is_stored_gives_back_every_prompt(
    conversation: list[tuple[list[int], list[int], list[dict[str, Any]], str]], limit_bytes: int
) -> None:
    contexts = remembering(limit_bytes=limit_bytes)
    whole: list[tuple[list[int], list[Any]]] = []  # of each step: tokens and messages of prompt and response
    for index, (prompt, response, asked, text) in enumerate(conversation):
        step = record(contexts, asked, answered(prompt, response, text), whose())
        assert step["step_index"] == index
        named = step["prompt_shared_step"]
        assert named is None or 0 <= named < index - 1
        tokens, messages = whole[index - 1 if named is None else named] if whole else ([], [])
        shared = tokens[: step["prompt_shared_tokens"]]
        assert shared + step["prompt_token_ids"] == prompt
        assert step["prompt_shared_digest"] == (token_digest(shared) if shared else None)
        restored = messages[: step["prompt_shared_messages"]] + step["messages"]
        assert [(m["role"], m["content"]) for m in restored] == [(m["role"], m["content"]) for m in asked]
        whole.append((prompt + step["response_token_ids"], [*restored, step["response"]]))


def test_a_forgotten_context_stores_the_prompt_whole() -> None:
    contexts = remembering(1)
    question = [{"role": "user", "content": "q"}]
    record(contexts, question, answered([1], [2]), whose("t"))
    record(contexts, question, answered([1], [2]), whose("other"))
    step = record(contexts, [*question, {"role": "assistant", "content": "x"}], answered([1, 2, 3], [4]), whose("t"))
    assert (step["prompt_token_ids"], step["step_index"]) == ([1, 2, 3], 1)
    assert len(contexts) == 1


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
def test_tokens_that_are_not_certain_are_left_out(fields: dict[str, Any]) -> None:
    step = record(remembering(), [], answered([1], [2, 3], **fields), whose())
    assert step["fidelity"] == "text"
    kept = ("prompt_token_ids", "response_token_ids", "response_logprobs", "policy_spans", "prompt_shared_digest")
    assert not any(step[name] for name in kept)  # type: ignore[literal-required]
    check_step(step)  # or `govern` would refuse it


def test_spans_of_several_versions() -> None:
    versions = [{"version": 3, "start": 0, "end": 1}, {"version": 4, "start": 1, "end": 3}]
    step = record(remembering(), [], answered([1], [2, 3, 4], weight_versions=versions), whose())
    assert [(s["start"], s["end"], s["version"], s["model"]) for s in step["policy_spans"]] == [
        (0, 1, 3, "m"),
        (1, 3, 4, "m"),
    ]


def test_a_failed_call_is_a_step_with_its_error() -> None:
    step = record(remembering(), [{"role": "user", "content": "q"}], failed("too_long"), whose())
    assert (step["error"], step["finish_reason"], step["fidelity"]) == ("too_long", "error", "text")
    assert step["messages"] == [new_message(role="user", content="q")]


def test_a_failed_call_that_is_made_again_stays_in_its_trajectory() -> None:
    contexts = remembering()
    question = [{"role": "user", "content": "q"}]
    nameless = whose("")
    for _ in range(2):  # two conversations that are equal so far
        record(contexts, question, answered([1], [2]), nameless)
    goes_on = [*question, {"role": "assistant", "content": "x"}, {"role": "user", "content": "go on"}]
    tried = [record(contexts, goes_on, failed("busy"), nameless), record(contexts, goes_on, failed("busy"), nameless)]
    done = record(contexts, goes_on, answered([1, 2, 3], [4]), nameless)
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
def test_sampling(request_: dict[str, Any], sampling: tuple[Any, ...]) -> None:
    step = record(remembering(), [], answered([1], [2]), whose(), **request_)
    assert tuple(step["sampling"].values()) == sampling


def test_usage_and_user_come_from_the_protocol_where_nothing_else_tells() -> None:
    answer = answered([1], [2], usage_prompt_tokens=1, usage_response_tokens=2)
    step = record(remembering(), [], answer, whose(), user="someone")
    assert (step["usage_prompt_tokens"], step["usage_response_tokens"], step["user"]) == (1, 2, "someone")
    named = whose()
    named.user = "header"
    assert record(remembering(), [], answered([1], [2]), named, user="someone")["user"] == "header"


def test_messages_of_every_shape_are_kept() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "get", "arguments": '{"input":"a"}'}}
    image = [{"type": "image_url", "image_url": {"url": "u"}}]
    raw: list[Any] = [
        {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": image},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "4"},
        "nonsense",
    ]
    step = record(remembering(), raw, answered([1], [2]), whose())
    assert [m["content"] for m in step["messages"]] == [
        "ab",
        '[{"type":"image_url","image_url":{"url":"u"}}]',
        "",
        "4",
        '"nonsense"',
    ]
    assert step["messages"][2]["tool_calls"][0]["arguments"] == '{"input":"a"}'
    assert step["messages"][3]["tool_call_id"] == "c"


def test_identity_reaches_the_step() -> None:
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
    step = record(remembering(), [], answered([1], [2]), identify(headers, GatewaySettings()))
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
