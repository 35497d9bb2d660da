"""Whether an agent's outcome is its whole reward, by the reward specifications as they are now."""

from collections.abc import Mapping
from typing import Any

from stepstream.config import SettingsError
from stepstream.jobs.rewards.spec import Declared, RewardSpec
from stepstream.jobs.rewards.spec_lookup import closest, declared_by


class Paid:
    """The specifications of topic `reward-specs`, as they rule one agent."""

    def __init__(self, environment: str, agent: str, default: RewardSpec | None) -> None:
        """Knows none yet; `default`: what rules then, None: not known."""
        self._whom = environment, agent
        self._default = default
        self._declared: dict[str, Declared | None] = {}

    def note(self, name: str, record: Mapping[str, Any] | None) -> bool:
        """A record of the topic, None: the specification is gone; returns `outcome_alone`."""
        if record is None:
            self._declared.pop(name, None)
        else:
            try:
                self._declared[name] = declared_by(record)
            except SettingsError:
                return self.unreadable(name)
        return self.outcome_alone

    def unreadable(self, name: str) -> bool:
        """A record of the topic that cannot be read: it may rule this agent, and pay for anything."""
        self._declared[name] = None
        return self.outcome_alone

    @property
    def outcome_alone(self) -> bool:
        """Whether equal outcomes of the agent are equal rewards."""
        if None in self._declared.values():
            return False
        ruling = closest((one for one in self._declared.values() if one is not None), *self._whom)
        spec = self._default if ruling is None else ruling.spec
        return spec is not None and pays_outcome_alone(spec)


def pays_outcome_alone(spec: RewardSpec) -> bool:
    """Whether equal outcomes, as the environment tells them, are equal rewards."""
    paid = [component for component in spec.component if component.paid_weight]
    return not spec.cap_malformed and all(
        component.feedback == "outcome"
        and component.level == "trajectory"
        and component.source in (None, "environment")
        for component in paid
    )
