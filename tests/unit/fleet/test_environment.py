"""Test the task environments: determinism, splits, scores, and arbitrary text from a model."""

import hashlib
import json
import random
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from required_tools import import_package

from stepstream.services.fleet.environment import (
    Environment,
    UnknownEnvironmentError,
    UnknownTaskError,
    demonstrations,
    load_environment,
)
from stepstream.services.fleet.lookup import Lookup
from stepstream.services.fleet.reasoning_gym import ChainSum

FIRST_TASKS = {
    "lookup": ("lookup/train/75869103808049 q:g-b", "a6b56a4924adce51"),
    "trail": ("trail/train/206474131862752 q:r", "c345b3bf2f8a1f45"),
    "chain_sum": ("chain_sum/train/1495025726 q:1+3+6", "bc6cfe9ad02820cf"),
}
"""The first of the tasks of seed 7, and a digest of the first fifty."""


@pytest.fixture(
    scope="module",
    params=[
        "stepstream.services.fleet.lookup:Lookup",
        "stepstream.services.fleet.trail:Trail",
        pytest.param(
            "stepstream.services.fleet.reasoning_gym:ChainSum",
            marks=pytest.mark.filterwarnings("ignore::DeprecationWarning"),
        ),
    ],
)
def environment(request: pytest.FixtureRequest) -> type[Environment]:
    if "reasoning_gym" in request.param:
        import_package("reasoning_gym")
    return load_environment(request.param)


def outcome(attempt: Environment, messages: list[dict[str, Any]]) -> float:
    """Replays the assistant's side of a conversation against a fresh attempt."""
    for message, following in zip(messages, [*messages[1:], None], strict=True):
        for call in message.get("tool_calls") or []:
            function = call["function"]
            assert following is not None
            assert attempt.call(function["name"], function["arguments"]["input"]).text == following["content"]
    return attempt.answer(messages[-1]["content"])


def test_tasks_depend_only_on_the_seed(environment: type[Environment]) -> None:
    first = list(islice(environment.tasks(1, "train"), 20))
    assert first == list(islice(environment.tasks(1, "train"), 20))
    assert first != list(islice(environment.tasks(2, "train"), 20))
    assert environment(first[0]).first_message == environment(first[0]).first_message


def test_the_tasks_of_a_seed_never_change(environment: type[Environment]) -> None:
    """So runs can be compared with older ones, and repeated."""
    ids = list(islice(environment.tasks(7, "train"), 50))
    text = "\n".join(f"{task} {environment(task).first_message}" for task in ids)
    assert (text.partition("\n")[0], hashlib.sha256(text.encode()).hexdigest()[:16]) == FIRST_TASKS[environment.name]


def test_a_perfect_demonstration_succeeds_and_a_random_one_mostly_fails(environment: type[Environment]) -> None:
    rng = random.Random(0)
    tasks = list(islice(environment.tasks(3, "eval"), 100))
    assert all(outcome(environment(task), environment(task).demonstration(rng, 0.0)) == 1.0 for task in tasks)
    noisy = [outcome(environment(task), environment(task).demonstration(rng, 1.0)) for task in tasks]
    assert sum(noisy) < 30


def test_a_demonstration_fits_into_the_steps(environment: type[Environment]) -> None:
    conversation = next(demonstrations(environment, seed=1, noise=0.5))
    replies = [message for message in conversation if message["role"] == "assistant"]
    assert 2 <= len(replies) <= environment.max_steps


def test_demonstrations_depend_only_on_the_seed(environment: type[Environment]) -> None:
    first = list(islice(demonstrations(environment, 5, 0.3), 5))
    assert json.dumps(first) == json.dumps(list(islice(demonstrations(environment, 5, 0.3), 5)))


@pytest.mark.parametrize("task_id", ["", "lookup", "lookup/train/x", "lookup/train/1/2", "chess/train/1"])
def test_the_error_names_an_unknown_task(environment: type[Environment], task_id: str) -> None:
    with pytest.raises(UnknownTaskError, match=task_id or "''"):
        environment(task_id)


def test_a_task_of_the_other_split_is_rejected(environment: type[Environment]) -> None:
    name, _, number = next(environment.tasks(1, "eval")).split("/")
    with pytest.raises(UnknownTaskError, match="other split"):
        environment(f"{name}/train/{number}")


def test_the_splits_share_no_question() -> None:
    """A lookup's solution depends on the question and the two values."""

    def solutions(split: Any) -> set[tuple[str, str, str]]:
        solved = set()
        for task in islice(Lookup.tasks(7, split), 3000):
            attempt = Lookup(task)
            question = attempt.first_message
            solved.add((question, attempt.call("get", question[2]).text, attempt.call("get", question[4]).text))
        return solved

    train, held_out = solutions("train"), solutions("eval")
    assert len(held_out) > 1000
    assert not train & held_out


@given(tool=st.sampled_from(["get", "calc", "other", ""]), argument=st.text(), reply=st.text())
def test_arbitrary_text_from_a_model_is_a_lookup_error_or_a_score(tool: str, argument: str, reply: str) -> None:
    attempt = Lookup(next(Lookup.tasks(0, "train")))
    result = attempt.call(tool, argument)
    assert result.error == (result.text == "?")
    assert attempt.answer(reply) in (0.0, 1.0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_chain_sum_accepts_only_the_right_number() -> None:
    import_package("reasoning_gym")
    attempt = ChainSum(next(ChainSum.tasks(0, "train")))
    right = int(attempt.call("calc", attempt.first_message[2:]).text)
    verdicts = [attempt.answer(f"ans({number})") for number in range(right - 3, right + 4)]
    assert verdicts == [0, 0, 0, 1, 0, 0, 0]
    assert [attempt.answer(text) for text in ("", f"{right}", f"ans({right}", "ans()")] == [0, 0, 0, 0]


@pytest.mark.parametrize("path", ["nowhere:Lookup", "stepstream.services.fleet.lookup:Nothing", "json:loads", "lookup"])
def test_the_error_names_an_environment_that_cannot_be_loaded(path: str) -> None:
    with pytest.raises(UnknownEnvironmentError, match=path):
        load_environment(path)
