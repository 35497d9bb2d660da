"""Test that tasks whose groups give no gradient are drawn less often, but always again."""

from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.fleet.curriculum import Curriculum, skips


def attempted(curriculum: Curriculum, teaches: dict[str, bool], groups: int) -> list[str]:
    """The tasks of so many groups, of which the learner decides each before the next is drawn."""
    tasks, drawn = cycle(teaches), []
    for number in range(groups):
        task = curriculum.draw(tasks)
        drawn.append(task)
        curriculum.start_group(str(number), task)
        curriculum.add_decision(str(number), "" if teaches[task] else "no_variance")
    return drawn


def test_a_task_without_signal_is_attempted_every_second_then_every_fourth_draw() -> None:
    drawn = attempted(Curriculum(4), {"useful": True, "solved": False}, 20)
    between = [len(run) for run in "".join(task[0] for task in drawn).split("s")]
    assert between == [1, 2, 4, 4, 4, 0]


def test_most_groups_give_a_gradient_although_most_tasks_do_not() -> None:
    tasks = {"useful": True, "solved": False, "beyond": False, "unsound": False}
    always, spaced = (attempted(Curriculum(spacing), tasks, 400) for spacing in (1, 16))
    assert always.count("useful") == 100
    assert spaced.count("useful") > 320


def test_one_group_with_a_gradient_ends_the_spacing() -> None:
    curriculum, tasks = Curriculum(8), {"a": False, "b": True}
    attempted(curriculum, tasks, 20)
    curriculum.start_group("g", "a")
    curriculum.add_decision("g", "")
    before = curriculum.skipped
    attempted(curriculum, {"a": True, "b": True}, 10)
    assert curriculum.skipped == before


@pytest.mark.parametrize("reason", ["stale", "group_incomplete", "consent", "tenant_share"])
def test_reasons_unrelated_to_the_task_change_nothing(reason: str) -> None:
    curriculum = Curriculum(8)
    curriculum.start_group("g", "a")
    curriculum.add_decision("g", reason)
    attempted(curriculum, {"a": True}, 1)
    assert curriculum.skipped == 0


def test_a_group_counts_once() -> None:
    curriculum = Curriculum(8)
    curriculum.start_group("g", "a")
    for _ in range(8):  # a decision for each attempt
        curriculum.add_decision("g", "no_variance")
    curriculum.add_decision("unknown", "no_variance")
    assert [curriculum.draw(cycle("ab")) for _ in range(2)] == ["b", "a"]


@given(st.integers(0, 1000), st.integers(1, 1024))
def test_spacing_grows_and_is_bounded(groups_without_signal: int, spacing: int) -> None:
    assert skips(0, spacing) == 0
    assert skips(groups_without_signal, spacing) <= skips(groups_without_signal + 1, spacing) < spacing
    assert skips(groups_without_signal, 1) == 0


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.integers(1, 16))
def test_every_task_is_drawn_again(teaches: list[bool], spacing: int) -> None:
    tasks = {str(number): teach for number, teach in enumerate(teaches)}
    drawn = attempted(Curriculum(spacing), tasks, 2 * spacing * len(tasks) + 1)
    assert set(drawn) == set(tasks)
