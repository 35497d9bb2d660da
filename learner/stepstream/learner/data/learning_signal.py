"""Decide whether a group yields a gradient under the configured objective. Pure."""

from collections.abc import Callable, Sequence

from stepstream.config import LearnerSettings
from stepstream.learner.advantages import Trajectory
from stepstream.learner.advantages.from_config import rule_of, rule_without_critic
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.requirements import requirements_of

LearningSignal = Callable[[Sequence[Attempt]], str]
"""Returns the reason why attempts of one group (one or more) yield no gradient, as one of `drop_reasons.REASONS`;
empty: they yield one."""


def learning_signal_of(config: LearnerSettings) -> LearningSignal:
    """Return the check of the configured objective, and of its advantage rule."""
    if config.objective == "dpo":
        return lambda attempts: pair_signal(attempts, config.preference_margin)
    if config.objective == "kto":
        return lambda attempts: ""  # each attempt is judged by itself
    if config.objective == "sft":
        return imitation_signal
    rule = rule_of(config)

    def signal(attempts: Sequence[Attempt]) -> str:
        reason = rule.nothing_to_learn([attempt.credit for attempt in attempts])
        return "group_too_small" if reason == "too_small" else reason

    return signal


def learns_from_equal_rewards(config: LearnerSettings) -> bool:
    """Return True if a group whose attempts all have the same reward may yield a gradient."""
    if config.objective != "policy_gradient":
        return not requirements_of(config).compares
    return not rule_without_critic(config).compares_outcomes


def needs_group(config: LearnerSettings) -> bool:
    """Return True if an attempt yields no gradient without others of its group."""
    if config.objective != "policy_gradient":
        return requirements_of(config).compares
    return bool(rule_without_critic(config).nothing_to_learn([Trajectory((), 0.0)]))


def imitation_signal(attempts: Sequence[Attempt]) -> str:
    """Check imitation: an attempt must have succeeded or have a demonstration."""
    return "" if any(attempt.credit.succeeded or attempt.demonstrations for attempt in attempts) else "no_success"


def pair_signal(attempts: Sequence[Attempt], margin: float = 0.0) -> str:
    """Check pairs: rewards must differ by more than `margin`, or an attempt must have a demonstration."""
    if any(attempt.demonstrations for attempt in attempts):
        return ""
    return reward_signal(attempts, margin)


def reward_signal(attempts: Sequence[Attempt], margin: float = 0.0) -> str:
    """Check comparisons: the rewards of two attempts must differ by more than `margin`."""
    if len(attempts) < 2:
        return "group_too_small"
    rewards = [attempt.reward for attempt in attempts]
    return "" if max(rewards) - min(rewards) > margin else "no_variance"
