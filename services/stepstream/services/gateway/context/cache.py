"""What the gateway remembers of running trajectories: trees of steps, so that each stores only what is new. Pure.

Every message has a link: a digest of it and of all messages before it, so that one link names a whole conversation up
to there. The steps of a trajectory are found again by the links of what they asked and were answered. A call that does
not say whose it is is placed by them too: it goes on where its messages repeat a recorded response.
"""

from collections import OrderedDict, deque
from collections.abc import Callable

from stepstream.services.gateway.context.tree import (
    NOTHING,
    TRAJECTORY_BYTES,
    Indices,
    Link,
    Node,
    Prompt,
    Scope,
    Shared,
    StepPosition,
    Trajectory,
    link,
)
from stepstream.topics.events import Message

PACKED_STEPS = 2
"""Steps of a trajectory whose tokens are kept; of older ones their number and digest are."""
EQUAL_ENDINGS = 256
"""Conversations without a name that are equal so far, and are told apart by which was gone on from: the newest ones."""
_LARGEST_SHARE = 4
# What they take in memory, roughly, in bytes: to keep a bound, not to account.
_STEP, _LINK = 500, 150


class ContextCache:
    """The most recently used trajectories, up to a limit; one that was forgotten stores its next prompt whole."""

    def __init__(self, limit: int, limit_bytes: int, new_id: Callable[[], str], indices: Indices) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._new_id = new_id
        self._indices = indices
        self._size = 0
        self._trajectories: OrderedDict[tuple[str, str], Trajectory] = OrderedDict()
        self._endings: dict[tuple[Scope, Link], deque[Node]] = {}
        self._responses: dict[tuple[str, str], Node] = {}

    def __len__(self) -> int:
        return len(self._trajectories)

    @property
    def size(self) -> int:
        """Bytes that are held, roughly."""
        return self._size

    def answered(self, tenant: str, response_id: str) -> Node | None:
        """The step that gave a response, by the response's id."""
        return self._responses.get((tenant, response_id))

    def newest(self, tenant: str, trajectory_id: str) -> int | None:
        """Index of a trajectory's newest step; None: nothing is remembered or kept of it."""
        trajectory = self._trajectories.get((tenant, trajectory_id))
        following = self._indices.of(tenant, trajectory_id).value if trajectory is None else trajectory.next_index
        return following - 1 if following else None

    def place(
        self, tenant: str, trajectory_id: str, step_index: int | None, prompt: Prompt, scope: Scope = ()
    ) -> StepPosition:
        """Where a call that begins now belongs.

        Args:
            tenant: whose names these are.
            trajectory_id: empty: the step before's where the prompt names one, else told by the content.
            step_index: the caller's; None: the next one of the trajectory. A trajectory that is not remembered goes
                on from the index that was kept of it; where none was, from the number of responses in the prompt.
            prompt: what is asked.
            scope: of a call without a trajectory.
        """
        continues = None
        if trajectory_id:
            trajectory = self._trajectories.get((tenant, trajectory_id)) or self._begin(tenant, trajectory_id, prompt)
        elif prompt.before is not None and self._knows(prompt.before.trajectory):
            trajectory = prompt.before.trajectory
        else:
            continues = self._ending(scope, prompt)
            if continues is None:
                trajectory = self._add(Trajectory(tenant, self._new_id(), scope=scope))
            else:
                trajectory = continues.trajectory
                continues.continued = True
        self._trajectories.move_to_end((tenant, trajectory.id))
        index = trajectory.next_index if step_index is None else step_index
        trajectory.next_index = max(trajectory.next_index, index + 1)
        if trajectory_id:  # no later call can mean one without a name, once it is forgotten
            if trajectory.kept is None:
                trajectory.kept = self._indices.of(tenant, trajectory_id)
            trajectory.kept.note(trajectory.next_index)
        return StepPosition(trajectory, index, continues)

    def branch(self, place: StepPosition, number: int) -> StepPosition:
        """Where an alternative of a call's answer belongs: it begins a trajectory whose name tells of which call.

        Args:
            place: of the call.
            number: of the alternative, from 1.
        """
        before = place.trajectory
        trajectory_id = f"{before.id}~{place.step_index}.{number}"
        trajectory = self._trajectories.get((before.tenant, trajectory_id))
        if trajectory is None:
            kept = self._indices.of(before.tenant, trajectory_id)
            kept.note(1)
            trajectory = self._add(Trajectory(before.tenant, trajectory_id, 1, kept, scope=before.scope))
        return StepPosition(trajectory, 0)

    @staticmethod
    def fail(place: StepPosition) -> None:
        """Notes that a call got no answer: it may be made again, and then belongs to the same place."""
        if place.continues is not None:
            place.continues.continued = False

    def shared(self, place: StepPosition, prompt: Prompt, packed: bytes) -> Shared:
        """What the step of the trajectory with the longest beginning in common holds; `packed`: the prompt's tokens."""
        node, messages, repeated = self._longest(place, prompt)
        if node is None:
            return NOTHING
        step = None if node.step_index == place.step_index - 1 else node.step_index
        return Shared(step, messages, node.shared_tokens(packed) if packed else 0, repeated, node.offer)

    def remember(
        self,
        place: StepPosition,
        prompt: Prompt,
        response: Message,
        packed: bytes,
        prompt_tokens: int,
        response_id: str = "",
        offer: int = 0,
    ) -> None:
        """Keeps a recorded step.

        Args:
            place: where it is.
            prompt: what was asked.
            response: what was answered.
            packed: token ids of prompt and response; empty below fidelity `token`.
            prompt_tokens: how many of them are the prompt's.
            response_id: the upstream's name of the response, where later calls may go on from it.
            offer: hash of the tools on offer.
        """
        trajectory = place.trajectory
        if not self._knows(trajectory):
            return
        if trajectory.size > self._limit_bytes // _LARGEST_SHARE:
            self._shed(trajectory)  # a name that is used without end may not push out all others
        links, before = prompt.links, prompt.before
        end = link(links[-1] if links else before.end if before is not None else b"", response)
        first = before.first if before is not None else links[0] if links else None
        messages = (before.messages if before is not None else 0) + len(links) + 1
        node = Node(trajectory, place.step_index, messages, first, end, prompt_tokens, packed, offer)
        trajectory.nodes.append(node)
        size = _STEP + _LINK + len(packed) + self._add_links(node, links)
        if packed:
            trajectory.packed.append(node)
            if len(trajectory.packed) > PACKED_STEPS:
                size -= trajectory.packed.popleft().let_go()
        if trajectory.scope is not None:
            nodes = self._endings.setdefault((trajectory.scope, end), deque(maxlen=EQUAL_ENDINGS))
            nodes.append(node)
        if response_id:  # after a restart, a call may name the trajectory by it
            trajectory.kept = trajectory.kept or self._indices.of(trajectory.tenant, trajectory.id)
            trajectory.kept.note(trajectory.next_index)
            self._responses[trajectory.tenant, response_id] = node
            trajectory.response_ids.append(response_id)
        trajectory.size += size
        self._size += size
        self._forget()

    def _knows(self, trajectory: Trajectory) -> bool:
        return self._trajectories.get((trajectory.tenant, trajectory.id)) is trajectory

    def _begin(self, tenant: str, trajectory_id: str, prompt: Prompt) -> Trajectory:
        kept = self._indices.of(tenant, trajectory_id)
        first = kept.value
        if first is None:
            first = sum([message["role"] == "assistant" for message in prompt.messages])
        return self._add(Trajectory(tenant, trajectory_id, first, kept))

    def _add(self, trajectory: Trajectory) -> Trajectory:
        self._trajectories[trajectory.tenant, trajectory.id] = trajectory
        self._size += trajectory.size
        self._forget()
        return trajectory

    def _ending(self, scope: Scope, prompt: Prompt) -> Node | None:
        """The step whose response ends the longest known beginning; of equal ones the newest not yet gone on from."""
        for index in range(len(prompt.messages) - 1, -1, -1):
            if prompt.messages[index]["role"] == "assistant":
                nodes = self._endings.get((scope, prompt.links[index]))
                if nodes:
                    return next((node for node in reversed(nodes) if not node.continued), nodes[-1])
        return None

    @staticmethod
    def _longest(place: StepPosition, prompt: Prompt) -> tuple[Node | None, int, int]:
        before = prompt.before
        asked_before = before.messages if before is not None else 0
        known = place.trajectory.links
        for index in range(len(prompt.links) - 1, -1, -1):
            node = known.get(prompt.links[index])
            if node is not None and node.step_index < place.step_index:
                return node, asked_before + index + 1, index + 1
        if before is not None and before.trajectory is place.trajectory and before.step_index < place.step_index:
            return before, before.messages, 0
        return None, 0, 0

    @staticmethod
    def _add_links(node: Node, links: list[Link]) -> int:
        known = node.trajectory.links
        size = 0
        for here in reversed(links):
            old = known.get(here)
            if old is not None and old.step_index < node.step_index:
                break  # and so are all shorter ones
            known[here] = node
            size += _LINK
        known[node.end] = node
        return size

    def _forget(self) -> None:
        """Forgets the least recently used trajectories beyond the limits."""
        while len(self._trajectories) > 1 and (len(self._trajectories) > self._limit or self._size > self._limit_bytes):
            _, trajectory = self._trajectories.popitem(last=False)
            self._shed(trajectory)
            self._size -= trajectory.size

    def _shed(self, trajectory: Trajectory) -> None:
        """Forgets the steps of a trajectory, but not their number."""
        for response_id in trajectory.response_ids:
            self._responses.pop((trajectory.tenant, response_id), None)
        if trajectory.scope is not None:
            for node in trajectory.nodes:
                key = trajectory.scope, node.end
                nodes = self._endings.get(key)
                if nodes is not None and node in nodes:
                    nodes.remove(node)
                    if not nodes:
                        del self._endings[key]
        for kept in (trajectory.response_ids, trajectory.nodes, trajectory.packed, trajectory.links):
            kept.clear()
        self._size -= trajectory.size - TRAJECTORY_BYTES
        trajectory.size = TRAJECTORY_BYTES
