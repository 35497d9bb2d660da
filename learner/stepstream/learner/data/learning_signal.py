"""Whether a group teaches anything, by what the learner does with it. Pure."""

from collections.abc import Callable, Sequence

from stepstream.config import LearnerSettings
from stepstream.learner.advantages import Trajectory
from stepstream.learner.advantages.from_config import rule_of
from stepstream.learner.advantages.from_record import described
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.requirements import requirements_of

LearningSignal = Callable[[Sequence[Attempt]], str]
"""Why attempts of one group (one or more) teach nothing, as one of `fates.REASONS`; empty where they do."""


def learning_signal_of(config: LearnerSettings) -> LearningSignal:
    """What a group must have so that the learner's objective gives some of its tokens a gradient."""
    if config.objective == "dpo":
        return lambda attempts: to_compare(attempts, config.preference_margin)
    if config.objective == "kto":
        return lambda attempts: ""
    if config.objective == "sft":
        return to_imitate
    rule = rule_of(config)

    def lesson(attempts: Sequence[Attempt]) -> str:
        reason = rule.nothing_to_learn([attempt.credit for attempt in attempts])
        return "group_too_small" if reason == "too_small" else reason

    return lesson


def equal_rewards_teach(config: LearnerSettings) -> bool:
    """Whether a group whose attempts were all paid the same may teach anything."""
    return not _nothing_in(config, attempts=2)


def needs_group(config: LearnerSettings) -> bool:
    """Whether an attempt teaches nothing without others of its group."""
    return _nothing_in(config, attempts=1)


def _nothing_in(config: LearnerSettings, attempts: int) -> bool:
    """Whether attempts that were paid the same teach nothing, for certain."""
    if config.objective != "policy_gradient":
        return requirements_of(config).compares
    return bool(described(config).nothing_to_learn([Trajectory((), 0.0)] * attempts))


def to_imitate(attempts: Sequence[Attempt]) -> str:
    """The lesson of imitation: an attempt succeeded, or somebody demonstrated how one should have answered."""
    return "" if any(attempt.credit.succeeded or attempt.demonstrations for attempt in attempts) else "no_success"


def to_compare(attempts: Sequence[Attempt], margin: float = 0.0) -> str:
    """The lesson of pairs: some attempts did better than others, or somebody demonstrated a better response."""
    if any(attempt.demonstrations for attempt in attempts):
        return ""
    return differing_rewards(attempts, margin)


def differing_rewards(attempts: Sequence[Attempt], margin: float = 0.0) -> str:
    """The lesson of comparisons: some attempts did better than others, by more than `margin`."""
    if len(attempts) < 2:
        return "group_too_small"
    rewards = [attempt.reward for attempt in attempts]
    return "" if max(rewards) - min(rewards) > margin else "no_variance"
