"""Test that equal outcomes are equal rewards only if the reward has no other component."""

from typing import Any

import pytest

from stepstream.jobs.rewards.spec import RewardSpec, parse_spec
from stepstream.services.fleet.outcome_reward import OutcomeReward, pays_outcome_only

OUTCOME = """
[[component]]
name = "outcome"
feedback = "outcome"
outcome = true
"""
SLOW = """
[[component]]
name = "slow"
builtin = "seconds"
weight = -0.01
"""


def specification(text: str, version: int = 1) -> dict[str, Any]:
    return {"name": "s", "version": version, "document": text}


@pytest.mark.parametrize(
    ("text", "outcome_only"),
    [
        ("", True),
        (OUTCOME, True),
        (OUTCOME + 'source = "environment"\nweight = 2.0', True),
        (OUTCOME + 'source = "verifier"', False),
        (OUTCOME + SLOW, False),
        (OUTCOME + SLOW + "shadow = true", True),
        ("reward_bounds = [-1.0, 1.0]\ncap_malformed = true" + OUTCOME, False),
        (OUTCOME + '[[component]]\nname = "quality"\nfeedback = "quality"', False),
    ],
)
def test_a_specification_pays_the_outcome_only_if_nothing_else_is_paid(text: str, outcome_only: bool) -> None:
    assert pays_outcome_only(parse_spec(text)) is outcome_only


def test_the_closest_matching_specification_decides() -> None:
    reward = OutcomeReward("shop", "helper", RewardSpec())
    assert reward.outcome_only
    assert reward.add("other", specification('name = "other"\nenvironments = ["desk"]' + OUTCOME + SLOW))
    assert not reward.add("s", specification('name = "s"\nenvironments = ["sh*"]' + OUTCOME + SLOW))
    assert reward.add("closer", specification('name = "closer"\nenvironments = ["shop"]' + OUTCOME))
    assert not reward.add("closer", None)
    assert reward.add("s", specification('name = "s"\nenvironments = []' + OUTCOME + SLOW, version=2))


def test_an_unreadable_specification_may_pay_for_anything() -> None:
    reward = OutcomeReward("shop", "helper", RewardSpec())
    assert not reward.add("s", specification("[[component]]\nname = 'from a later version'"))
    assert reward.add("s", specification(OUTCOME, version=2))
    assert not reward.add_unreadable("s")
    assert not OutcomeReward("shop", "helper", None).outcome_only
