"""Which step of which trajectory each span became: what makes indices stable while a gateway lives."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Trajectory:
    """A trajectory as far as it was published."""

    next_index: int = 0
    said: Sequence[bytes] = ()
    """Prompt and response of its newest step, each message as it is on the log."""


class Places:
    """The most recently used trajectories and spans, up to a limit each."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._trajectories: OrderedDict[tuple[str, str], Trajectory] = OrderedDict()
        self._spans: OrderedDict[tuple[str, str], tuple[str, int]] = OrderedDict()
        self._responses: OrderedDict[str, tuple[str, int]] = OrderedDict()

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

    def put(self, trace_id: str, span_id: str, place: tuple[str, int], response_id: str) -> None:
        """Remembers which step a span became."""
        self._spans[trace_id, span_id] = place
        if len(self._spans) > 4 * self._limit:
            self._spans.popitem(last=False)
        if response_id:
            self._responses[response_id] = place
            if len(self._responses) > 4 * self._limit:
                self._responses.popitem(last=False)

    def of_span(self, trace_id: str, span_id: str) -> tuple[str, int] | None:
        """Trajectory and step of a span."""
        return self._spans.get((trace_id, span_id))

    def of_response(self, response_id: str) -> tuple[str, int] | None:
        """Trajectory and step of a model's response, by the id that its provider gave it."""
        return self._responses.get(response_id)
