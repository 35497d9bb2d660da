"""Change consents, the reward specification and the idle timeout of `label` under the schedules of `owner_model`."""

import random
from collections.abc import Sequence

from stepstream.config import LabelSettings, Settings
from stepstream.jobs.governance.trajectory_policy import DecisionChange, TrajectoryPolicy
from stepstream.jobs.label import Label
from stepstream.jobs.rewards.spec import Component, RewardSpec, VersionedSpec
from stepstream.topics.events import Consent

_USERS = ("user-a", "user-b", "user-c", "user-d")
_CONSENTS: tuple[Consent, ...] = ("train", "analyse", "none")
_SHORT_S, _ENDLESS_S = 1.0, 1e9
_OUTCOME = Component(name="outcome", feedback="outcome", outcome=True)
_SPECS = (
    VersionedSpec(RewardSpec(component=(_OUTCOME,)), 1),
    VersionedSpec(
        RewardSpec(component=(_OUTCOME, Component(name="checked", feedback="checked", required=True, wait_s=1.0))), 2
    ),
)


class Decisions:
    """Tables that the jobs follow. All processes have read the same rows, which may lag behind the topics."""

    def __init__(self) -> None:
        self._idle_timeouts_s = [_SHORT_S]
        """Settings of the processes that started or start; the last one is that of a process that starts now."""
        self._log: list[tuple[str, Consent] | VersionedSpec] = []
        self._read = 0

    def change(self, rng: random.Random) -> None:
        kind = rng.choice(["consent", "specification", "idle timeout"])
        if kind == "consent":
            self.set_consent(rng.choice(_USERS), rng.choice(_CONSENTS))
        elif kind == "specification":
            self._log.append(rng.choice(_SPECS))
        else:
            self._idle_timeouts_s.append(rng.choice([_SHORT_S, _ENDLESS_S]))

    def set_consent(self, user: str, consent: Consent) -> None:
        self._log.append((user, consent))

    def end_idle_changes(self) -> bool:
        """Give processes that start from now on a short idle timeout; return True if some may have another one."""
        changed = len(self._idle_timeouts_s) > 1
        self._idle_timeouts_s.append(_SHORT_S)
        return changed

    def read(self, rng: random.Random) -> None:
        """Let the tables follow their topics, up to a random row."""
        self._read = rng.randint(self._read, len(self._log))

    def read_all(self) -> None:
        self._read = len(self._log)

    def make_label(self, settings: Settings) -> Label:
        configured = LabelSettings(idle_timeout_s=self._idle_timeouts_s[-1])
        return Label(settings.model_copy(update={"label": configured}), _Policies(self), _Specs(self))

    @property
    def rows(self) -> list[tuple[str, Consent] | VersionedSpec]:
        """Rows that are read."""
        return self._log[: self._read]


class _Policies:
    """`TrajectoryPolicies` from the rows."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    def of(self, _tenant: str, _agent: str, users: Sequence[str], _started_us: int) -> TrajectoryPolicy:
        consents = dict(row for row in self._decisions.rows if not isinstance(row, VersionedSpec))
        return TrajectoryPolicy(consent=max((consents.get(user, "train") for user in users), key=_CONSENTS.index))

    def fingerprint(self) -> int:
        return self.changes_since(None)[0]

    def changes_since(self, cursor: int | None) -> tuple[int, list[DecisionChange] | None]:
        rows = [row for row in self._decisions.rows if not isinstance(row, VersionedSpec)]
        changes = [DecisionChange("default", user) for user, _ in rows]
        return len(changes), None if cursor is None else changes[cursor:]

    def subject_of(self, _tenant: str, user: str) -> str:
        return user


class _Specs:
    """`SpecLookup` from the rows."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    def of(self, _environment: str, _agent: str) -> VersionedSpec:
        specs = [row for row in self._decisions.rows if isinstance(row, VersionedSpec)]
        return specs[-1] if specs else _SPECS[0]

    def fingerprint(self) -> int:
        return sum(isinstance(row, VersionedSpec) for row in self._decisions.rows)
