"""Define the inputs and outputs of optimisers: `View`, `Budget`, `Proposal`, and the interfaces between them. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from stepstream.analytics.estimate import Estimate
from stepstream.topics.events import Harness, Message, Step


class BudgetSpent(Exception):
    """The budget does not cover the next calls."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Recorded trajectory with a known outcome. It is governed, and its consent permits training."""

    trajectory_id: str
    task_id: str
    """Empty: none was named."""
    family: str
    """Task family."""
    steps: tuple[Step, ...]
    """In order of their index, at least one. The first prompt is without the examples of a harness."""
    success: bool

    @property
    def prompt(self) -> list[Message]:
        """Messages of the first call."""
        return self.steps[0]["messages"]

    @property
    def request(self) -> str:
        """First user message."""
        return next((message["content"] for message in self.prompt if message["role"] == "user"), "")

    @property
    def task(self) -> str:
        """Attempts with the same one are never split between the parts of a view."""
        return self.task_id or sha256(self.request.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class View:
    """Recorded trajectories of one agent."""

    tenant: str
    agent: str
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """View in three parts without a common task."""

    sources: tuple[Attempt, ...]
    """May become examples, and are shown to a reflecting model."""
    choosing: tuple[Attempt, ...]
    """Choose among candidates."""
    confirming: tuple[Attempt, ...]
    """Measure the chosen candidate."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one search."""

    calls: int
    """Calls of models: answers to recorded prompts, and reflections."""
    tokens: int
    """Prompt and response tokens of all calls. The calls that run when it is spent may exceed it."""


class Meter:
    """Counts what a search spends."""

    def __init__(
        self, budget: Budget, calls: int = 0, tokens: int = 0, report: Callable[[int, int], None] | None = None
    ) -> None:
        """Count from what an interrupted search has spent; `report` gets calls and tokens before calls are made."""
        self._budget, self._report = budget, report
        self.calls, self.tokens = calls, tokens

    @property
    def calls_left(self) -> int:
        """Calls that the budget still covers."""
        return 0 if self.tokens >= self._budget.tokens else self._budget.calls - self.calls

    def take(self, calls: int) -> None:
        """Reserve calls.

        Raises:
            BudgetSpent: the budget does not cover them.
        """
        if calls > self.calls_left:
            raise BudgetSpent(
                f"spent {self.calls} of {self._budget.calls} calls and {self.tokens} of {self._budget.tokens} tokens"
            )
        self.calls += calls
        if self._report is not None:
            self._report(self.calls, self.tokens)


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of a candidate on one recorded prompt."""

    score: float | None
    """0 to 1; None: nothing can score the answer."""
    answer: Message | None
    """None: the request failed through the candidate's own fault, for example by its length."""
    feedback: str = ""
    """Reason for the score, for a reflecting model."""


class Answerer(Protocol):
    """Lets a candidate answer recorded prompts."""

    def __call__(self, harness: Harness, attempts: Sequence[Attempt], meter: Meter) -> list[Trial]:
        """Return one result an attempt, in order; blocks.

        Raises:
            BudgetSpent: the meter does not cover the calls.
            ReplayUnavailable: the models do not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class Proposal:
    """Harness that an optimiser proposes."""

    harness: Harness
    headroom: Estimate
    """Gain over the parent on prompts that did not choose it."""
    description: str
    """Difference from the parent, in words."""
    optimiser: str


class Optimiser(Protocol):
    """Searches for a better harness."""

    def propose(self, view: View, parent: Harness, budget: Budget) -> Sequence[Proposal]:
        """Return proposals whose headroom is confirmed, the best first; empty: none was found.

        Args:
            view: recorded trajectories.
            parent: harness to improve; version empty: the agent's own calls.
            budget: limits of the search.

        Raises:
            CannotSearch: the view or the budget is too small; the message has both sizes.
        """
        ...


class CannotSearch(Exception):
    """The search cannot give a result; the message gives the reason and the remedy."""


def split(view: View) -> Parts:
    """Split a view by task: half of the tasks are sources, a quarter chooses, a quarter confirms.

    The part follows from the hash of the task, so that later searches do not choose on what confirmed before.
    """
    parts: tuple[list[Attempt], ...] = ([], [], [])
    for attempt in sorted(view.attempts, key=lambda one: _hash(one.trajectory_id)):
        parts[max(0, _hash(attempt.task)[0] % 4 - 1)].append(attempt)
    return Parts(*map(tuple, parts))


def _hash(text: str) -> bytes:
    return sha256(text.encode()).digest()
