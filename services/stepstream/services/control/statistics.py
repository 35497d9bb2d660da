"""Define the rows that a snapshot is built from."""

from dataclasses import dataclass
from typing import NamedTuple

from stepstream.analytics.success import Attempts
from stepstream.analytics.tools import Calls
from stepstream.services.control.decide.records import FailureKind, Groups


class OutcomeRow(NamedTuple):
    """Trajectory that began after the time that a query names."""

    opened_us: int
    track: str
    harness_version: str
    success: bool | None
    """None: still open, or never judged, as `failure` says."""
    cluster: str
    """Its group, or the digest of its user and the day; empty: none."""
    family: str
    failure: FailureKind
    harmed: bool
    trajectory_id: str = ""
    """Empty: unknown."""
    weights_version: str = ""
    """Version of the weights; `7-8`: they changed while it was open."""


class BeforeRow(NamedTuple):
    """Success before the newest promotion, of one task family and with one harness version and version of weights."""

    family: str
    harness_version: str
    weights_version: str
    attempts: Attempts


class ToolRow(NamedTuple):
    """Calls of a tool by error class."""

    tool: str
    error: str
    before: Calls
    window: Calls


class Position(NamedTuple):
    """Position up to which the tables hold the log."""

    text: str
    """Offsets of `labeled-trajectories` by partition."""
    complete_until_us: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """Answers of the store about a scope."""

    position: Position
    outcomes: tuple[OutcomeRow, ...] = ()
    """In order of assignment."""
    before: tuple[BeforeRow, ...] = ()
    tools: tuple[ToolRow, ...] = ()
    groups: Groups | None = None
    served_families: frozenset[str] = frozenset()
    trained_families: frozenset[str] = frozenset()
    staleness_p95: float | None = None
    window_us: int = 0
    """Begin of groups, families and staleness."""
    tools_us: int = 0
    """Begin of the window of calls of tools; the time before it begins at `tools_before_us`."""
    tools_before_us: int = 0
    missing: tuple[str, ...] = ()
    """Tables that gave no answer."""
