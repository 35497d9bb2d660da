"""Define a reward specification: a TOML file of named components. Pure; `docs/rewards.md` explains each entry.

name = "support"
environments = ["shop-*"]
reward_bounds = [-1.0, 1.0]
cap_malformed = true

[[component]]
name = "outcome"
feedback = "outcome"     # the newest feedback of this name gives the value
source = "environment"   # feedback of any other source does not count
outcome = true           # at its upper bound the trajectory is a success

[[component]]
name = "slow"
builtin = "seconds"
weight = -0.01
bounds = [0.0, 60.0]
"""

import hashlib
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from stepstream.config import SettingsError
from stepstream.topics.trusted_sources import SHADOW_PREFIX

Builtin = Literal[
    "errors",
    "tool_errors",
    "malformed_calls",
    "valid_calls",
    "seconds",
    "cost_usd",
    "response_tokens",
    "certainty",
    "clarifying_questions",
]
Source = Literal[
    "environment",
    "verifier",
    "test",
    "user",
    "judge",
    "prm",
    "business",
    "person",
    "cost",
    "latency",
    "format",
    "policy",
]
Kind = Literal["term", "raw", "shaping", "guard", "shadow"]

BUILTIN_SOURCES: dict[Builtin, Source] = {
    "errors": "environment",
    "tool_errors": "environment",
    "malformed_calls": "format",
    "valid_calls": "format",
    "seconds": "latency",
    "cost_usd": "cost",
    "response_tokens": "cost",
    "certainty": "policy",
    "clarifying_questions": "format",
}
CORRECTION = "cap:"
"""Prefix of the names of corrections; component names must not begin with it."""


class SpecificationError(Exception):
    """Invalid reward specification; the message says how to correct it."""


def _ordered(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] >= bounds[1]:
        raise ValueError("the lower bound must be below the upper one")
    return bounds


def _is_shadow(feedback: str | None) -> bool:
    return feedback is not None and feedback.startswith(SHADOW_PREFIX)


Number = Annotated[float, Field(allow_inf_nan=False)]
Bounds = Annotated[tuple[Number, Number], AfterValidator(_ordered)]


class Component(BaseModel):
    """One term of the reward."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    feedback: str | None = None
    """Name of the feedback that gives the value."""
    builtin: Builtin | None = None
    """Alternatively, the value that is measured on the steps."""
    source: Source | None = None
    """Required source of the feedback; None: any."""
    level: Literal["trajectory", "step"] = "trajectory"
    weight: Number = 1.0
    bounds: Bounds = (0.0, 1.0)
    """Bounds of each value."""
    trajectory_bounds: Bounds | None = None
    """Bounds of the sum of its values over the steps."""
    outcome: bool = False
    """True if it decides success and failure."""
    potential: bool = False
    """True if its values are potentials of the steps' states; their differences are paid."""
    guard: bool = False
    """True if its fall, while a rewarded component rises, is an alarm."""
    shadow: bool = False
    """True if it is measured and not paid."""
    required: bool = False
    """True if a trajectory is not trainable until its feedback comes, or until `wait_s` seconds after it closed."""
    wait_s: float | None = Field(None, gt=0, allow_inf_nan=False)
    final_after_s: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Seconds after closing; later feedback is ignored. None: no limit."""

    @model_validator(mode="after")
    def _consistent(self) -> "Component":
        for wrong, fault in self._faults():
            if wrong:
                raise ValueError(f"component '{self.name}': {fault}")
        return self

    def _faults(self) -> list[tuple[bool, str]]:
        fed, capped, final = self.feedback is not None, self.trajectory_bounds, self.final_after_s
        step = self.level == "step"
        return [
            (fed == (self.builtin is not None), "it needs either feedback or builtin, not both"),
            (self.name.startswith(CORRECTION), f"names that begin with `{CORRECTION}` are those of corrections"),
            (not fed and self.source is not None, "a builtin has its own source: leave `source` out"),
            (self.outcome and (not fed or step), "an outcome is feedback about the whole trajectory"),
            (
                _is_shadow(self.feedback) and (not self.shadow or self.outcome),
                f"feedback named `{SHADOW_PREFIX}…` must not count: set shadow = true, or leave `{SHADOW_PREFIX}` out",
            ),
            (self.potential and not fed, "a potential is feedback about the state before a step"),
            (self.potential and not step, 'a potential needs level = "step"'),
            (self.potential and capped is not None, "a cap would break the sum of its differences: use bounds"),
            (self.potential and self.guard, "a potential cannot be a guard"),
            (capped is not None and not step, 'trajectory_bounds needs level = "step"'),
            (capped is not None and not capped[0] <= 0 <= capped[1], "trajectory_bounds must contain 0"),
            (self.required and (not fed or self.wait_s is None), "a required component needs feedback and wait_s"),
            (not self.required and self.wait_s is not None, "wait_s needs required = true"),
            (not fed and final is not None, "a builtin is final at once: leave `final_after_s` out"),
            (
                final is not None and self.wait_s is not None and self.wait_s > final,
                "wait_s is longer than final_after_s: feedback that late would be ignored",
            ),
        ]

    @property
    def kind(self) -> Kind:
        """Kind of its terms in a label."""
        if self.shadow:
            return "shadow"
        if self.guard:
            return "guard"
        if self.potential:
            return "shaping"
        return "raw" if self.level == "step" else "term"

    @property
    def paid_weight(self) -> float:
        """Weight in the sum."""
        return 0.0 if self.shadow else self.weight

    @property
    def counts(self) -> bool:
        """True if it affects the reward or decides success."""
        return self.paid_weight != 0 or self.outcome

    def bounded(self, value: float) -> float:
        """Return the value clipped to the bounds."""
        return min(max(value, self.bounds[0]), self.bounds[1])


class RewardSpec(BaseModel):
    """A reward specification."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field("outcome", min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    environments: tuple[str, ...] = ("*",)
    """Patterns; empty: it applies to nothing."""
    agents: tuple[str, ...] = ("*",)
    gamma: float = Field(1.0, ge=0, le=1)
    reward_bounds: Bounds | None = None
    """Bounds of the whole reward, without shaping."""
    cap_malformed: bool = False
    """True if a trajectory with a malformed tool call gets at most the lower one of `reward_bounds`."""
    malformed_feedback: str = "malformed_call"
    """Name of feedback that, with a value above 0, reports a malformed call that the record does not show."""
    component: tuple[Component, ...] = (Component(name="outcome", feedback="outcome", outcome=True),)

    @model_validator(mode="after")
    def _consistent(self) -> "RewardSpec":
        if sum(component.outcome for component in self.component) > 1:
            raise ValueError("at most one component may be the outcome")
        names = [component.name for component in self.component]
        if len(set(names)) != len(names):
            raise ValueError("two components have the same name")
        if _is_shadow(self.malformed_feedback):
            raise ValueError(f"malformed_feedback: feedback named `{SHADOW_PREFIX}…` must not count")
        if self.cap_malformed and self.reward_bounds is None:
            raise ValueError("cap_malformed needs reward_bounds: an honest failure gets at least the lower bound")
        return self

    @property
    def outcome(self) -> Component | None:
        """Component that decides success and failure."""
        return next((component for component in self.component if component.outcome), None)

    @property
    def required(self) -> list[Component]:
        """Components for which the job waits."""
        return [component for component in self.component if component.required]

    def digest(self) -> str:
        """Return a digest of all fields."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]

    def identity(self) -> str:
        """Return name and digest: another specification with the same name has another identity."""
        return f"{self.name}@{self.digest()}"

    def fit(self, environment: str, agent: str) -> tuple[int, int] | None:
        """Return how closely it names an agent and its environment, higher is closer; None: it does not apply."""
        closeness = _closest(self.agents, agent), _closest(self.environments, environment)
        return None if -1 in closeness else closeness


@dataclass(frozen=True, slots=True)
class VersionedSpec:
    """Specification in force, with its version."""

    spec: RewardSpec
    version: int = 0
    """Version on `reward-specs`; 0: the one of the settings, or the built-in one."""

    @property
    def identity(self) -> str:
        """Identity of the specification, and its version."""
        return f"{self.spec.identity()}/{self.version}"


def parse_spec(text: str) -> RewardSpec:
    """Parse a reward specification.

    Raises:
        SpecificationError: not TOML, or not a reward specification.
    """
    try:
        return RewardSpec.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise SpecificationError(f"it is not TOML: {error}") from None
    except ValidationError as error:
        reported = (_explain(fault) for fault in error.errors(include_url=False, include_input=False))
        raise SpecificationError("; ".join(reported)) from None


def load_spec(file: Path | None) -> RewardSpec:
    """Read the specification of the settings; None: the outcome alone.

    Raises:
        SettingsError: missing, not TOML, or not a reward specification.
    """
    if file is None:
        return RewardSpec()
    try:
        return parse_spec(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"reward specification {file} does not exist (label.reward_spec)") from None
    except SpecificationError as error:
        raise SettingsError(f"reward specification {file}: {error}") from None


def _closest(patterns: tuple[str, ...], name: str) -> int:
    """Return the number of characters, without wildcards, of the closest pattern that a name matches; -1: none."""
    return max((sum(c not in "*?[]" for c in p) for p in patterns if fnmatchcase(name, p)), default=-1)


def _explain(fault: Any) -> str:
    field = ".".join(map(str, fault["loc"]))
    if fault["type"] == "extra_forbidden":
        known = Component if "component" in fault["loc"] else RewardSpec
        return f"{field} is unknown: there are {', '.join(known.model_fields)}"
    if fault["type"] == "literal_error" and fault["loc"][-1] == "builtin":
        return f"{field} is unknown: there are {', '.join(get_args(Builtin))}"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{field}: {message}" if field else str(message)
