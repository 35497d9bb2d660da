"""Decide whether an agent's outcome is its whole reward, under the current reward specifications."""

from collections.abc import Mapping
from typing import Any

from stepstream.config import SettingsError
from stepstream.jobs.rewards.spec import RewardSpec, VersionedSpec
from stepstream.jobs.rewards.spec_lookup import closest, parse_record


class OutcomeReward:
    """The specifications of the `reward-specs` topic, applied to one agent."""

    def __init__(self, environment: str, agent: str, default: RewardSpec | None) -> None:
        """Start without specifications; `default` applies if none matches (None: unknown)."""
        self._applies_to = environment, agent
        self._default = default
        self._specs: dict[str, VersionedSpec | None] = {}
        """By name; None: unreadable."""

    def add(self, name: str, record: Mapping[str, Any] | None) -> bool:
        """Apply a record of the topic (None: deletes the specification) and return `outcome_only`."""
        if record is None:
            self._specs.pop(name, None)
        else:
            try:
                self._specs[name] = parse_record(record)
            except SettingsError:
                return self.add_unreadable(name)
        return self.outcome_only

    def add_unreadable(self, name: str) -> bool:
        """Note an unreadable record, which may apply to this agent and reward anything; return `outcome_only`."""
        self._specs[name] = None
        return self.outcome_only

    @property
    def outcome_only(self) -> bool:
        """True if equal outcomes of the agent are equal rewards."""
        if None in self._specs.values():
            return False
        match = closest((each for each in self._specs.values() if each is not None), *self._applies_to)
        spec = self._default if match is None else match.spec
        return spec is not None and pays_outcome_only(spec)


def pays_outcome_only(spec: RewardSpec) -> bool:
    """Return True if equal outcomes, as the environment reports them, are equal rewards."""
    paid = [component for component in spec.component if component.paid_weight]
    return not spec.cap_malformed and all(
        component.feedback == "outcome"
        and component.level == "trajectory"
        and component.source in (None, "environment")
        for component in paid
    )
