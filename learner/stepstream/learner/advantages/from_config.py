"""Critics for HCAPO by name: the policy itself, and those of installed packages (entry points of the group below).

x
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
from stepstream.learner.advantages.hcapo import HindsightCritic, recorded

GROUP = "stepstream.hindsight_critics"
POLICY = "policy"

Maker = Callable[[LearnerSettings], HindsightCritic]


def critic_of(how: LearnerSettings) -> HindsightCritic:
    """The critic that `learner.credit_hindsight` names; `recorded` where the policy's own scores come with the steps.

    Raises:
        SettingsError: no package, or more than one, has it.
    """
    name = how.credit_hindsight
    if name == POLICY:
        return recorded
    points = list(entry_points(group=GROUP, name=name))
    if not points:
        known = sorted({POLICY, *(point.name for point in entry_points(group=GROUP))})
        raise SettingsError(f"no critic '{name}' (learner.credit_hindsight); there are {', '.join(known)}")
    if len(points) > 1:
        packages = ", ".join(sorted(point.value for point in points))
        raise SettingsError(f"several packages have a critic '{name}' (learner.credit_hindsight): {packages}")
    make: Maker = points[0].load()
    return make(how)


_RULES: dict[str, Callable[[LearnerSettings], Rule]] = {
    "rloo": lambda how: Rloo(),
    "grpo": lambda how: Grpo(),
    "dr_grpo": lambda how: DrGrpo(),
    "reinforce_pp": lambda how: ReinforcePlusPlus(),
    "reinforce_pp_baseline": lambda how: ReinforcePlusPlus(baseline=True),
    "step_gae": lambda how: GroupStepGae(how.credit_discount, how.credit_trace),
    "gigpo": lambda how: GiGpo(how.credit_step_weight, how.credit_discount),
    "hgpo": lambda how: Hgpo(how.credit_discount, how.credit_history),
    "stratified": lambda how: Stratified(how.credit_blend, how.credit_stratum),
    "salt": lambda how: Salt(),
    "tree_grpo": lambda how: TreeGrpo(),
    "shadow": lambda how: Shadow(how.credit_discount, how.credit_trace),
    "ppo_gae": lambda how: PpoGae(trace=how.credit_trace),
    "step_ppo": lambda how: StepGae(how.credit_discount, how.credit_trace),
    "vtrace": lambda how: VTrace(how.credit_discount),
    "hcapo": lambda how: Hcapo(how.credit_step_weight, how.credit_discount, critic=critic_of(how)),
}


def rule_of(how: LearnerSettings) -> Rule:
    """The rule that `learner.advantage` names, with its settings.

    Raises:
        SettingsError: a critic that is not installed.
    """
    return _RULES[how.advantage](how)
