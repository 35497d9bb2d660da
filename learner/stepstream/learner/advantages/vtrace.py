"""Compute V-trace: values and advantages of the current policy from the steps of another one."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stepstream.learner.advantages.base import Credit, Group, Need, Result, Rule, Step, Trajectory, require, values_of

_LOG_RATIO_BOUND = 20.0


@dataclass(frozen=True, slots=True)
class VTrace(Rule):
    """v_t = V_t + ρ_t·δ_t + γ·c_t·(v_{t+1} - V_{t+1}), A_t = ρ_t·(r_t + γ·v_{t+1} - V_t) (IMPALA, arXiv 1802.01561).

    δ_t = r_t + γ·V_{t+1} - V_t, ρ_t = min(ρ̄, q_t), c_t = min(c̄, q_t), over steps; q_t is the step's ratio of current to
    behaviour policy, the product over its tokens. A ratio that is not finite excludes its step: ρ = c = 0. A_t already
    contains ρ_t: the loss must not weigh by it again. The value target is v_t. A step without trained tokens has
    ρ = c = 1 if its ratio is unknown, and no V of its own (`values_of`).
    """

    discount: float = 1.0
    """γ, by step."""
    rho_cap: float = 1.0
    """ρ̄: determines which policy is evaluated."""
    trace_cap: float = 1.0
    """c̄, at most ρ̄: determines how far back a temporal difference has an effect."""
    bootstraps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.trace_cap > self.rho_cap:
            raise ValueError(f"V-trace: trace_cap {self.trace_cap} exceeds rho_cap {self.rho_cap}; lower trace_cap")

    @property
    def discounts(self) -> frozenset[float]:
        """Its own γ."""
        return frozenset({self.discount})

    @property
    def needs(self) -> frozenset[Need]:
        """Values of a critic, and the ratios."""
        return frozenset({"values", "log_ratios"})

    def __call__(self, groups: Sequence[Group]) -> Result:
        """Return advantages and targets of every step; needs `value`, `log_ratio`, and `final_value` if truncated."""
        credits = [[self._estimate(trajectory) for trajectory in group] for group in groups]
        return Result(credits, Counter({"groups": len(groups)}))

    def _estimate(self, trajectory: Trajectory) -> Credit:
        after = require(trajectory.final_value, "vtrace", "final_value") if trajectory.truncated else 0.0
        values = values_of(trajectory, after, self.discount, "vtrace")
        target = after
        advantages, targets = [], []
        for step, value in zip(reversed(trajectory.steps), reversed(values), strict=True):
            ratio = _ratio(step)
            rho, trace = min(self.rho_cap, ratio), min(self.trace_cap, ratio)
            advantages.append(rho * (step.reward + self.discount * target - value))
            surprise = rho * (step.reward + self.discount * after - value)
            target = value + surprise + self.discount * trace * (target - after)
            after = value
            targets.append(target)
        return Credit(tuple(reversed(advantages)), targets=tuple(reversed(targets)))


def _ratio(step: Step) -> float:
    if step.log_ratio is None and not step.tokens:
        return 1.0
    log_ratio = require(step.log_ratio, "vtrace", "log_ratio")
    if not math.isfinite(log_ratio):
        return 0.0
    return math.exp(min(_LOG_RATIO_BOUND, max(-_LOG_RATIO_BOUND, log_ratio)))
