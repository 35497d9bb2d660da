"""What each span became: what makes indices stable while a gateway lives, and late evaluations find their step."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stepstream.topics.events import Consent


@dataclass(slots=True)
class Trajectory:
    """A trajectory as far as it was published."""

    next_index: int = 0
    said: Sequence[bytes] = ()
    """Prompt and response of its newest step, each message as it is on the log."""
    offer: int = 0
    """Hash of the tools that its newest step was offered; 0: none that are known."""


class Whose(NamedTuple):
    """Whose step it was, and what may be done with it."""

    tenant: str
    user: str | None
    consent: Consent


SpanPosition = tuple[str, int, Whose]
"""Trajectory and index of a step, and whose it is."""


class About(NamedTuple):
    """What an evaluation is about: a trajectory, a step of it, or a tool call of the step."""

    trajectory_id: str
    step_index: int | None = None
    tool_call_id: str | None = None
    whose: Whose | None = None
    """None: nobody was named."""


class SpanIndex:
    """The most recently used trajectories and spans, up to a limit each."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._trajectories: OrderedDict[tuple[str, str], Trajectory] = OrderedDict()
        self._spans: OrderedDict[tuple[str, str], SpanPosition] = OrderedDict()
        self._others: OrderedDict[tuple[str, str], About] = OrderedDict()
        self._responses: OrderedDict[tuple[str, str], SpanPosition] = OrderedDict()

    def trajectory(self, tenant: str, trajectory_id: str) -> Trajectory | None:
        """A trajectory that is known; None for a new or a forgotten one."""
        found = self._trajectories.get((tenant, trajectory_id))
        if found is not None:
            self._trajectories.move_to_end((tenant, trajectory_id))
        return found

    def begin(self, tenant: str, trajectory_id: str, next_index: int) -> Trajectory:
        """Remembers a trajectory from now on."""
        made = self._trajectories[tenant, trajectory_id] = Trajectory(next_index)
        if len(self._trajectories) > self._limit:
            self._trajectories.popitem(last=False)
        return made

    def put(self, trace_id: str, span_id: str, place: SpanPosition, response_id: str) -> None:
        """Remembers which step a span became, and the provider's id of its response."""
        self._spans[trace_id, span_id] = place
        if len(self._spans) > 4 * self._limit:
            self._spans.popitem(last=False)
        if response_id:
            self._responses[place[2].tenant, response_id] = place
            if len(self._responses) > 4 * self._limit:
                self._responses.popitem(last=False)

    def note(self, trace_id: str, span_id: str, about: About) -> None:
        """Remembers what a span that is no step stands for; without a span, its trace."""
        self._others[trace_id, span_id] = about
        if len(self._others) > 4 * self._limit:
            self._others.popitem(last=False)

    def of_span(self, trace_id: str, span_id: str) -> SpanPosition | None:
        """The step that a span became."""
        return self._spans.get((trace_id, span_id))

    def about(self, trace_id: str, span_id: str) -> About | None:
        """What a span, or without one its trace, stands for."""
        return _about(self._spans.get((trace_id, span_id))) or self._others.get((trace_id, span_id))

    def of_response(self, tenant: str, response_id: str) -> About | None:
        """The step of a model's response, by the id that its provider gave it."""
        return _about(self._responses.get((tenant, response_id)))


def _about(place: SpanPosition | None) -> About | None:
    return About(place[0], place[1], whose=place[2]) if place is not None else None
