"""Test the first difference of two attempts."""

from typing import Any

import pytest

from stepstream.services.console.trajectories.compare import Difference, first_difference, is_whole


def step(content: str = "", *, seen: str = "hello", reasoning: str | None = None, **calls: str) -> dict[str, Any]:
    tool_calls = [{"call_id": "x", "name": name, "arguments": text} for name, text in calls.items()]
    response = {"role": "assistant", "content": content, "reasoning": reasoning, "tool_calls": tool_calls}
    return {"messages": [{"role": "user", "content": seen, "tool_calls": []}], "response": response}


def test_equal_attempts_have_no_difference() -> None:
    assert first_difference([], []) is None
    assert first_difference([step("a"), step("b")], [step("a"), step("b")]) is None


@pytest.mark.parametrize(
    ("left", "right", "difference"),
    [
        ([step("a")], [step("a"), step("b")], Difference(1, "end")),
        ([step("abc")], [step("abd")], Difference(0, "content", 0, 2)),
        ([step("abc")], [step("ab")], Difference(0, "content", 0, 2)),
        ([step(), step(seen="x")], [step(), step(seen="y")], Difference(1, "messages", 0, len("user: "))),
        ([step("a", reasoning="q")], [step("b")], Difference(0, "reasoning", 0, 0)),
        ([step(get="{1}")], [step(get="{2}")], Difference(0, "tool_calls", 0, len("get {"))),
        ([step(get="{}")], [step(get="{}", put="{}")], Difference(0, "tool_calls", 1, 0)),
        ([step("a", seen="x")], [step("b", seen="y")], Difference(0, "messages", 0, len("user: "))),
    ],
)
def test_the_first_difference_names_step_part_and_character(left: Any, right: Any, difference: Difference) -> None:
    assert first_difference(left, right) == difference
    assert first_difference(right, left) == difference


def test_ids_of_calls_are_no_difference() -> None:
    other = step(get="{}")
    other["response"]["tool_calls"][0]["call_id"] = "y"
    assert first_difference([step(get="{}")], [other]) is None


def test_texts_that_were_cut_differ_by_their_whole_lengths() -> None:
    """The tables' texts are cut for the page: their beginnings may be equal."""
    left, right, same = step("abc", get="{1"), step("abc", get="{1"), step("abc", get="{1")
    left["response"]["lengths"], right["response"]["lengths"] = {"content": 30_000}, {"content": 40_000}
    assert first_difference([left], [right]) == Difference(0, "content", 0, 3)
    assert first_difference([left], [same]) == Difference(0, "content", 0, 3)
    same["response"]["lengths"] = {"content": 30_000}
    assert first_difference([left], [same]) is None
    same["response"]["tool_calls"][0]["lengths"] = {"arguments": 30_000}
    assert first_difference([left], [same]) == Difference(0, "tool_calls", 0, len("get {1"))


def test_steps_are_whole_unless_a_text_was_cut() -> None:
    assert is_whole([]) is is_whole([step("a"), step("b", get="{}")]) is True
    for place in ("message", "response", "call"):
        one = step("a", get="{}")
        of = {"message": one["messages"][0], "response": one["response"], "call": one["response"]["tool_calls"][0]}
        of[place]["lengths"] = {"content": 30_000}
        assert not is_whole([step("a"), one]), place
