"""Check that the answer for any attempts with equal rewards agrees with the rule's answer for actual ones."""

from dataclasses import replace
from typing import get_args

import pytest
from credit_cases import LOSS_OF, four_attempts, with_critic_values
from labelled_records import attempt, labelled

from stepstream.config import LearnerSettings
from stepstream.config.learner import TOKEN_REWARD_RULES, UNGROUPED_RULES
from stepstream.learner.advantages import Trajectory
from stepstream.learner.advantages.from_config import rule_of
from stepstream.learner.data.learning_signal import learning_signal_of, learns_from_equal_rewards, needs_group

NAMES = get_args(LearnerSettings.model_fields["advantage"].annotation)


def how_of(name: str) -> LearnerSettings:
    return LearnerSettings.model_validate({"preset": "tiny", "advantage": name, **LOSS_OF.get(name, {})})


def paid_alike() -> list[Trajectory]:
    """Different steps with different rewards, and one outcome."""
    return [replace(with_critic_values(each), outcome=0.5) for each in four_attempts()]


@pytest.mark.parametrize("name", NAMES)
def test_equal_rewards_yield_a_gradient_for_the_same_rules_with_any_steps(name: str) -> None:
    assert learns_from_equal_rewards(how_of(name)) == (not rule_of(how_of(name)).nothing_to_learn(paid_alike()))


@pytest.mark.parametrize("name", NAMES)
def test_rules_without_groups_learn_from_a_single_attempt(name: str) -> None:
    assert needs_group(how_of(name)) == (name not in UNGROUPED_RULES)
    assert needs_group(how_of(name)) == bool(rule_of(how_of(name)).nothing_to_learn(paid_alike()[:1]))


@pytest.mark.parametrize("name", NAMES)
def test_only_rules_that_sum_token_rewards_accept_a_reward_penalty(name: str) -> None:
    assert rule_of(how_of(name)).pays_tokens == (name in TOKEN_REWARD_RULES)


@pytest.mark.parametrize(("objective", "compares"), [("dpo", True), ("kto", False), ("sft", False)])
def test_preferences_compare_and_judgements_do_not(objective: str, compares: bool) -> None:
    config = LearnerSettings.model_validate({"preset": "tiny", "objective": objective})
    assert needs_group(config) is compares
    assert learns_from_equal_rewards(config) is not compares


@pytest.mark.parametrize("name", NAMES)
def test_equal_rewards_with_different_returns_yield_a_gradient_if_steps_are_compared(name: str) -> None:
    early, late = (labelled("g", number, 1.0) for number in range(2))
    early["steps"][0]["reward"], early["steps"][1]["reward"] = 1.0, 0.0
    for record in (early, late):
        record["sequences"][0]["token_ids"][:4] = [5, 6, 7, 8]  # they begin in the same state
    config = how_of(name)
    attempts = [attempt(early), attempt(late)]
    assert (learning_signal_of(config)(attempts) == "") == learns_from_equal_rewards(config)
    assert learns_from_equal_rewards(config) == (name not in OUTCOME_RULES)


OUTCOME_RULES = {"rloo", "grpo", "dr_grpo", "reinforce_pp_baseline", "stratified", "salt", "tree_grpo"}
