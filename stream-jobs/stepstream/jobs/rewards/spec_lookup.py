"""Find the reward specification of a trajectory: the closest one on `reward-specs`, else the one of the settings."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from stepstream.config import Settings, SettingsError
from stepstream.jobs.rewards.spec import RewardSpec, SpecificationError, VersionedSpec, load_spec, parse_spec
from stepstream.jobs.runtime.followed_tables import FollowedTables, fingerprint_of
from stepstream.topics.catalogue import REWARD_SPECS


class SpecLookup(Protocol):
    """Specifications in force. Safe to call from the fold's thread at any time."""

    def of(self, environment: str, agent: str) -> VersionedSpec:
        """Return the specification for an agent in an environment."""
        ...

    def fingerprint(self) -> int:
        """Return a number below 2^64 that changes with any specification: then saved trajectories need a review."""
        ...


class FixedSpec:
    """One specification for all trajectories."""

    def __init__(self, spec: RewardSpec) -> None:
        self._specs = VersionedSpec(spec)

    def of(self, environment: str, agent: str) -> VersionedSpec:
        """Return the specification."""
        return self._specs

    def fingerprint(self) -> int:
        """Return 0: it never changes."""
        return 0


class TableSpecs(FollowedTables):
    """Follows the topic; close it, or use it as a context manager."""

    def __init__(self, settings: Settings) -> None:
        """Start to follow; call `of` only after `wait`.

        Raises:
            SettingsError: the specification of the settings cannot be read.
        """
        self._default = VersionedSpec(load_spec(settings.label.reward_spec))
        # After a record that cannot be parsed the previous version stays in force; `store` dead-letters the record.
        super().__init__(settings, REWARD_SPECS, rejection_of=rejection_of)
        [self._table] = self._tables
        self._specs: dict[str, VersionedSpec] = {}
        self._by_place: dict[tuple[str, str], VersionedSpec] = {}
        self._fingerprint = 0
        self._note_changes_of(self._table)

    def of(self, environment: str, agent: str) -> VersionedSpec:
        """Return the specification for an agent in an environment."""
        self._refresh()
        key = environment, agent
        spec = self._by_place.get(key)
        if spec is None:
            spec = self._by_place[key] = closest(self._specs.values(), environment, agent) or self._default
        return spec

    def fingerprint(self) -> int:
        """Return a number below 2^64 that changes with any specification."""
        self._refresh()
        return self._fingerprint

    def _refresh(self) -> None:
        if not self._take_change():
            return
        records = self._table.items()
        self._specs = {name: parse_record(record) for name, record in records.items()}
        self._by_place.clear()
        identities = sorted(declared.identity for declared in self._specs.values())
        if self._default.spec != RewardSpec():
            identities.append(self._default.identity)
        self._fingerprint = fingerprint_of(identities)


def closest(specs: Iterable[VersionedSpec], environment: str, agent: str) -> VersionedSpec | None:
    """Return the specification that names agent and environment most closely: by the agent first, then the environment.

    A pattern with more characters beside its wildcards is closer. Among equals, the first name in order wins.
    """
    fits = [(fit, candidate) for candidate in specs if (fit := candidate.spec.fit(environment, agent)) is not None]
    if not fits:
        return None
    best = max(fit for fit, _ in fits)
    return min((candidate for fit, candidate in fits if fit == best), key=lambda candidate: candidate.spec.name)


def parse_record(record: Mapping[str, Any]) -> VersionedSpec:
    """Parse a record of the topic.

    Raises:
        SettingsError: this release cannot read it.
    """
    try:
        return VersionedSpec(parse_spec(record["document"]), record["version"])
    except SpecificationError as error:
        raise SettingsError(
            f"version {record['version']} of reward specification '{record['name']}' cannot be read: {error}; put a "
            "valid one, with `stepstream rewards put FILE`"
        ) from None


def rejection_of(record: Mapping[str, Any]) -> str | None:
    """Return the reason why a record of the topic is invalid; None: it is valid."""
    try:
        parse_record(record)
    except SettingsError as error:
        return str(error)
    return None


def next_version(records: Mapping[str, Any], name: str) -> int:
    """Return the number of the next version of a specification."""
    latest = records.get(name)
    return 1 if latest is None else int(latest["version"]) + 1
