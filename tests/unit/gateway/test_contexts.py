"""Trajectories are trees: a call finds its place by name, by a response's id, or by what it repeats."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.gateway.context.cache import EQUAL_ENDINGS, ContextCache
from stepstream.services.gateway.context.packed_tokens import pack
from stepstream.services.gateway.context.step_indices import NextIndices
from stepstream.services.gateway.context.tree import Prompt, StepPosition, prompt_of
from stepstream.topics.events import Message, new_message, new_tool_call

SCOPE = ("acme", "", "agent")


def remembering(limit: int = 100, limit_bytes: int = 1 << 20, indices: NextIndices | None = None) -> ContextCache:
    names = count()
    return ContextCache(limit, limit_bytes, lambda: f"new-{next(names)}", indices or NextIndices())


def user(text: str) -> Message:
    return new_message(role="user", content=text)


def assistant(text: str, **fields: Any) -> Message:
    return new_message(role="assistant", content=text, **fields)


def ask(
    contexts: ContextCache, messages: list[Message], reply: str | Message = "", trajectory: str = "", **more: Any
) -> tuple[StepPosition, Prompt]:
    """One call and, with `reply`, its record."""
    before = more.pop("before", None)
    prompt = prompt_of(messages, before)
    place = contexts.place("acme", trajectory, more.pop("step", None), prompt, more.pop("scope", SCOPE))
    if reply:
        said = assistant(reply) if isinstance(reply, str) else reply
        contexts.remember(place, prompt, said, b"", 0, more.pop("response_id", ""))
    return place, prompt


def shape(contexts: ContextCache, place: StepPosition, prompt: Prompt) -> tuple[str, int, int | None, int]:
    shared = contexts.shared(place, prompt, b"")
    return place.trajectory.id, place.step_index, shared.step, shared.messages


def test_a_conversation_without_a_name_stays_together() -> None:
    contexts = remembering()
    said = [user("a")]
    ids = set()
    for turn in range(4):
        place, prompt = ask(contexts, said)
        assert shape(contexts, place, prompt) == (place.trajectory.id, turn, None, 2 * turn)
        contexts.remember(place, prompt, assistant(f"r{turn}"), b"", 0)
        ids.add(place.trajectory.id)
        said += [assistant(f"r{turn}"), user(f"u{turn}")]
    assert len(ids) == 1


def test_a_branch_names_the_step_that_it_leaves() -> None:
    contexts = remembering()
    ask(contexts, [user("a")], "r0")
    ask(contexts, [user("a"), assistant("r0"), user("b")], "r1")
    ask(contexts, [user("a"), assistant("r0"), user("b"), assistant("r1"), user("c")], "r2")
    assert shape(contexts, *ask(contexts, [user("a"), assistant("r0"), user("other")])) == ("new-0", 3, 0, 2)


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
    contexts = remembering()
    ask(contexts, [user("sys"), user("a")], "r0", "t")
    ask(contexts, [user("sys"), user("a"), assistant("r0"), user("b")], "r1", "t")
    assert shape(contexts, *ask(contexts, edited, trajectory="t")) == shape_


def test_what_libraries_change_in_a_response_does_not_matter_and_what_agents_say_does() -> None:
    contexts = remembering()
    call = new_tool_call(call_id="c", name="get", arguments='{"b": 1,  "a": [2]}')
    ask(contexts, [user("a")], assistant(" ", tool_calls=[call], reasoning="hm"))
    same = new_tool_call(call_id="c", name="get", arguments='{"a":[2],"b":1}')
    again = [user("a"), assistant("", tool_calls=[same]), new_message(role="tool", content="4", tool_call_id="c")]
    assert shape(contexts, *ask(contexts, again))[:2] == ("new-0", 1)
    other = new_tool_call(call_id="c", name="get", arguments='{"a":[3],"b":1}')
    assert ask(contexts, [user("a"), assistant("", tool_calls=[other])])[0].trajectory.id == "new-1"
    assert ask(contexts, [user("a "), assistant("", tool_calls=[same])])[0].trajectory.id == "new-2"


def test_of_equal_beginnings_the_newest_that_nobody_went_on_from_is_taken() -> None:
    contexts = remembering()
    for _ in range(3):
        ask(contexts, [user("a")], "r")
    went_on = [ask(contexts, [user("a"), assistant("r"), user("b")])[0].trajectory.id for _ in range(4)]
    assert went_on == ["new-2", "new-1", "new-0", "new-2"]


def test_calls_of_one_trajectory_at_once_get_different_steps() -> None:
    contexts = remembering()
    places = [ask(contexts, [user("a")], trajectory="t")[0] for _ in range(2)]
    assert [place.step_index for place in places] == [0, 1]


def test_a_step_shares_only_with_earlier_ones() -> None:
    contexts = remembering()
    ask(contexts, [user("a")], "r0", "t")
    early, early_prompt = ask(contexts, [user("a"), assistant("r0"), user("b"), user("c")], trajectory="t")
    ask(contexts, [user("a"), assistant("r0"), user("b")], "r2", "t")
    assert shape(contexts, early, early_prompt) == ("t", 1, None, 2)


def test_other_tenants_keys_and_agents_are_never_joined() -> None:
    contexts = remembering()
    ask(contexts, [user("a")], "r", scope=("acme", "", "agent"))
    goes_on = [user("a"), assistant("r"), user("b")]
    for scope in (("acme", "key", "agent"), ("acme", "", "other"), ("else", "", "agent")):
        assert ask(contexts, goes_on, scope=scope)[0].trajectory.id != "new-0"
    assert contexts.place("else", "new-0", None, prompt_of([])).step_index == 0


@pytest.fixture
def indices(tmp_path: Path) -> Iterator[NextIndices]:
    made = NextIndices(tmp_path)
    yield made
    made.close()


def test_after_a_restart_or_once_forgotten_a_named_trajectory_goes_on_counting(indices: NextIndices) -> None:
    """A failed call, a branch, another agent's call and a compaction leave fewer responses in the prompt than steps."""
    contexts = remembering(limit=1, indices=indices)
    ask(contexts, [user("a")], "r0", "t")
    ask(contexts, [user("a"), assistant("r0"), user("b")], trajectory="t")  # it failed
    ask(contexts, [user("a"), assistant("r0"), user("b")], "r2", "t")
    compacted = [user("summary")]
    assert (
        ask(remembering(indices=indices), compacted, trajectory="t")[0].step_index == 3
    )  # in flight when it was killed
    assert ask(remembering(indices=indices), compacted, trajectory="t")[0].step_index == 4  # made again: a gap
    ask(contexts, [user("a")], "r", "other")
    assert len(contexts) == 1
    assert ask(contexts, compacted, trajectory="t")[0].step_index == 5
    assert ask(contexts, compacted, trajectory="t", step=9)[0].step_index == 9
    assert ask(remembering(indices=indices), compacted, trajectory="t")[0].step_index == 10
    assert remembering(indices=indices).place("else", "t", None, prompt_of(compacted)).step_index == 0


def test_the_newest_step_of_a_trajectory_is_known_after_a_restart(indices: NextIndices) -> None:
    contexts = remembering(indices=indices)
    for text in ("a", "b"):
        ask(contexts, [user(text)], "r", "t")
    after = remembering(indices=indices)
    assert [after.newest("acme", "t"), after.newest("acme", "other"), after.newest("else", "t")] == [1, None, None]


def test_a_conversation_that_is_named_later_is_kept_from_then_on(indices: NextIndices) -> None:
    contexts = remembering(indices=indices)
    ask(contexts, [user("a")], "r0")
    ask(contexts, [user("a"), assistant("r0"), user("b")], "r1", "new-0")
    assert ask(remembering(indices=indices), [user("c")], trajectory="new-0")[0].step_index == 2


def test_where_nothing_was_kept_the_responses_in_the_prompt_are_counted() -> None:
    said = [user("a"), assistant("r0"), user("b"), assistant("r1"), user("c")]
    assert ask(remembering(), said, trajectory="t")[0].step_index == 2
    assert ask(remembering(), said)[0].step_index == 0  # a new trajectory
    assert ask(remembering(), said, trajectory="t", step=7)[0].step_index == 7


def test_a_response_is_gone_on_from_by_its_id() -> None:
    contexts = remembering()
    instructions = new_message(role="system", content="be good")
    ask(contexts, [instructions, user("a")], "r0", response_id="resp-0")
    before = contexts.answered("acme", "resp-0")
    assert before is not None
    place, prompt = ask(contexts, [instructions, user("b")], "r1", before=before, response_id="resp-1")
    assert shape(contexts, place, prompt) == ("new-0", 1, None, 3)
    assert [m["content"] for m in prompt.messages] == ["b"]
    place, prompt = ask(contexts, [user("c")], before=before)
    assert shape(contexts, place, prompt) == ("new-0", 2, 0, 3)
    whole = [instructions, user("a"), assistant("r0"), user("b"), assistant("r1"), user("d")]
    assert shape(contexts, *ask(contexts, whole)) == ("new-0", 3, 1, 5)
    assert contexts.answered("other", "resp-0") is None


def test_tokens_of_older_steps_are_known_by_digest() -> None:
    contexts = remembering()
    messages: list[Message] = []
    tokens: list[int] = []
    lengths = []
    for turn in range(5):
        messages.append(user(f"u{turn}"))
        tokens += [turn, turn]
        prompt = prompt_of(list(messages))
        place = contexts.place("acme", "t", None, prompt)
        contexts.remember(place, prompt, assistant(f"r{turn}"), pack([*tokens, 90 + turn]), len(tokens))
        messages.append(assistant(f"r{turn}"))
        tokens.append(90 + turn)
        lengths.append(len(tokens))
    branch = prompt_of([*messages[:2], user("other")])
    place = contexts.place("acme", "t", None, branch)
    shared = contexts.shared(place, branch, pack([*tokens[: lengths[0]], 7]))
    assert (shared.step, shared.messages, shared.tokens) == (0, 2, lengths[0])
    assert contexts.shared(place, branch, pack([5, 5, 5, 5])).tokens == 0
    again = prompt_of(messages[:1])
    assert contexts.shared(contexts.place("acme", "t", None, again), again, pack([0, 0])).tokens == 2


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), max_size=30), st.integers(1, 4))
def test_memory_is_bounded_and_nothing_of_what_is_forgotten_is_left(
    calls: list[tuple[int, int, bool]], limit: int
) -> None:
    contexts = remembering(limit, 20_000)
    for which, what, named in calls:
        place, prompt = ask(contexts, [user(f"{what}")], trajectory=f"t{which}" if named else "")
        contexts.remember(place, prompt, assistant("r"), pack(range(1000)), 500, response_id=f"id-{which}-{what}")
    assert len(contexts) <= limit
    contexts.place("acme", "the only one", None, prompt_of([]))
    for other in range(limit):
        contexts.place("acme", f"other-{other}", None, prompt_of([]))
    assert contexts.size < 1000 * limit
    assert not contexts._endings
    assert not contexts._responses


def test_one_name_used_without_end_does_not_push_out_the_others() -> None:
    contexts = remembering(limit_bytes=100_000)
    ask(contexts, [user("a")], "r", "other")
    for number in range(300):
        place, _ = ask(contexts, [user(f"{number}")], f"r{number}", "endless")
        assert place.step_index == number
        assert contexts.size < 50_000
    assert shape(contexts, *ask(contexts, [user("a"), assistant("r"), user("b")], trajectory="other"))[1:] == (
        1,
        None,
        2,
    )
    place, prompt = ask(contexts, [user("299"), assistant("r299"), user("b")], trajectory="endless")
    assert shape(contexts, place, prompt) == ("endless", 300, None, 2)


def test_a_crowd_of_equal_conversations_is_bounded() -> None:
    contexts = remembering(limit=2000)
    for _ in range(EQUAL_ENDINGS + 50):
        ask(contexts, [user("a")], "r")
    (crowd,) = contexts._endings.values()
    assert len(crowd) == EQUAL_ENDINGS
