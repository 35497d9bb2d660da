"""Remember the step of each span, for stable step indices and for evaluations that arrive later.

A tenant sees its own only: trace and response ids are chosen by senders, and tenants may take part in one trace.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stepstream.services.gateway.context.carried_calls import Carried
from stepstream.topics.events import Consent


@dataclass(slots=True)
class Trajectory:
    """The published part of a trajectory."""

    next_index: int = 0
    messages: Sequence[bytes] = ()
    """Prompt and response of its newest step, each message encoded as on the topic."""
    tools_hash: int = 0
    """Hash of the tools available in its newest step; 0: none known."""


class Owner(NamedTuple):
    """The tenant and person of a step, and its consent."""

    tenant: str
    user: str | None
    consent: Consent


StepPosition = tuple[str, int, Owner]
"""Trajectory, index and owner of a step."""


class Subject(NamedTuple):
    """Subject of an evaluation: a trajectory, a step of it, or a tool call of the step."""

    trajectory_id: str
    step_index: int | None = None
    tool_call_id: str | None = None
    owner: Owner | None = None
    """None: unknown."""


class SpanIndex:
    """The most recent trajectories and spans, up to a limit each."""

    def __init__(self, limit: int, count: str | None = None, carried: Carried | None = None) -> None:
        """Begin empty.

        Args:
            limit: number of trajectories, and a fourth of the number of spans.
            count: name of the count that this index keeps, as in `Step.counted_by`.
            carried: knows the steps of calls that the gateway carried itself; None: it carries none.
        """
        self._carried = carried
        self.count = count
        self._limit = limit
        self._trajectories: OrderedDict[tuple[str, str], Trajectory] = OrderedDict()
        self._spans: OrderedDict[tuple[str, str, str], StepPosition] = OrderedDict()
        self._subjects: OrderedDict[tuple[str, str, str], Subject] = OrderedDict()
        self._responses: OrderedDict[tuple[str, str], StepPosition | None] = OrderedDict()
        """None: several steps have the id, as a constant of a server."""

    def trajectory(self, tenant: str, trajectory_id: str) -> Trajectory | None:
        """Return a trajectory; None: new or evicted."""
        trajectory = self._trajectories.get((tenant, trajectory_id))
        if trajectory is not None:
            self._trajectories.move_to_end((tenant, trajectory_id))
        return trajectory

    def begin(self, tenant: str, trajectory_id: str, next_index: int) -> Trajectory:
        """Add a trajectory whose next step gets `next_index`."""
        trajectory = self._trajectories[tenant, trajectory_id] = Trajectory(next_index)
        if len(self._trajectories) > self._limit:
            self._trajectories.popitem(last=False)
        return trajectory

    def add_step(self, trace_id: str, span_id: str, position: StepPosition, response_id: str) -> None:
        """Add the step of a span, also by the provider's id of its response (empty: none)."""
        tenant = position[2].tenant
        self._spans[tenant, trace_id, span_id] = position
        if len(self._spans) > 4 * self._limit:
            self._spans.popitem(last=False)
        if response_id:
            known = self._responses.get((tenant, response_id), position)
            is_same = known is not None and known[:2] == position[:2]
            self._responses[tenant, response_id] = position if is_same else None
            if len(self._responses) > 4 * self._limit:
                self._responses.popitem(last=False)

    def has_carried_steps(self) -> bool:
        """Return True if `carried_step` may find one."""
        return self._carried is not None and not self._carried.is_empty()

    def carried_step(self, tenant: str, call_ids: Sequence[str]) -> tuple[str, int] | None:
        """Return the trajectory and index of the step that the gateway recorded of a call; None: there is none."""
        return self._carried.find(tenant, call_ids) if self._carried is not None else None

    def add_subject(self, tenant: str, trace_id: str, span_id: str, subject: Subject) -> None:
        """Add the subject of a span that is no step, or of a whole trace (empty `span_id`)."""
        self._subjects[tenant, trace_id, span_id] = subject
        if len(self._subjects) > 4 * self._limit:
            self._subjects.popitem(last=False)

    def step_of(self, tenant: str, trace_id: str, span_id: str) -> StepPosition | None:
        """Return the step of a span."""
        return self._spans.get((tenant, trace_id, span_id))

    def subject_of(self, tenant: str, trace_id: str, span_id: str) -> Subject | None:
        """Return the subject of a span, or of its trace (empty `span_id`)."""
        key = tenant, trace_id, span_id
        return _subject(self._spans.get(key)) or self._subjects.get(key)

    def subject_of_response(self, tenant: str, response_id: str) -> Subject | None:
        """Return the step of a model's response, by the provider's id of it; None: unknown, or not unique."""
        return _subject(self._responses.get((tenant, response_id)))


def _subject(position: StepPosition | None) -> Subject | None:
    return Subject(position[0], position[1], owner=position[2]) if position is not None else None
