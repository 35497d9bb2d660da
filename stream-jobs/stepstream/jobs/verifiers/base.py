"""What a verifier is: a case in, verdicts out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from stepstream.topics.events import Message

Source = Literal["verifier", "test", "judge", "prm"]

"""Before the name of feedback that must not count."""


class Unavailable(Exception):
    """The verifier cannot work now (its model is away, its sandbox cannot start): the case is tried again."""


class Unanswered(Exception):
    """The verifier gave no verdict that can be read, and would not if asked again; the message says why."""


class Unusable(Exception):
    """The case can never be verified; the message says why, without what the agent wrote."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One step as a verifier of whole trajectories sees it."""

    step_index: int
    conversation: Sequence[Message]
    """The whole prompt and, last, the response."""


@dataclass(frozen=True, slots=True)
class Case:
    """One piece of work to be judged."""

    trajectory_id: str
    task_id: str
    observed: str
    """What the verification reads: a response, an argument or result of a tool; empty where there is none."""
    expected: Mapping[str, Any] = field(default_factory=dict)
    """What is known about the task, from the file of expected values; empty: nothing."""
    asked: str = ""
    """What the user asked for."""
    turns: Sequence[Turn] = ()
    """The steps, in order of their index."""
    step_index: int | None = None
    """The step that it is about; None: the whole trajectory."""
    read_in: int | None = None
    """The step in which `observed` stands; None: nothing is observed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier found."""

    value: float
    """Between 0 (wrong) and 1 (right), unless the verifier's documentation says otherwise."""
    category: str | None = None
    """One word of a small set."""
    comment: str | None = None
    """Why, in a sentence."""
    step_index: int | None = None
    """The step that it is about, where a verifier judges steps of a whole trajectory; None: what the case is about."""
    shadow: bool = False
    """Measured only: it is published under another name, so that no reward can count it."""


class Verifier(Protocol):
    """Judges cases. Used from several threads at once."""

    @property
    def source(self) -> Source:
        """The source of its feedback."""
        ...

    @property
    def reads_trajectory(self) -> bool:
        """Whether a case must hold the whole trajectory; then it judges each step by itself."""
        ...

    def verify(self, case: Case) -> Sequence[Verdict]:
        """Judges one case; blocks while it does.

        Raises:
            Unavailable: it cannot work now.
            Unanswered: it gave nothing that can be read.
            Unusable: the case can never be judged.
        """
        ...
