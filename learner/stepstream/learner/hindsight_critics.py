"""Critics for HCAPO by name: the policy itself, and those of installed packages (entry points of the group below)."""

from collections.abc import Callable
from importlib.metadata import entry_points

from stepstream.config import Learner, SettingsError
from stepstream.learner.advantages.hcapo import HindsightCritic, recorded

GROUP = "stepstream.hindsight_critics"
POLICY = "policy"

Maker = Callable[[Learner], HindsightCritic]


def critic_of(how: Learner) -> HindsightCritic:
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
