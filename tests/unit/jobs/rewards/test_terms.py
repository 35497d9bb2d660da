"""Reward specifications, components and returns."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_records import make_steps

from stepstream.config import SettingsError
from stepstream.jobs.rewards import terms
from stepstream.jobs.rewards.counted_feedback import count_feedback, newest
from stepstream.jobs.rewards.spec import RewardSpec, load_spec
from stepstream.jobs.rewards.terms import Terms, returns_to_go, reward_of, success
from stepstream.topics.events import Step, new_message, new_tool_call

SPEC = """
name = "support"
gamma = 0.5
[[component]]
name = "outcome"
feedback = "outcome"
bounds = [0.0, 2.0]
outcome = true
[[component]]
name = "thumbs"
feedback = "thumbs"
level = "step"
weight = 0.5
bounds = [-1.0, 1.0]
[[component]]
name = "tool_errors"
builtin = "tool_errors"
level = "step"
weight = -1.0
[[component]]
name = "slow"
builtin = "seconds"
weight = -0.1
bounds = [0.0, 60.0]
"""


def signal(name: str, value: float, *, step: int | None = None, at: int = 0, number: str = "f") -> dict[str, Any]:
    return {
        "id": number,
        "source_id": number,
        "name": name,
        "value": value,
        "step": step,
        "source": "user",
        "at": at,
        "arrived": 0,
        "retracts": None,
        "consent": "train",
    }


def components(declared: RewardSpec, steps: list[Step], signals: list[dict[str, Any]]) -> Terms:
    return terms.components(declared, steps, count_feedback(declared, signals, 0), complete=True)


def spec(tmp_path: Path, text: str) -> RewardSpec:
    file = tmp_path / "reward.toml"
    file.write_text(text)
    return load_spec(file)


def test_components_are_laid_over_the_steps(tmp_path: Path) -> None:
    steps = make_steps("t", 3)
    failed = new_tool_call(call_id="1", name="get", arguments="{}", error="Timeout")
    steps[1]["response"] = new_message(role="assistant", tool_calls=[failed, failed])
    signals = [
        signal("outcome", 5.0),
        signal("thumbs", -3.0, step=0),
        signal("thumbs", 1.0, step=7),
        signal("other", 1.0),
    ]
    terms = components(spec(tmp_path, SPEC), steps, signals)
    values = [{term["name"]: term["value"] for term in step} for step in terms]
    assert values == [
        {"thumbs": -1.0, "tool_errors": 0.0},
        {"tool_errors": 1.0},
        {"outcome": 2.0, "tool_errors": 0.0, "slow": pytest.approx(0.0375)},
    ]
    assert [reward_of(step) for step in terms] == pytest.approx([-0.5, -1.0, 2.0 - 0.00375])
    assert terms[0][0]["feedback_event_id"] == "f"
    assert terms[1][0]["source"] == "environment"


def test_success_is_the_outcome_at_its_upper_bound(tmp_path: Path) -> None:
    declared = spec(tmp_path, SPEC)
    steps = make_steps("t", 1)
    assert success(declared, components(declared, steps, [])) is None
    assert success(declared, components(declared, steps, [signal("outcome", 1.9)])) is False
    assert success(declared, components(declared, steps, [signal("outcome", 2.0)])) is True
    # Feedback about one step says nothing about the whole.
    assert success(declared, components(declared, steps, [signal("outcome", 2.0, step=0)])) is None


def test_the_newest_signal_counts() -> None:
    assert newest([]) is None
    old, new = signal("o", 0.0, at=1, number="b"), signal("o", 1.0, at=2, number="a")
    assert newest([new, old]) is new
    assert newest([signal("o", 0.0, at=2, number="z"), new]) != new


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20), st.floats(0, 1))
def test_returns_are_the_discounted_sums_ahead(rewards: list[float], gamma: float) -> None:
    returns = returns_to_go(rewards, gamma)
    for place in range(len(rewards)):
        ahead = sum(gamma**k * reward for k, reward in enumerate(rewards[place:]))
        assert returns[place] == pytest.approx(ahead, abs=1e-9)


def test_the_default_is_the_outcome_alone() -> None:
    default = load_spec(None)
    assert [component.name for component in default.component] == ["outcome"]
    assert default.identity().startswith("outcome@")


def test_another_weight_is_another_identity(tmp_path: Path) -> None:
    assert spec(tmp_path, SPEC).identity() != spec(tmp_path, SPEC.replace("0.5\nbounds", "0.6\nbounds")).identity()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("name = ", "not TOML"),
        ("[[component]]\nname='a'\n", "either feedback or builtin"),
        ("[[component]]\nname='a'\nfeedback='a'\nbounds=[1.0, 0.0]\n", "lower bound"),
        ("[[component]]\nname='a'\nbuiltin='errors'\noutcome=true\n", "an outcome is feedback"),
        ("[[component]]\nname='a'\nfeedback='a'\n[[component]]\nname='a'\nfeedback='b'\n", "same name"),
        ("[[component]]\nname='a'\nbuiltin='joy'\n", "builtin"),
        ("weights = 3\n", "weights"),
    ],
)
def test_a_wrong_specification_is_told(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(SettingsError, match=fault):
        spec(tmp_path, text)


def test_a_missing_specification_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        load_spec(tmp_path / "none.toml")
