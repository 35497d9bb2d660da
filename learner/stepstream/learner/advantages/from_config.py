"""Create the advantage rule that the settings name, and its hindsight critic.

Critics of other packages are found through the entry points of `GROUP`.
"""

from collections.abc import Callable
from importlib.metadata import entry_points

from stepstream.config import LearnerSettings, SettingsError
from stepstream.learner.advantages import (
    DrGrpo,
    GiGpo,
    GroupStepGae,
    Grpo,
    Hcapo,
    Hgpo,
    PpoGae,
    ReinforcePlusPlus,
    Rloo,
    Rule,
    Salt,
    Shadow,
    StepGae,
    Stratified,
    TreeGrpo,
    VTrace,
)
from stepstream.learner.advantages.hcapo import HindsightCritic, recorded_scores

GROUP = "stepstream.hindsight_critics"
"""Entry point group in which a package registers a function that creates a `HindsightCritic`."""
POLICY = "policy"
"""Name of the critic that is the policy itself."""

CriticFactory = Callable[[LearnerSettings], HindsightCritic]


def rule_of(config: LearnerSettings) -> Rule:
    """Return the rule that `learner.advantage` names, with its settings.

    Raises:
        SettingsError: its hindsight critic is not installed.
    """
    return _RULES[config.advantage](config)


def rule_without_critic(config: LearnerSettings) -> Rule:
    """Return the same rule for questions about its properties: without its critic, which may not be installed here."""
    return rule_of(config.model_copy(update={"credit_hindsight": POLICY}))


def critic_of(config: LearnerSettings) -> HindsightCritic:
    """Return the critic that `learner.credit_hindsight` names.

    For the policy itself that is `recorded_scores`: its scores come with the steps.

    Raises:
        SettingsError: no installed package registers the name, or several do.
    """
    name = config.credit_hindsight
    if name == POLICY:
        return recorded_scores
    points = list(entry_points(group=GROUP, name=name))
    if not points:
        known = sorted({POLICY, *(point.name for point in entry_points(group=GROUP))})
        raise SettingsError(f"no critic '{name}' (learner.credit_hindsight); known critics: {', '.join(known)}")
    if len(points) > 1:
        packages = ", ".join(sorted(point.value for point in points))
        raise SettingsError(f"several packages have a critic '{name}' (learner.credit_hindsight): {packages}")
    make: CriticFactory = points[0].load()
    return make(config)


_RULES: dict[str, Callable[[LearnerSettings], Rule]] = {
    "rloo": lambda config: Rloo(),
    "grpo": lambda config: Grpo(),
    "dr_grpo": lambda config: DrGrpo(),
    "reinforce_pp": lambda config: ReinforcePlusPlus(),
    "reinforce_pp_baseline": lambda config: ReinforcePlusPlus(baseline=True),
    "step_gae": lambda config: GroupStepGae(config.credit_discount, config.credit_trace),
    "gigpo": lambda config: GiGpo(config.credit_step_weight, config.credit_discount),
    "hgpo": lambda config: Hgpo(config.credit_discount, config.credit_history),
    "stratified": lambda config: Stratified(config.credit_blend, config.credit_stratum),
    "salt": lambda config: Salt(),
    "tree_grpo": lambda config: TreeGrpo(),
    "shadow": lambda config: Shadow(config.credit_discount, config.credit_trace),
    "ppo_gae": lambda config: PpoGae(trace=config.credit_trace),
    "step_ppo": lambda config: StepGae(config.credit_discount, config.credit_trace),
    "vtrace": lambda config: VTrace(config.credit_discount),
    "hcapo": lambda config: Hcapo(config.credit_step_weight, config.credit_discount, critic=critic_of(config)),
}
