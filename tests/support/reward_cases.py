"""Build feedback signals, and reward terms of trajectories with given component values."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from stream_records import make_steps

from stepstream.jobs.rewards.counted_feedback import count_feedback
from stepstream.jobs.rewards.spec import RewardSpec, load_spec
from stepstream.jobs.rewards.terms import Terms, components, returns_to_go, reward_of
from stepstream.topics.events import Step, new_message, new_tool_call

NUMBERS = st.floats(-5, 5)


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


def spec(tmp_path: Path, text: str) -> RewardSpec:
    """Return the specification of a TOML text."""
    file = tmp_path / "reward.toml"
    file.write_text(text)
    return load_spec(file)


def signal(name: str, value: float | None, number: str = "f", **fields: Any) -> dict[str, Any]:
    origin = {"id": number, "source_id": number, "source": "user", "producer": "verify/1", "consent": "train"}
    return {"name": name, "value": value, "step": None, "at": 0, "arrived": 0, "retracts": None, **origin} | fields


def terms_of(spec: RewardSpec, steps: list[Step], signals: list[dict[str, Any]]) -> Terms:
    return components(spec, steps, count_feedback(spec, signals, 0), complete=True)


def terms_with(
    spec: RewardSpec, values: dict[str, list[float]], outcome: float, broken: Collection[int] = (), count: int = 1
) -> Terms:
    """Return terms of at least `count` steps with these component values; calls at `broken` are malformed."""
    steps = make_steps("t", max([count, *map(len, values.values())]))
    for position in broken:
        call = new_tool_call(call_id="c", name="get", arguments='{"input": ')
        steps[position]["response"] = new_message(role="assistant", tool_calls=[call])
    signals = [
        signal(name, value, f"{name}/{index}", step=index, source="environment")
        for name, by_step in values.items()
        for index, value in enumerate(by_step)
    ]
    return terms_of(spec, steps, [*signals, signal("outcome", outcome, "outcome", source="environment")])


def rewards_of(terms: Terms, *, shaping: bool = True) -> list[float]:
    return [reward_of(term for term in step if shaping or term["kind"] != "shaping") for step in terms]


def discounted(rewards: list[float], gamma: float) -> float:
    return returns_to_go(rewards, gamma)[0]
