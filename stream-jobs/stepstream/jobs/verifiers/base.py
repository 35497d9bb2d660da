"""Define the interface of a verifier: a case in, verdicts out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from stepstream.topics.events import Message

Source = Literal["verifier", "test", "judge", "prm"]


class Unavailable(Exception):
    """The verifier does not work now (its model or sandbox is unavailable): the case is retried."""


class NoVerdict(Exception):
    """The verifier gave no verdict that can be parsed, and a retry would not help; the message gives the reason."""


class UnverifiableCase(Exception):
    """The case can never be verified; the message gives the reason, without text of the agent."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Step with its conversation, for a verifier of whole trajectories."""

    step_index: int
    conversation: Sequence[Message]
    """Whole prompt, followed by the response."""


@dataclass(frozen=True, slots=True)
class Case:
    """Piece of work to verify."""

    trajectory_id: str
    task_id: str
    observed: str
    """Text to verify: a response, or an argument or result of a tool; empty: none."""
    expected: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the task in the file of expected values; empty: none."""
    request: str = ""
    """User's request."""
    turns: Sequence[Turn] = ()
    """Steps in order of their index."""
    step_index: int | None = None
    """Index of the step to judge; None: the whole trajectory."""
    observed_step_index: int | None = None
    """Index of the step with `observed`; None: nothing is observed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict of a verifier."""

    value: float
    """From 0 (wrong) to 1 (right), unless the verifier's documentation differs."""
    category: str | None = None
    """One word of a small set."""
    comment: str | None = None
    """Reason, in a sentence."""
    step_index: int | None = None
    """Index of the judged step, if the verifier judges the steps of a trajectory; None: the subject of the case."""
    shadow: bool = False
    """True if it is published under another name, so that no reward can count it."""


class Verifier(Protocol):
    """Judges cases. Called by several threads at once."""

    @property
    def source(self) -> Source:
        """Source of its feedback."""
        ...

    @property
    def reads_trajectory(self) -> bool:
        """True if a case must contain the whole trajectory; then it judges each step."""
        ...

    def verify(self, case: Case) -> Sequence[Verdict]:
        """Judge one case; may block.

        Raises:
            Unavailable: it does not work now.
            NoVerdict: it gave nothing that can be parsed.
            UnverifiableCase: the case can never be verified.
        """
        ...
