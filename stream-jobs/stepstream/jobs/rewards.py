"""The declared reward of a trajectory: named components per step, their weighted sum, returns. Pure.

A specification is a TOML file:

    name = "support"
    gamma = 1.0

    [[component]]            # paid at the last step, or where the feedback's step_index says with level = "step"
    name = "outcome"
    feedback = "outcome"     # the newest feedback of this name gives the value
    weight = 1.0
    bounds = [0.0, 1.0]
    outcome = true           # at its upper bound the trajectory is a success

    [[component]]
    name = "slow"
    builtin = "seconds"      # errors | tool_errors | seconds | cost_usd | response_tokens, of each step
    level = "step"
    weight = -0.01
    bounds = [0.0, 60.0]
"""

import hashlib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from stepstream.config import SettingsError
from stepstream.topics.events import RewardComponent, Step, new_reward_component

Builtin = Literal["errors", "tool_errors", "seconds", "cost_usd", "response_tokens"]


class Component(BaseModel):
    """One term of the reward."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    feedback: str | None = None
    builtin: Builtin | None = None
    level: Literal["trajectory", "step"] = "trajectory"
    weight: float = 1.0
    bounds: tuple[float, float] = (0.0, 1.0)
    outcome: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> "Component":
        if (self.feedback is None) == (self.builtin is None):
            raise ValueError(f"component '{self.name}' needs either feedback or builtin")
        if self.bounds[0] >= self.bounds[1]:
            raise ValueError(f"component '{self.name}': the lower bound must be below the upper one")
        if self.outcome and (self.feedback is None or self.level != "trajectory"):
            raise ValueError(f"component '{self.name}': an outcome is feedback about the whole trajectory")
        return self

    def bounded(self, value: float) -> float:
        """The value inside the bounds."""
        return min(max(value, self.bounds[0]), self.bounds[1])


class RewardSpec(BaseModel):
    """A reward specification."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "outcome"
    gamma: float = Field(1.0, ge=0, le=1)
    component: tuple[Component, ...] = (Component(name="outcome", feedback="outcome", outcome=True),)

    @model_validator(mode="after")
    def _one_outcome(self) -> "RewardSpec":
        if sum(component.outcome for component in self.component) > 1:
            raise ValueError("at most one component may be the outcome")
        names = [component.name for component in self.component]
        if len(set(names)) != len(names):
            raise ValueError("two components have the same name")
        return self

    @property
    def outcome(self) -> Component | None:
        """The component that tells success from failure."""
        return next((component for component in self.component if component.outcome), None)

    def identity(self) -> str:
        """Name and digest: another specification, even under the same name, has another identity."""
        digest = hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]
        return f"{self.name}@{digest}"


def load_spec(file: Path | None) -> RewardSpec:
    """Reads a specification; without a file, the outcome alone.

    Raises:
        SettingsError: missing, not TOML, or not a reward specification.
    """
    if file is None:
        return RewardSpec()
    try:
        return RewardSpec.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise SettingsError(f"reward specification {file} does not exist (label.reward_spec)") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"reward specification {file} is not TOML: {error}") from None
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
        raise SettingsError(f"reward specification {file}: {faults}") from None


Signal = Mapping[str, Any]
"""What a label needs of feedback: `id`, `name`, `value`, `step`, `source`, `consent`, `at` (occurred_at_us)."""


def newest(signals: Iterable[Signal]) -> Signal | None:
    """The signal that counts where several were given: the newest, by id among equals."""
    return max(signals, key=lambda signal: (signal["at"], signal["id"]), default=None)


def components(spec: RewardSpec, steps: Sequence[Step], signals: Sequence[Signal]) -> list[list[RewardComponent]]:
    """Every known term of the reward, by step; feedback that has not come gives no term.

    Args:
        spec: the specification.
        steps: the trajectory's steps in order, at least one.
        signals: feedback that stands (not retracted) and has a value.
    """
    terms: list[list[RewardComponent]] = [[] for _ in steps]
    places = {step["step_index"]: place for place, step in enumerate(steps)}
    for component in spec.component:
        if component.builtin is not None:
            values = [_builtin(component.builtin, step) for step in steps]
            if component.level == "trajectory":
                terms[-1].append(_term(component, sum(values), f"builtin:{component.builtin}", None))
            else:
                for place, value in enumerate(values):
                    terms[place].append(_term(component, value, f"builtin:{component.builtin}", None))
            continue
        named = [signal for signal in signals if signal["name"] == component.feedback]
        if component.level == "trajectory":
            wanted = {len(steps) - 1: newest(signal for signal in named if signal["step"] is None)}
        else:
            wanted = {
                place: newest(signal for signal in named if signal["step"] == index) for index, place in places.items()
            }
        for place, signal in wanted.items():
            if signal is not None:
                terms[place].append(_term(component, signal["value"], signal["source"], signal["id"]))
    return terms


def reward_of(terms: Iterable[RewardComponent]) -> float:
    """The weighted sum of a step's terms."""
    return float(sum(term["value"] * term["weight"] for term in terms))


def returns_to_go(rewards: Sequence[float], gamma: float) -> list[float]:
    """G_t = r_t + gamma · G_{t+1}, over whole steps."""
    returns = [0.0] * len(rewards)
    ahead = 0.0
    for place in range(len(rewards) - 1, -1, -1):
        ahead = rewards[place] + gamma * ahead
        returns[place] = ahead
    return returns


def success(spec: RewardSpec, terms: Sequence[Sequence[RewardComponent]]) -> bool | None:
    """Whether the outcome is at its upper bound; None where there is none (yet)."""
    outcome = spec.outcome
    if outcome is None:
        return None
    for term in terms[-1]:
        if term["name"] == outcome.name:
            return term["value"] >= outcome.bounds[1]
    return None


def _term(component: Component, value: float, source: str, feedback_id: str | None) -> RewardComponent:
    return new_reward_component(
        name=component.name,
        value=component.bounded(value),
        weight=component.weight,
        source=source,
        feedback_event_id=feedback_id,
    )


def _builtin(name: Builtin, step: Step) -> float:
    match name:
        case "errors":
            return float(step["error"] is not None)
        case "tool_errors":
            return float(sum(call["error"] is not None for call in step["response"]["tool_calls"]))
        case "seconds":
            return (step["duration_ms"] or 0.0) / 1000
        case "cost_usd":
            return step["cost_usd"] or 0.0
        case "response_tokens":
            return float(len(step["response_token_ids"]))
