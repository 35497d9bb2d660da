"""Equal outcomes are equal rewards only where the reward is made of nothing else."""

from typing import Any

import pytest

from stepstream.jobs.rewards.spec import RewardSpec, parse_spec
from stepstream.services.fleet.outcome_reward import Paid, pays_outcome_alone

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
    ("text", "alone"),
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
def test_what_pays_for_the_outcome_alone(text: str, alone: bool) -> None:
    assert pays_outcome_alone(parse_spec(text)) is alone


def test_the_specification_that_rules_the_agent_says_it() -> None:
    paid = Paid("shop", "helper", RewardSpec())
    assert paid.outcome_alone
    assert paid.note("other", specification('name = "other"\nenvironments = ["desk"]' + OUTCOME + SLOW))
    assert not paid.note("s", specification('name = "s"\nenvironments = ["sh*"]' + OUTCOME + SLOW))
    assert paid.note("closer", specification('name = "closer"\nenvironments = ["shop"]' + OUTCOME))
    assert not paid.note("closer", None)
    assert paid.note("s", specification('name = "s"\nenvironments = []' + OUTCOME + SLOW, version=2))


def test_what_cannot_be_read_may_pay_for_anything() -> None:
    paid = Paid("shop", "helper", RewardSpec())
    assert not paid.note("s", specification("[[component]]\nname = 'from a later version'"))
    assert paid.note("s", specification(OUTCOME, version=2))
    assert not paid.unreadable("s")
    assert not Paid("shop", "helper", None).outcome_alone
