"""What a rule says of any attempts that were paid the same is what it says of these."""

from dataclasses import replace
from typing import get_args

import pytest
from credit_cases import LOSS_OF, four_attempts, judged

from stepstream.config import LearnerSettings
from stepstream.config.learner import JUDGE_ALONE, PAYS_TOKENS
from stepstream.learner.advantages import Trajectory
from stepstream.learner.advantages.from_config import rule_of
from stepstream.learner.data.learning_signal import equal_rewards_teach, needs_group

NAMES = get_args(LearnerSettings.model_fields["advantage"].annotation)


def how_of(name: str) -> LearnerSettings:
    return LearnerSettings.model_validate({"advantage": name, **LOSS_OF.get(name, {})})


def paid_alike() -> list[Trajectory]:
    """Different steps with different rewards, and one outcome."""
    return [replace(judged(each), outcome=0.5) for each in four_attempts()]


@pytest.mark.parametrize("name", NAMES)
def test_equal_rewards_teach_whom_they_teach_whatever_the_steps(name: str) -> None:
    assert equal_rewards_teach(how_of(name)) == (not rule_of(how_of(name)).nothing_to_learn(paid_alike()))


@pytest.mark.parametrize("name", NAMES)
def test_those_that_need_no_group_learn_from_an_attempt_by_itself(name: str) -> None:
    assert needs_group(how_of(name)) == (name not in JUDGE_ALONE)
    assert needs_group(how_of(name)) == bool(rule_of(how_of(name)).nothing_to_learn(paid_alike()[:1]))


@pytest.mark.parametrize("name", NAMES)
def test_who_rewards_tokens_may_pay_for_nearness_to_the_root(name: str) -> None:
    assert rule_of(how_of(name)).pays_tokens == (name in PAYS_TOKENS)


@pytest.mark.parametrize(("objective", "compares"), [("dpo", True), ("kto", False), ("sft", False)])
def test_preferences_compare_and_judgements_do_not(objective: str, compares: bool) -> None:
    config = LearnerSettings.model_validate({"objective": objective})
    assert needs_group(config) is compares
    assert equal_rewards_teach(config) is not compares
