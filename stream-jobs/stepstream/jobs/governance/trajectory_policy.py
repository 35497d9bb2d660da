"""Describe the decisions about a trajectory that its own events do not contain: policy, consent, erasure. Pure.

`policy_tables.py` reads them from compacted topics; the `label` job applies them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from stepstream.topics.events import Consent


@dataclass(frozen=True, slots=True)
class TrajectoryPolicy:
    """The decisions about one trajectory. The defaults allow everything and request nothing."""

    consent: Consent = "train"
    """Permitted use, also of stored records; the consent in the events limits it further."""
    erased: bool = False
    """True if a person of the trajectory was erased."""
    keep_out: tuple[str, ...] = ("empty",)
    """Quality flags that keep the trajectory out of training; the built-in policy keeps out only empty ones."""
    languages: tuple[str, ...] = ()
    """Languages (ISO 639-1) in which responses should be written; empty: any."""
    signs: bool = False
    """True if the label needs a signature, because near-duplicates are capped."""

    def inputs(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults, for the digest of a label's inputs.

        Digests on the log contain the field names: do not rename the fields.
        """
        default = TrajectoryPolicy()
        names = ("consent", "keep_out", "languages", "signs")
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(default, name)}


class DecisionChange(NamedTuple):
    """Consent that was given or withdrawn, or an erasure."""

    tenant: str | None
    """None: unknown; it may concern every trajectory."""
    user: str | None = None
    """Person; None: all of the tenant."""
    subject: str | None = None
    """Name of the person on `erasures`, in place of `user`; None: not an erasure."""


class TrajectoryPolicies(Protocol):
    """Looks up decisions about trajectories. Call it from the fold's thread at any time."""

    def of(self, tenant: str, agent: str, users: Sequence[str], started_us: int) -> TrajectoryPolicy:
        """Return the decisions about a trajectory that began at `started_us`."""
        ...

    def fingerprint(self) -> int:
        """Return a hash of all consents and erasures; when it changes, stored trajectories must be checked again."""
        ...

    def changes_since(self, cursor: int | None) -> tuple[int, list[DecisionChange] | None]:
        """Return a cursor of the present, and the changes since an earlier one; None: unknown, they may concern all."""
        ...

    def subject_of(self, tenant: str, user: str) -> str:
        """Return a person's name on `erasures`."""
        ...


class NoPolicies:
    """Allows everything."""

    def of(self, tenant: str, agent: str, users: Sequence[str], started_us: int) -> TrajectoryPolicy:
        """Return the defaults."""
        return TrajectoryPolicy()

    def fingerprint(self) -> int:
        """Return 0, as for empty tables."""
        return 0

    def changes_since(self, cursor: int | None) -> tuple[int, list[DecisionChange] | None]:
        """Return no changes."""
        return 0, []

    def subject_of(self, tenant: str, user: str) -> str:
        """Return no name: nobody was erased."""
        return ""
