"""Which reward specification rules a trajectory: the closest of topic `reward-specs`, else the one of the settings."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from stepstream.config import Settings, SettingsError
from stepstream.jobs.rewards.spec import Declared, RewardSpec, SpecificationError, load_spec, parse_spec
from stepstream.jobs.runtime.followed_tables import FollowedTables, fingerprint_of

REWARD_SPECS = "reward-specs"


class SpecLookup(Protocol):
    """Where a fold asks what rules. Safe to ask from the fold's thread at any time."""

    def of(self, environment: str, agent: str) -> Declared:
        """What rules the trajectories of an agent in an environment."""
        ...

    def fingerprint(self) -> int:
        """Names all specifications as of now, below 2^64; another number: what is stored has to be looked at again."""
        ...


class FixedSpec:
    """One for everybody."""

    def __init__(self, spec: RewardSpec) -> None:
        self._declared = Declared(spec)

    def of(self, environment: str, agent: str) -> Declared:
        """The one."""
        return self._declared

    def fingerprint(self) -> int:
        """It never changes."""
        return 0


class TableSpecs(FollowedTables):
    """Follows the topic; close it, or use it as a context manager."""

    def __init__(self, settings: Settings) -> None:
        """Begins to follow; ask only after `wait`.

        Raises:
            SettingsError: the specification of the settings cannot be read.
        """
        self._default = Declared(load_spec(settings.label.reward_spec))
        # A version that cannot be read is refused: the one before it goes on ruling (`store` writes its dead letter).
        super().__init__(settings, REWARD_SPECS, refused=unreadable)
        [self._table] = self._tables
        self._declared: dict[str, Declared] = {}
        self._known: dict[tuple[str, str], Declared] = {}
        self._fingerprint = 0
        self._watch(self._table)

    def of(self, environment: str, agent: str) -> Declared:
        """What rules the trajectories of an agent in an environment."""
        self._refresh()
        key = environment, agent
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = closest(self._declared.values(), environment, agent) or self._default
        return found

    def fingerprint(self) -> int:
        """Names all specifications as of now."""
        self._refresh()
        return self._fingerprint

    def _refresh(self) -> None:
        if not self._news():
            return
        records = self._table.items()
        self._declared = {name: declared_by(record) for name, record in records.items()}
        self._known.clear()
        ruling = sorted(declared.identity for declared in self._declared.values())
        if self._default.spec != RewardSpec():
            ruling.append(self._default.identity)
        self._fingerprint = fingerprint_of(ruling)


def closest(declared: Iterable[Declared], environment: str, agent: str) -> Declared | None:
    """The specification that names agent and environment the closest: the agent first, then the environment.

    Closer is the pattern with more characters beside its wildcards; of two that are equally close the one whose name
    comes first.
    """
    fitting = [(fit, one) for one in declared if (fit := one.spec.fit(environment, agent)) is not None]
    if not fitting:
        return None
    best = max(fit for fit, _ in fitting)
    return min((one for fit, one in fitting if fit == best), key=lambda one: one.spec.name)


def declared_by(record: Mapping[str, Any]) -> Declared:
    """The specification of a record of the topic.

    Raises:
        SettingsError: this version cannot read it.
    """
    try:
        return Declared(parse_spec(record["document"]), record["version"])
    except SpecificationError as error:
        raise SettingsError(
            f"version {record['version']} of reward specification '{record['name']}' cannot be read: {error}; put up "
            "one that can, with `stepstream rewards put FILE`"
        ) from None


def unreadable(record: Mapping[str, Any]) -> str | None:
    """Why a record of the topic is no specification that rules anything; None: it is one."""
    try:
        declared_by(record)
    except SettingsError as error:
        return str(error)
    return None


def next_version(records: Mapping[str, Any], name: str) -> int:
    """Number of the next version of a specification."""
    known = records.get(name)
    return 1 if known is None else int(known["version"]) + 1
