"""Test the weights of task families and the alarms for collapse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.analytics.success import Attempts
from stepstream.services.control.optimise.task_mix import FLOOR, learnability, task_mix

TASKS = st.lists(st.tuples(st.integers(0, 16), st.integers(0, 16)).map(lambda n: Attempts(sum(n), n[0])), max_size=6)


@given(st.dictionaries(st.text(max_size=3), TASKS, min_size=1, max_size=12))
def test_weights_are_a_distribution_with_a_floor(families: dict[str, list[Attempts]]) -> None:
    mix = task_mix(families, {})
    assert sum(mix.weights.values()) == pytest.approx(1)
    assert mix.weights.keys() == families.keys()
    assert min(mix.weights.values()) >= FLOOR / len(families) - 1e-12
    assert 0 < mix.effective_share <= 1 + 1e-12
    assert all(0 < score <= 0.25 for score in mix.learnability.values())
    by_score = sorted(families, key=lambda name: mix.learnability[name])
    weights = [mix.weights[name] for name in by_score]
    assert weights == sorted(weights)


def test_the_edge_of_ability_gets_most_and_the_untried_more_than_the_solved() -> None:
    mix = task_mix({"edge": [Attempts(8, 4)], "solved": [Attempts(8, 8)], "hard": [Attempts(8, 0)], "new": []}, {})
    assert mix.weights["edge"] > mix.weights["new"] > mix.weights["solved"] == pytest.approx(mix.weights["hard"])
    assert mix.learnability["new"] == 0.125
    assert mix.learnability["edge"] == pytest.approx(4.5 * 4.5 / (9 * 10))
    assert not mix.alarms


def test_single_attempts_are_pooled() -> None:
    solved_once = [Attempts(1, 1)] * 100
    assert learnability(solved_once) == pytest.approx(100.5 * 0.5 / (101 * 102))
    assert learnability([Attempts(1, 1), Attempts(1, 0)] * 50) == pytest.approx(50.5**2 / (101 * 102))


@pytest.mark.parametrize(
    ("families", "covered", "alarm"),
    [
        ({"a": [Attempts(8, 8)] * 60, "b": [Attempts(8, 0)] * 60}, {}, "0 of 120 tasks vary in outcome"),
        ({str(i): [Attempts(8, 4)] for i in range(10)}, {"0": 99, "1": 1}, "sampling has collapsed"),
    ],
)
def test_collapse_is_an_alarm(families: dict[str, list[Attempts]], covered: dict[str, int], alarm: str) -> None:
    assert [one for one in task_mix(families, covered).alarms if alarm in one]


def test_weights_that_concentrate_are_an_alarm() -> None:
    families = {"edge": [Attempts(8, 4)]} | {str(i): [Attempts(1000, 1000)] for i in range(19)}
    assert "worth" in task_mix(families, {}, floor=0.0).alarms[0]
    assert not task_mix(families, {}, floor=0.5).alarms


@pytest.mark.parametrize(("families", "floor"), [({}, 0.2), ({"a": []}, 1.1)])
def test_impossible_arguments_are_refused(families: dict[str, list[Attempts]], floor: float) -> None:
    with pytest.raises(ValueError, match="floor"):
        task_mix(families, {}, floor=floor)
