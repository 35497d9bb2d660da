"""What the gateway remembers of running trajectories, so that a step stores only what is new."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from stepstream.topics.events import Message


@dataclass(slots=True)
class Context:
    """The newest recorded step of a trajectory: its prompt and response, whole."""

    step_index: int
    messages: list[Message]
    tokens: bytes
    """Packed token ids; empty below fidelity `token`."""


@dataclass(slots=True)
class _Trajectory:
    next_index: int = 0
    context: Context | None = field(default=None)


class Contexts:
    """The most recently used trajectories, up to a limit; one that was forgotten stores its next prompt whole."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._trajectories: OrderedDict[str, _Trajectory] = OrderedDict()

    def begin(self, trajectory_id: str, step_index: int | None) -> int:
        """The index of a step that begins now: the caller's, else the next one of its trajectory."""
        trajectory = self._trajectories.get(trajectory_id)
        if trajectory is None:
            trajectory = self._trajectories[trajectory_id] = _Trajectory()
            if len(self._trajectories) > self._limit:
                self._trajectories.popitem(last=False)
        else:
            self._trajectories.move_to_end(trajectory_id)
        index = trajectory.next_index if step_index is None else step_index
        trajectory.next_index = max(trajectory.next_index, index + 1)
        return index

    def give_back(self, trajectory_id: str, step_index: int) -> None:
        """Frees the index of a step that came to nothing, so that the next call gets it."""
        trajectory = self._trajectories.get(trajectory_id)
        if trajectory is not None and trajectory.next_index == step_index + 1:
            trajectory.next_index = step_index

    def before(self, trajectory_id: str, step_index: int) -> Context | None:
        """The step before this one, if it is the one that is remembered."""
        trajectory = self._trajectories.get(trajectory_id)
        context = trajectory.context if trajectory is not None else None
        return context if context is not None and context.step_index == step_index - 1 else None

    def remember(self, trajectory_id: str, context: Context) -> None:
        """Keeps a recorded step, unless a later one of its trajectory is known already."""
        trajectory = self._trajectories.get(trajectory_id)
        if trajectory is None:
            return
        if trajectory.context is None or trajectory.context.step_index <= context.step_index:
            trajectory.context = context

    def __len__(self) -> int:
        return len(self._trajectories)


def shared_messages(prompt: Sequence[Message], before: Sequence[Message]) -> int:
    """How many leading messages of `prompt` are exactly those of `before`."""
    for index, (new, old) in enumerate(zip(prompt, before, strict=False)):
        if new != old:
            return index
    return min(len(prompt), len(before))
