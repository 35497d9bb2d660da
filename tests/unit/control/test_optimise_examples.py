"""Test the parts of a view, the headroom test, and the search for examples."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_attempts import PARENT, Model, attempt, coded_view, copies_similar_example

from stepstream.services.control.optimise.examples import ExamplesSearch, candidates, choose_examples
from stepstream.services.control.optimise.headroom import measure
from stepstream.services.control.optimise.records import (
    Budget,
    BudgetSpent,
    CannotSearch,
    Meter,
    View,
    split,
)
from stepstream.topics.events import Harness

BUDGET = Budget(calls=400, tokens=1_000_000)


@given(st.lists(st.integers(0, 30), max_size=60), st.randoms(use_true_random=False))
def test_no_task_is_in_two_parts_and_the_order_of_the_view_does_not_matter(
    tasks: list[int], chance: random.Random
) -> None:
    attempts = [attempt(i, f"question {i}", "yes", task_id=f"task/{task}") for i, task in enumerate(tasks)]
    parts = split(View("t", "a", tuple(attempts)))
    of_part = [{one.task for one in part} for part in (parts.sources, parts.choosing, parts.confirming)]
    assert sum(map(len, of_part)) == len(set(tasks))
    assert len(parts.sources) + len(parts.choosing) + len(parts.confirming) == len(tasks)
    shuffled = chance.sample(attempts, len(attempts))
    assert split(View("t", "a", tuple(shuffled))) == parts


def test_the_nearest_examples_are_proposed_with_their_confirmed_gain() -> None:
    view = coded_view()
    model = Model(view, copies_similar_example)
    [proposal] = ExamplesSearch(model).propose(view, PARENT, BUDGET)
    harness = proposal.harness
    assert harness["examples_shown"] in (2, 4)
    assert proposal.headroom.value is not None
    assert proposal.headroom.value > 0.9
    assert (
        proposal.description == f"the {harness['examples_shown']} nearest of {len(harness['examples'])} past successes"
    )
    parts = split(view)
    assert {one["trajectory_id"] for one in harness["examples"]} <= {one.trajectory_id for one in parts.sources}
    confirmed_on = {one.trajectory_id for asked, one in model.asked if asked["version"] == harness["version"]}
    assert confirmed_on & {one.trajectory_id for one in parts.confirming}
    # The candidates that lost were never asked what confirms.
    losers = {one.trajectory_id for asked, one in model.asked if asked["version"] not in ("", harness["version"])}
    assert not losers & {one.trajectory_id for one in parts.confirming}


def test_chance_is_proposed_as_seldom_as_the_interval_allows() -> None:
    view, chance = coded_view(), random.Random(3)
    guesses = Model(view, lambda request: f"code-{chance.randrange(5)}")
    assert sum(bool(ExamplesSearch(guesses).propose(view, PARENT, BUDGET)) for _ in range(40)) <= 4  # 1 is expected


def test_a_solved_task_has_no_headroom() -> None:
    view = coded_view()
    solved = Model(view, lambda request: f"code-{'abcde'.index(request['messages'][-1]['content'].split()[5][0])}")
    assert not ExamplesSearch(solved).propose(view, PARENT, BUDGET)


def test_examples_are_short_successes_of_every_family_without_system_prompt() -> None:
    attempts = [attempt(i, f"question {i}", "yes " * (i + 1), success=i % 2 == 0) for i in range(60)]
    attempts.append(attempt(99, "long question", "x" * 5000))
    attempts.append(attempt(200, "question 0", "yes"))  # another answer to the same question
    examples = choose_examples(attempts)
    names = [one["trajectory_id"] for one in examples]
    assert "trajectory-99" not in names
    assert all(int(str(name).removeprefix("trajectory-")) % 2 == 0 for name in names)
    requests = [one["messages"][0]["content"] for one in examples]
    assert len(set(requests)) == len(requests) == 30
    assert {message["role"] for one in examples for message in one["messages"]} == {"user", "assistant"}
    assert {int(str(name).removeprefix("trajectory-")) % 3 for name in names[:3]} == {0, 1, 2}


def test_candidates_keep_the_rest_of_the_parent() -> None:
    view = coded_view()
    parent: Harness = {**PARENT, "version": "p", "instructions": "Be brief.", "model": "other"}
    for harness in candidates(split(view), parent):
        assert (harness["instructions"], harness["model"], harness["parents"]) == ("Be brief.", "other", ["p"])
        assert len(harness["examples"]) <= 60


@pytest.mark.parametrize(
    ("view", "budget", "reason"),
    [
        (View("t", "a", ()), BUDGET, "no recorded success"),
        (coded_view(success=lambda number: False), BUDGET, "no recorded success"),
        (coded_view(20), BUDGET, "10 are needed"),
        (coded_view(), Budget(20, 10), "raise the budget"),
        (coded_view(), Budget(400, 0), "raise the budget"),
    ],
)
def test_a_view_or_budget_that_is_too_small_is_refused(view: View, budget: Budget, reason: str) -> None:
    with pytest.raises(CannotSearch, match=reason):
        ExamplesSearch(Model(view, lambda request: "no")).propose(view, PARENT, budget)


@settings(max_examples=15)
@given(st.integers(60, 600))
def test_a_search_never_exceeds_its_calls(calls: int) -> None:
    view = coded_view()
    model = Model(view, copies_similar_example)
    ExamplesSearch(model).propose(view, PARENT, Budget(calls, 1_000_000))
    assert len(model.asked) <= calls
    meter = Meter(Budget(2, 10))
    meter.take(2)
    with pytest.raises(BudgetSpent, match="2 of 2 calls"):
        meter.take(1)


def test_a_search_after_a_crash_has_the_rest_of_the_calls_and_reports_each_before_it_is_made() -> None:
    view, reported = coded_view(), []
    model = Model(view, copies_similar_example)

    def report(calls: int, _tokens: int) -> None:
        reported.append(calls)
        assert len(model.asked) < calls - 300

    ExamplesSearch(model, Meter(Budget(500, 1_000_000), 300, 0, report)).propose(view, PARENT, Budget(1, 1))
    assert len(model.asked) <= 200
    assert reported[-1] == 300 + len(model.asked)


def test_prompts_without_a_score_are_left_out_and_counted() -> None:
    view = coded_view(success=lambda number: number % 4 != 0)
    parts = split(view)
    model = Model(view, copies_similar_example)
    headroom = measure(model, PARENT, candidates(parts, PARENT), parts, Meter(BUDGET))
    unscored = sum(one.task not in {each.task for each in view.attempts if each.success} for one in parts.confirming)
    assert headroom.gain.left_out == unscored > 0
    assert headroom.gain.n == len(parts.confirming) - unscored
