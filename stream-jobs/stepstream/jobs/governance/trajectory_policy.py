"""What stands about a trajectory beside its own events: its tenant's policy, consent, erasure. Pure.

`rules.py` reads it from the compacted topics; here is what `label` makes of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stepstream.topics.events import Consent


@dataclass(frozen=True, slots=True)
class TrajectoryPolicy:
    """The ordinary case is the default: everything allowed, nothing asked for."""

    consent: Consent = "train"
    """What is allowed from now on, for what is stored too; the events' own consent counts beside it."""
    erased: bool = False
    """Whether somebody in it was erased."""
    keep_out: tuple[str, ...] = ("empty",)
    """Reasons of quality that the policy keeps out of training; the built-in one: what holds nothing at all."""
    languages: tuple[str, ...] = ()
    """Languages that responses should be written in; empty: any."""
    signs: bool = False
    """Whether near-duplicates are capped, so that a signature is wanted."""

    def inputs(self) -> dict[str, Any]:
        """What differs from the ordinary case, for the digest of a label's inputs."""
        ordinary = TrajectoryPolicy()
        names = ("consent", "keep_out", "languages", "signs")
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(ordinary, name)}


class TrajectoryPolicies(Protocol):
    """Where a fold asks what stands. Safe to ask from the fold's thread at any time."""

    def standing(self, tenant: str, agent: str, users: Sequence[str], started_us: int) -> TrajectoryPolicy:
        """What stands about a trajectory that began at `started_us`."""
        ...

    def fingerprint(self) -> int:
        """Names all consent and all erasures as of now; another number: what is stored has to be looked at again."""
        ...


class NoPolicies:
    """Everything is allowed: nobody has said anything."""

    def standing(self, tenant: str, agent: str, users: Sequence[str], started_us: int) -> TrajectoryPolicy:
        """The ordinary case."""
        return TrajectoryPolicy()

    def fingerprint(self) -> int:
        """As if the tables were empty."""
        return 0
