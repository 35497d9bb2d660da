"""A call is placed by its trajectory's name, by a response's id, or by the messages that it repeats."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.gateway.context.cache import EQUAL_ENDINGS, ContextCache
from stepstream.services.gateway.context.endings import EndingFile
from stepstream.services.gateway.context.packed_tokens import pack
from stepstream.services.gateway.context.step_indices import StepIndexFile
from stepstream.services.gateway.context.tree import Prompt, StepPosition, prompt_of
from stepstream.topics.events import Message, new_message, new_tool_call

SCOPE = ("acme", "", "agent")


def new_cache(limit: int = 100, limit_bytes: int = 1 << 20, indices: StepIndexFile | None = None) -> ContextCache:
    names = count()
    return ContextCache(limit, limit_bytes, lambda: f"new-{next(names)}", indices or StepIndexFile(), EndingFile())


def user(text: str) -> Message:
    return new_message(role="user", content=text)


def assistant(text: str, **fields: Any) -> Message:
    return new_message(role="assistant", content=text, **fields)


def ask(
    cache: ContextCache, messages: list[Message], reply: str | Message = "", trajectory: str = "", **more: Any
) -> tuple[StepPosition, Prompt]:
    """Place one call and, with `reply`, add its step."""
    prompt = prompt_of(messages, more.pop("previous", None))
    position = cache.place("acme", trajectory, more.pop("step", None), prompt, more.pop("scope", SCOPE))
    if reply:
        response = assistant(reply) if isinstance(reply, str) else reply
        cache.extend(position, prompt, response, response_id=more.pop("response_id", ""))
    return position, prompt


def shape(cache: ContextCache, position: StepPosition, prompt: Prompt) -> tuple[str, int, int | None, int]:
    """Trajectory and index of a call, and the step and number of messages that it shares; it then fails."""
    shared = cache.extend(position, prompt, None)
    return position.trajectory.id, position.step_index, shared.step, shared.messages


def test_a_conversation_without_a_name_stays_together() -> None:
    cache = new_cache()
    messages = [user("a")]
    ids = set()
    for turn in range(4):
        position, prompt = ask(cache, messages)
        shared = cache.extend(position, prompt, assistant(f"r{turn}"))
        assert (position.step_index, shared.step, shared.messages) == (turn, None, 2 * turn)
        ids.add(position.trajectory.id)
        messages += [assistant(f"r{turn}"), user(f"u{turn}")]
    assert len(ids) == 1


def test_a_branch_names_the_step_that_it_continues() -> None:
    cache = new_cache()
    ask(cache, [user("a")], "r0")
    ask(cache, [user("a"), assistant("r0"), user("b")], "r1")
    ask(cache, [user("a"), assistant("r0"), user("b"), assistant("r1"), user("c")], "r2")
    assert shape(cache, *ask(cache, [user("a"), assistant("r0"), user("other")])) == ("new-0", 3, 0, 2)


@pytest.mark.parametrize(
    ("edited", "shape_"),
    [
        ([user("sys"), user("summary of a and b"), user("c")], ("t", 2, 0, 1)),
        ([user("something else")], ("t", 2, None, 0)),
        ([user("sys"), user("a"), assistant("r0"), user("edited")], ("t", 2, 0, 3)),
        ([user("sys"), user("a"), assistant("r0"), user("b")], ("t", 2, None, 4)),
        ([user("sys"), user("a")], ("t", 2, 0, 2)),
    ],
)
def test_an_edited_or_compacted_context_of_a_named_trajectory_branches(
    edited: list[Message], shape_: tuple[str, int, int | None, int]
) -> None:
    cache = new_cache()
    ask(cache, [user("sys"), user("a")], "r0", "t")
    ask(cache, [user("sys"), user("a"), assistant("r0"), user("b")], "r1", "t")
    assert shape(cache, *ask(cache, edited, trajectory="t")) == shape_


def test_a_reformatted_response_is_recognised_and_a_changed_one_is_not() -> None:
    cache = new_cache()
    call = new_tool_call(call_id="c", name="get", arguments='{"b": 1,  "a": [2]}')
    ask(cache, [user("a")], assistant(" ", tool_calls=[call], reasoning="hm"))
    same = new_tool_call(call_id="c", name="get", arguments='{"a":[2],"b":1}')
    again = [user("a"), assistant("", tool_calls=[same]), new_message(role="tool", content="4", tool_call_id="c")]
    assert shape(cache, *ask(cache, again))[:2] == ("new-0", 1)
    other = new_tool_call(call_id="c", name="get", arguments='{"a":[3],"b":1}')
    assert ask(cache, [user("a"), assistant("", tool_calls=[other])])[0].trajectory.id == "new-1"
    assert ask(cache, [user("a "), assistant("", tool_calls=[same])])[0].trajectory.id == "new-2"


def test_of_equal_conversations_the_newest_not_yet_continued_is_chosen() -> None:
    cache = new_cache()
    for _ in range(3):
        ask(cache, [user("a")], "r")
    continued = [ask(cache, [user("a"), assistant("r"), user("b")])[0].trajectory.id for _ in range(4)]
    assert continued == ["new-2", "new-1", "new-0", "new-2"]


def test_concurrent_calls_of_one_trajectory_get_different_steps() -> None:
    cache = new_cache()
    positions = [ask(cache, [user("a")], trajectory="t")[0] for _ in range(2)]
    assert [position.step_index for position in positions] == [0, 1]


def test_a_step_shares_only_with_earlier_ones() -> None:
    cache = new_cache()
    ask(cache, [user("a")], "r0", "t")
    early, early_prompt = ask(cache, [user("a"), assistant("r0"), user("b"), user("c")], trajectory="t")
    ask(cache, [user("a"), assistant("r0"), user("b")], "r2", "t")
    assert shape(cache, early, early_prompt) == ("t", 1, None, 2)


def test_tenants_may_use_the_same_names_of_trajectories_and_responses() -> None:
    cache = new_cache()
    positions = {}
    for tenant in ("acme", "other"):
        prompt = prompt_of([user(f"of {tenant}")], None)
        positions[tenant] = cache.place(tenant, "session-1", None, prompt, (tenant, "", "agent"))
        cache.extend(positions[tenant], prompt, assistant("yes"), response_id=f"resp-{tenant}")
    assert [position.step_index for position in positions.values()] == [0, 0]
    assert cache.newest_index("acme", "session-1") == cache.newest_index("other", "session-1") == 0
    assert cache.newest_index("third", "session-1") is None
    assert cache.step_of_response("acme", "resp-other") is None
    step = cache.step_of_response("acme", "resp-acme")
    assert step is not None
    assert step.trajectory is positions["acme"].trajectory


def test_calls_of_other_tenants_keys_and_agents_are_never_joined() -> None:
    cache = new_cache()
    ask(cache, [user("a")], "r", scope=("acme", "", "agent"))
    longer = [user("a"), assistant("r"), user("b")]
    for scope in (("acme", "key", "agent"), ("acme", "", "other"), ("else", "", "agent")):
        assert ask(cache, longer, scope=scope)[0].trajectory.id != "new-0"
    assert cache.place("else", "new-0", None, prompt_of([])).step_index == 0


@pytest.fixture
def indices(tmp_path: Path) -> Iterator[StepIndexFile]:
    opened = StepIndexFile(tmp_path)
    yield opened
    opened.close()


def test_a_named_trajectory_keeps_counting_after_eviction_and_restart(indices: StepIndexFile) -> None:
    """After failed calls, branches and compactions, the prompt has fewer responses than the trajectory has steps."""
    cache = new_cache(limit=1, indices=indices)
    ask(cache, [user("a")], "r0", "t")
    ask(cache, [user("a"), assistant("r0"), user("b")], trajectory="t")  # a failed call
    ask(cache, [user("a"), assistant("r0"), user("b")], "r2", "t")
    compacted = [user("summary")]
    # The first call is lost when the gateway is killed. Its repetition leaves a gap.
    assert ask(new_cache(indices=indices), compacted, trajectory="t")[0].step_index == 3
    assert ask(new_cache(indices=indices), compacted, trajectory="t")[0].step_index == 4
    ask(cache, [user("a")], "r", "other")
    assert len(cache) == 1
    assert ask(cache, compacted, trajectory="t")[0].step_index == 5
    assert ask(cache, compacted, trajectory="t", step=9)[0].step_index == 9
    assert ask(new_cache(indices=indices), compacted, trajectory="t")[0].step_index == 10
    assert new_cache(indices=indices).place("else", "t", None, prompt_of(compacted)).step_index == 0


def test_the_newest_step_of_a_trajectory_is_known_after_a_restart(indices: StepIndexFile) -> None:
    cache = new_cache(indices=indices)
    for text in ("a", "b"):
        ask(cache, [user(text)], "r", "t")
    after = new_cache(indices=indices)
    assert [after.newest_index("acme", "t"), after.newest_index("acme", "other"), after.newest_index("else", "t")] == [
        1,
        None,
        None,
    ]


def test_a_conversation_named_later_is_stored_from_then_on(indices: StepIndexFile) -> None:
    cache = new_cache(indices=indices)
    ask(cache, [user("a")], "r0")
    ask(cache, [user("a"), assistant("r0"), user("b")], "r1", "new-0")
    assert ask(new_cache(indices=indices), [user("c")], trajectory="new-0")[0].step_index == 2


def test_without_a_stored_index_the_responses_in_the_prompt_are_counted() -> None:
    messages = [user("a"), assistant("r0"), user("b"), assistant("r1"), user("c")]
    assert ask(new_cache(), messages, trajectory="t")[0].step_index == 2
    assert ask(new_cache(), messages)[0].step_index == 0  # a new trajectory
    assert ask(new_cache(), messages, trajectory="t", step=7)[0].step_index == 7


def test_a_call_continues_from_a_response_id() -> None:
    cache = new_cache()
    instructions = new_message(role="system", content="be good")
    ask(cache, [instructions, user("a")], "r0", response_id="resp-0")
    previous = cache.step_of_response("acme", "resp-0")
    assert previous is not None
    position, prompt = ask(cache, [instructions, user("b")], "r1", previous=previous, response_id="resp-1")
    assert shape(cache, position, prompt) == ("new-0", 1, None, 3)
    assert [m["content"] for m in prompt.messages] == ["b"]
    position, prompt = ask(cache, [user("c")], previous=previous)
    assert shape(cache, position, prompt) == ("new-0", 2, 0, 3)
    messages = [instructions, user("a"), assistant("r0"), user("b"), assistant("r1"), user("d")]
    assert shape(cache, *ask(cache, messages)) == ("new-0", 3, 1, 5)
    assert cache.step_of_response("other", "resp-0") is None


def test_tokens_of_older_steps_are_recognised_by_digest() -> None:
    cache = new_cache()
    messages: list[Message] = []
    tokens: list[int] = []
    lengths = []
    for turn in range(5):
        messages.append(user(f"u{turn}"))
        tokens += [turn, turn]
        prompt = prompt_of(list(messages))
        position = cache.place("acme", "t", None, prompt)
        cache.extend(position, prompt, assistant(f"r{turn}"), pack(tokens), pack([90 + turn]))
        messages.append(assistant(f"r{turn}"))
        tokens.append(90 + turn)
        lengths.append(len(tokens))
    branch = prompt_of([*messages[:2], user("other")])
    position = cache.place("acme", "t", None, branch)
    shared = cache.extend(position, branch, None, pack([*tokens[: lengths[0]], 7]))
    assert (shared.step, shared.messages, shared.tokens) == (0, 2, lengths[0])
    assert cache.extend(position, branch, None, pack([5, 5, 5, 5])).tokens == 0
    again = prompt_of(messages[:1])
    assert cache.extend(cache.place("acme", "t", None, again), again, None, pack([0, 0])).tokens == 2


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), max_size=30), st.integers(1, 4))
def test_memory_is_bounded_and_evicted_trajectories_leave_nothing(
    calls: list[tuple[int, int, bool]], limit: int
) -> None:
    cache = new_cache(limit, 20_000)
    for trajectory, text, named in calls:
        position, prompt = ask(cache, [user(f"{text}")], trajectory=f"t{trajectory}" if named else "")
        tokens = pack(range(500))
        cache.extend(position, prompt, assistant("r"), tokens, tokens, f"id-{trajectory}-{text}")
    assert len(cache) <= limit
    cache.place("acme", "newest", None, prompt_of([]))
    for other in range(limit):
        cache.place("acme", f"other-{other}", None, prompt_of([]))
    assert cache.size < 1000 * limit
    assert not cache._endings
    assert not cache._responses
    assert not len(cache._traces)


def test_one_name_in_endless_use_does_not_evict_the_others() -> None:
    cache = new_cache(limit_bytes=100_000)
    ask(cache, [user("a")], "r", "other")
    for number in range(300):
        position, _ = ask(cache, [user(f"{number}")], f"r{number}", "endless")
        assert position.step_index == number
        assert cache.size < 50_000
    assert shape(cache, *ask(cache, [user("a"), assistant("r"), user("b")], trajectory="other"))[1:] == (
        1,
        None,
        2,
    )
    position, prompt = ask(cache, [user("299"), assistant("r299"), user("b")], trajectory="endless")
    assert shape(cache, position, prompt) == ("endless", 300, None, 2)


def test_the_number_of_equal_conversations_is_bounded() -> None:
    cache = new_cache(limit=2000)
    for _ in range(EQUAL_ENDINGS + 50):
        ask(cache, [user("a")], "r")
    (equal,) = cache._endings.values()
    assert len(equal) == EQUAL_ENDINGS


def test_the_recorded_tokens_are_those_of_the_longest_whole_conversation() -> None:
    cache = new_cache()

    def add(messages: list[Message], reply: str, model: str = "demo") -> None:
        position, prompt = ask(cache, messages, trajectory="t")
        tokens = pack([len(messages), 7]), pack([8])
        cache.extend(position, prompt, assistant(reply), *tokens, model=model)

    def recorded(messages: list[Message], model: str = "demo") -> tuple[int, bytes] | None:
        position, prompt = ask(cache, messages, trajectory="t")
        step = cache.recorded_prefix(position, prompt, model)
        return None if step is None else (step.messages, step.tokens)

    first = [user("a")]
    second = [*first, assistant("r0"), user("b")]
    third = [*second, assistant("r1"), user("c")]
    assert recorded(first) is None
    add(first, "r0")
    assert recorded(second) == (2, pack([1, 7, 8]))
    assert recorded([*first, assistant(" r0 "), user("b")]) == (2, pack([1, 7, 8]))  # as libraries change it
    assert recorded([*first, assistant("other"), user("b")]) is None
    assert recorded(second[:2]) is None  # nothing is new
    assert recorded(second, "another") is None
    add(second, "r1")
    assert recorded(third) == (4, pack([3, 7, 8]))
    assert recorded([*second[:2], user("branch")]) == (2, pack([1, 7, 8]))
    add(third, "r2")
    assert recorded([*second[:2], user("branch")]) is None  # only the newest two steps keep their tokens
