"""Steps that several gateways counted get indices 0 to n-1, each once, with references that follow."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.jobs.governance.step_numbers import number_step
from stepstream.jobs.runtime.state import Changes, PartitionState
from stepstream.topics.events import Step, new_message, new_sampling, new_step

DAY_US = 24 * 3600 * 1_000_000
NOW_US = 20_000 * DAY_US


class EmptyState:
    def get(self, key: bytes) -> None:
        return None


@pytest.fixture
def changes() -> Changes:
    return empty()


def empty() -> Changes:
    return Changes(cast(PartitionState, EmptyState()))


def step(index: int, count: str | None, *, at_us: int = NOW_US, **fields: Any) -> Step:
    return new_step(
        event_id="",
        occurred_at_us=at_us,
        producer="",
        consent="train",
        trajectory_id=fields.pop("trajectory", "t"),
        step_index=index,
        counted_by=count,
        agent="",
        model="",
        fidelity="text",
        response=new_message(role="assistant"),
        sampling=new_sampling(),
        **fields,
    )


def number(changes: Changes, counted: Step, days: int = 7) -> Step:
    numbered = number_step(counted, changes, days)
    numbered.save(changes)
    return numbered.step


def test_two_gateways_in_turns_give_each_index_once(changes: Changes) -> None:
    turns = [step(0, "a"), step(1, "b"), step(1, "a"), step(2, "b"), step(2, "a"), step(3, "b")]
    numbered = [number(changes, turn) for turn in turns]
    assert [one["step_index"] for one in numbered] == [0, 1, 2, 3, 4, 5]
    assert {one["counted_by"] for one in numbered} == {None}


def test_references_follow_a_step_that_got_another_index(changes: Changes) -> None:
    number(changes, step(0, "a"))
    number(changes, step(0, "b"))  # becomes 1
    second = number(changes, step(1, "b", prompt_shared_messages=2))  # continues its own step 0
    assert (second["step_index"], second["prompt_shared_step"]) == (2, None)
    third = number(changes, step(1, "a", prompt_shared_messages=2))  # continues a's step 0, which kept its index
    assert (third["step_index"], third["prompt_shared_step"]) == (3, 0)
    later = number(changes, step(4, "b", prompt_shared_messages=4, prompt_shared_step=1))
    assert (later["step_index"], later["prompt_shared_step"]) == (4, 2)
    alone = number(changes, step(5, "b"))
    assert alone["prompt_shared_step"] is None


def test_an_index_that_the_producer_fixed_never_changes(changes: Changes) -> None:
    assert [number(changes, step(1, None))["step_index"] for _ in range(2)] == [1, 1]
    assert number(changes, step(1, "a"))["step_index"] == 2
    assert number(changes, step(1, "a", trajectory="other"))["step_index"] == 1


def test_a_trajectory_goes_on_the_next_day(changes: Changes) -> None:
    number(changes, step(0, "a"))
    number(changes, step(0, "b"))
    next_day = number(changes, step(1, "b", at_us=NOW_US + DAY_US, prompt_shared_messages=2))
    assert (next_day["step_index"], next_day["prompt_shared_step"]) == (2, None)
    assert number(changes, step(0, "a", at_us=NOW_US + 9 * DAY_US))["step_index"] == 0  # its state is deleted by then


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=40))
def test_gateways_that_count_alone_never_share_an_index(calls: list[tuple[str, int]]) -> None:
    changes, following = empty(), dict.fromkeys("abc", 0)
    indices = []
    for name, skipped in calls:
        index = following[name] + skipped
        following[name] = index + 1
        indices.append(number(changes, step(index, name))["step_index"])
    assert len(set(indices)) == len(indices)


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[str, int, int | None]]:
    """Steps of calls at once, in the order of the log: count, index and index of the step that it continues.

    Each count is 0 to n-1, or continues the whole of count `a`. A step follows the one that it continues.
    """
    pending: list[tuple[str, int, int | None]] = []
    for name in "abc":
        first = draw(st.integers(0, 1)) if name != "a" else 0
        pending.append((name, first, None))
        count = draw(st.integers(0, 4))
        pending += [(name, i, draw(st.none() | st.integers(first, i - 1))) for i in range(first + 1, first + 1 + count)]
    log: list[tuple[str, int, int | None]] = []
    while pending:
        known = {(name, index) for name, index, _ in log}
        ready = [each for each in pending if each[2] is None or (each[0], each[2]) in known]
        log.append(draw(st.sampled_from(ready)))
        pending.remove(log[-1])
    return log


@given(logs())
def test_calls_at_once_have_each_index_once_and_follow_what_they_continue(
    log: list[tuple[str, int, int | None]],
) -> None:
    changes, final = empty(), dict[tuple[str, int], int]()
    for name, index, before in log:
        shared = {} if before is None else {"prompt_shared_messages": 1, "prompt_shared_step": before}
        result = number(changes, step(index, name, **shared))
        final[name, index] = result["step_index"]
        if before is not None:
            reference = result["prompt_shared_step"]
            found = result["step_index"] - 1 if reference is None else reference
            assert found == final[name, before] < result["step_index"]
    assert sorted(final.values()) == list(range(len(log)))
