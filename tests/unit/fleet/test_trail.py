"""Test the trail environment: one wrong step is allowed, two are not, and states are the same in every attempt."""

import random
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from stepstream.config import load
from stepstream.services.fleet.environment import load_environment
from stepstream.services.fleet.trail import LENGTH, Trail

TASK = next(Trail.tasks(0, "train"))


def follow(attempt: Trail, wrong: int) -> tuple[int, float]:
    """Return the number of replies and the score of an attempt that begins with `wrong` wrong steps."""
    clue = attempt.first_message[2:]
    steps = 0
    for _ in range(wrong):
        assert attempt.call("open", "?").text == f"?{clue}"
        steps += 1
    while not clue.startswith("!"):
        clue = attempt.call("dial" if clue.isdigit() else "open", clue).text
        steps += 1
    return steps + 1, attempt.answer(f"ans({clue[1:]})")


def test_a_trail_takes_twelve_replies_and_allows_one_wrong_step() -> None:
    for task in islice(Trail.tasks(1, "eval"), 20):
        assert follow(Trail(task), wrong=0) == (LENGTH + 1, 1.0)
    assert follow(Trail(TASK), wrong=1)[0] == Trail.max_steps
    assert follow(Trail(TASK), wrong=2)[0] > Trail.max_steps


def test_a_trail_has_no_clue_twice() -> None:
    """So a tool's answer identifies the state."""
    for task in islice(Trail.tasks(2, "train"), 50):
        attempt = Trail(task)
        clues = [attempt.first_message[2:]]
        while not clues[-1].startswith("!"):
            clues.append(attempt.call("dial" if clues[-1].isdigit() else "open", clues[-1]).text)
        assert len(set(clues)) == len(clues) == LENGTH + 1


def test_a_later_clue_does_not_work_before_its_turn() -> None:
    first, ahead = Trail(TASK), Trail(TASK)
    second = first.call("dial" if first.first_message[2:].isdigit() else "open", first.first_message[2:]).text
    assert ahead.call("dial" if second.isdigit() else "open", second).error


def test_a_demonstration_that_runs_out_of_steps_ends_lost() -> None:
    conversation = Trail(TASK).demonstration(random.Random(0), 1.0)
    assert conversation[-1]["content"] == "lost"
    assert sum(message["role"] == "assistant" for message in conversation) == Trail.max_steps


@given(tool=st.sampled_from(["open", "dial", "other", ""]), argument=st.text(), reply=st.text())
def test_arbitrary_text_from_a_model_is_a_trail_error_or_a_score(tool: str, argument: str, reply: str) -> None:
    attempt = Trail(TASK)
    result = attempt.call(tool, argument)
    assert result.error == result.text.startswith("?")
    assert attempt.answer(reply) in (0.0, 1.0)


def test_the_profile_trail_configures_the_trail() -> None:
    settings = load(environment={"STEPSTREAM_CONFIG": "trail"})
    assert load_environment(settings.fleet.environment) is Trail
    assert settings.fleet.group_size == settings.learner.group_size
