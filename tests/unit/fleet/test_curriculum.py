"""Tasks whose groups taught nothing are drawn less often, and never given up."""

from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.fleet.curriculum import Curriculum, passes


def attempted(curriculum: Curriculum, teaches: dict[str, bool], groups: int) -> list[str]:
    """The tasks of so many groups, of which the learner decides each before the next is drawn."""
    tasks, drawn = cycle(teaches), []
    for number in range(groups):
        task = curriculum.draw(tasks)
        drawn.append(task)
        curriculum.started(str(number), task)
        curriculum.decided(str(number), "" if teaches[task] else "no_variance")
    return drawn


def test_a_task_that_teaches_nothing_comes_every_second_then_every_fourth_time() -> None:
    drawn = attempted(Curriculum(4), {"useful": True, "solved": False}, 20)
    between = [len(run) for run in "".join(task[0] for task in drawn).split("s")]
    assert between == [1, 2, 4, 4, 4, 0]


def test_most_groups_teach_although_most_tasks_do_not() -> None:
    tasks = {"useful": True, "solved": False, "beyond": False, "unsound": False}
    always, spaced = (attempted(Curriculum(spacing), tasks, 400) for spacing in (1, 16))
    assert always.count("useful") == 100
    assert spaced.count("useful") > 320


def test_one_group_that_teaches_puts_a_task_back() -> None:
    curriculum, tasks = Curriculum(8), {"a": False, "b": True}
    attempted(curriculum, tasks, 20)
    curriculum.started("g", "a")
    curriculum.decided("g", "")
    before = curriculum.passed_over
    attempted(curriculum, {"a": True, "b": True}, 10)
    assert curriculum.passed_over == before


@pytest.mark.parametrize("reason", ["stale", "group_incomplete", "consent", "tenant_share"])
def test_what_tells_nothing_of_the_task_changes_nothing(reason: str) -> None:
    curriculum = Curriculum(8)
    curriculum.started("g", "a")
    curriculum.decided("g", reason)
    attempted(curriculum, {"a": True}, 1)
    assert curriculum.passed_over == 0


def test_a_group_counts_once() -> None:
    curriculum = Curriculum(8)
    curriculum.started("g", "a")
    for _ in range(8):  # a decision for each attempt
        curriculum.decided("g", "no_variance")
    curriculum.decided("unheard", "no_variance")
    assert [curriculum.draw(cycle("ab")) for _ in range(2)] == ["b", "a"]


@given(st.integers(0, 1000), st.integers(1, 1024))
def test_spacing_grows_and_is_bounded(fruitless: int, spacing: int) -> None:
    assert passes(0, spacing) == 0
    assert passes(fruitless, spacing) <= passes(fruitless + 1, spacing) < spacing
    assert passes(fruitless, 1) == 0


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.integers(1, 16))
def test_no_task_is_ever_given_up(teaches: list[bool], spacing: int) -> None:
    tasks = {str(number): teach for number, teach in enumerate(teaches)}
    drawn = attempted(Curriculum(spacing), tasks, 2 * spacing * len(tasks) + 1)
    assert set(drawn) == set(tasks)
