"""Find each call's position in its trajectory, and the part of its prompt that an earlier step stores already. Pure.

Steps are found by the prefix hashes of their prompts and responses. `placement.py` decides which trajectory a call
belongs to, by the evidence that is collected here.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from stepstream.services.gateway.context.packed_tokens import WIDTH
from stepstream.services.gateway.context.placement import Evidence, decide
from stepstream.services.gateway.context.traces import TraceIndex, made_calls
from stepstream.services.gateway.context.tree import (
    NOTHING_SHARED,
    TRAJECTORY_BYTES,
    CachedStep,
    CallerScope,
    Endings,
    PrefixHash,
    Prompt,
    SharedPrefix,
    StepIndices,
    StepPosition,
    Trajectory,
    prefix_hash,
)
from stepstream.topics.events import Message

STEPS_WITH_TOKENS = 2
"""Newest steps of a trajectory whose tokens stay in memory; of older ones only counts and digests do."""
EQUAL_ENDINGS = 256
"""Newest steps remembered per equal conversation without a name; `continued` distinguishes them."""
_LARGEST_SHARE = 4
"""A trajectory larger than this fraction of the cache loses its steps."""
# Approximate memory in bytes: these bound the cache and account for nothing.
_STEP, _HASH = 500, 150


class ContextCache:
    """The most recently used trajectories. A trajectory that was evicted stores its next prompt whole."""

    def __init__(
        self, limit: int, limit_bytes: int, new_id: Callable[[], str], indices: StepIndices, endings: Endings
    ) -> None:
        """Begin empty.

        Args:
            limit: number of trajectories.
            limit_bytes: their approximate memory.
            new_id: makes the id of a trajectory that no call names.
            indices: assigns step indices, beyond eviction and restart.
            endings: finds trajectories that another process recorded.
        """
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._new_id = new_id
        self._indices = indices
        self._shared_endings = endings
        self._traces = TraceIndex()
        self._size = 0
        self._trajectories: OrderedDict[tuple[str, str], Trajectory] = OrderedDict()
        self._endings: dict[tuple[CallerScope, PrefixHash], deque[CachedStep]] = {}
        self._responses: dict[tuple[str, str], CachedStep] = {}

    def __len__(self) -> int:
        return len(self._trajectories)

    @property
    def size(self) -> int:
        """Approximate bytes in use."""
        return self._size

    def step_of_response(self, tenant: str, response_id: str) -> CachedStep | None:
        """Return the step that gave a response; None: unknown."""
        return self._responses.get((tenant, response_id))

    def harness_of(self, tenant: str, trajectory_id: str) -> str | None:
        """Return the harness version of a trajectory as `Trajectory.harness` has it; None: unknown."""
        trajectory = self._trajectories.get((tenant, trajectory_id))
        return None if trajectory is None else trajectory.harness

    def newest_index(self, tenant: str, trajectory_id: str) -> int | None:
        """Return the index of a trajectory's newest step; None: neither cached nor stored."""
        trajectory = self._trajectories.get((tenant, trajectory_id))
        known = 0 if trajectory is None else trajectory.next_index
        following = max(known, self._indices.next_of(tenant, trajectory_id) or 0)
        return following - 1 if following else None

    def place(
        self,
        tenant: str,
        trajectory_id: str,
        step_index: int | None,
        prompt: Prompt,
        scope: CallerScope = (),
        trace: str = "",
    ) -> StepPosition:
        """Choose and reserve the position of a call that begins now.

        Args:
            tenant: tenant of the trajectory.
            trajectory_id: empty: `placement.decide` finds it.
            step_index: the caller's; None: the trajectory's next. A trajectory that is not cached continues at its
                stored index, or at the number of responses in the prompt if that is greater.
            prompt: messages of the call.
            scope: limits the search by content.
            trace: trace id of the call; empty: none.
        """
        continues, evidence = self._evidence(tenant, trajectory_id, prompt, scope, trace)
        chosen, _ = decide(evidence)
        trajectory = self._trajectories.get((tenant, chosen)) if chosen else None
        if trajectory is not None:
            self._trajectories.move_to_end((tenant, chosen))
        elif not chosen or evidence.trace:
            trajectory = self._begin(tenant, chosen, prompt, scope, trace)
        else:
            trajectory = self._load(tenant, chosen, prompt, scope if evidence.conversation else None)
        if continues is not None:
            continues.continued = True
        if step_index is None:
            index = self._indices.reserve(tenant, trajectory.id, _least_index(trajectory, prompt))
        else:
            index = step_index
            self._indices.advance(tenant, trajectory.id, index + 1)
        trajectory.next_index = max(trajectory.next_index, index + 1)
        return StepPosition(trajectory, index, self._indices.name if step_index is None else None, continues)

    def _evidence(
        self, tenant: str, trajectory_id: str, prompt: Prompt, scope: CallerScope, trace: str
    ) -> tuple[CachedStep | None, Evidence]:
        """Return the evidence up to the first that decides, and the step that the call continues by content."""
        if trajectory_id:
            return None, Evidence(name=trajectory_id)
        if prompt.previous is not None:
            return None, Evidence(response=prompt.previous.trajectory.id)
        step, conversation = self._continued_step(scope, prompt, trace)
        if conversation or not trace:
            return step, Evidence(conversation=conversation)
        traced = self._traces.find(tenant, trace, scope, prompt)
        return None, Evidence(traced=traced) if traced else Evidence(trace=self._name_in_trace(tenant, trace))

    def _name_in_trace(self, tenant: str, trace: str) -> str:
        """Return the id of a trajectory that begins in a trace: the trace's, unless another one has it."""
        # The mark shows it to other processes of the folder.
        is_first = (tenant, trace) not in self._trajectories and not self._indices.reserve(tenant, f"\0{trace}", 0)
        return trace if is_first else self._new_id()

    def _begin(self, tenant: str, trajectory_id: str, prompt: Prompt, scope: CallerScope, trace: str) -> Trajectory:
        # Another gateway may have recorded the beginning of a trajectory with the trace's id.
        first = _count_responses(prompt) if trajectory_id and trajectory_id == trace else 0
        trajectory = Trajectory(tenant, trajectory_id or self._new_id(), first, scope, trace)
        trajectory.first_prompt = prompt.prefix_hashes[-1] if prompt.prefix_hashes else b""
        if trace:
            self._traces.add(trajectory)
        return self._add(trajectory)

    def branch(self, position: StepPosition, number: int) -> StepPosition:
        """Return the position of an alternative answer: step 0 of a trajectory named after the call.

        Args:
            position: position of the call.
            number: number of the alternative, from 1.
        """
        origin = position.trajectory
        trajectory_id = f"{origin.id}~{position.step_index}.{number}"
        trajectory = self._trajectories.get((origin.tenant, trajectory_id))
        if trajectory is None:
            self._indices.advance(origin.tenant, trajectory_id, 1)
            trajectory = self._add(Trajectory(origin.tenant, trajectory_id, 1, origin.scope))
            trajectory.worker, trajectory.track = origin.worker, origin.track
        return StepPosition(trajectory, 0)

    @staticmethod
    def recorded_prefix(position: StepPosition, prompt: Prompt, model: str) -> CachedStep | None:
        """Return the longest earlier step whose whole conversation the prompt repeats and whose tokens are in memory.

        None: there is none, or another model answered it.
        """
        longest = None
        for step in position.trajectory.steps_with_tokens:
            end = step.messages - 1
            if (
                end + 1 < len(prompt.prefix_hashes)
                and prompt.prefix_hashes[end] == step.end_hash
                and prompt.previous is None
                and step.step_index < position.step_index
                and step.model == model
                and (longest is None or longest.messages < step.messages)
            ):
                longest = step
        return longest

    def extend(
        self,
        position: StepPosition,
        prompt: Prompt,
        response: Message | None,
        packed_prompt: bytes = b"",
        packed_response: bytes = b"",
        response_id: str = "",
        tools_hash: int = 0,
        model: str = "",
    ) -> SharedPrefix:
        """Add a step to its trajectory; return the part of its prompt that an earlier step stores.

        That is the step with the longest common prefix among the trajectory's earlier ones.

        Args:
            position: position of the call, from `place` or `branch`.
            prompt: messages of the call.
            response: None: the call failed. It is not added, and the call may be repeated at the same place.
            packed_prompt: token ids of the prompt; empty below fidelity `token`.
            packed_response: token ids of the response; likewise.
            response_id: the upstream's id of the response, if later calls may continue from it.
            tools_hash: hash of the offered tools; 0: none.
            model: the model that answered.
        """
        shared = self._shared_prefix(position, prompt, packed_prompt)
        if response is not None:
            tokens, prompt_tokens = packed_prompt + packed_response, len(packed_prompt) // WIDTH
            self._add_step(position, prompt, response, tokens, prompt_tokens, response_id, tools_hash, model)
        else:
            position.trajectory.failed = True
            if position.continues is not None:
                position.continues.continued = False
        return shared

    def _shared_prefix(self, position: StepPosition, prompt: Prompt, packed_prompt: bytes) -> SharedPrefix:
        step, messages, repeated = self._longest_common(position, prompt)
        if step is None:
            return NOTHING_SHARED
        index = None if step.step_index == position.step_index - 1 else step.step_index
        tokens = step.shared_tokens(packed_prompt) if packed_prompt else 0
        return SharedPrefix(index, messages, tokens, repeated, step.tools_hash)

    @staticmethod
    def _longest_common(position: StepPosition, prompt: Prompt) -> tuple[CachedStep | None, int, int]:
        """Return the earlier step, its number of shared messages, and how many of them the call sent."""
        earlier = position.trajectory.steps_by_prefix
        named = prompt.previous
        messages_before = named.messages if named is not None else 0
        for index in range(len(prompt.prefix_hashes) - 1, -1, -1):
            step = earlier.get(prompt.prefix_hashes[index])
            if step is not None and step.step_index < position.step_index:
                return step, messages_before + index + 1, index + 1
        if named is not None and named.trajectory is position.trajectory and named.step_index < position.step_index:
            return named, named.messages, 0
        return None, 0, 0

    def _add_step(
        self,
        position: StepPosition,
        prompt: Prompt,
        response: Message,
        tokens: bytes,
        prompt_tokens: int,
        response_id: str,
        tools_hash: int,
        model: str,
    ) -> None:
        trajectory = position.trajectory
        if not self._is_cached(trajectory):
            return
        if trajectory.size > self._limit_bytes // _LARGEST_SHARE:
            self._drop_steps(trajectory)  # one name in endless use must not evict all others
        hashes, previous = prompt.prefix_hashes, prompt.previous
        end = prefix_hash(hashes[-1] if hashes else previous.end_hash if previous is not None else b"", response)
        first = previous.first_hash if previous is not None else hashes[0] if hashes else None
        messages = (previous.messages if previous is not None else 0) + len(hashes) + 1
        step = CachedStep(
            trajectory, position.step_index, messages, first, end, prompt_tokens, tokens, tools_hash, model
        )
        trajectory.steps.append(step)
        size = _STEP + _HASH + len(tokens) + self._add_hashes(step, hashes)
        if tokens:
            trajectory.steps_with_tokens.append(step)
            if len(trajectory.steps_with_tokens) > STEPS_WITH_TOKENS:
                size -= trajectory.steps_with_tokens.popleft().drop_tokens()
        if trajectory.scope is not None:
            equal = self._endings.setdefault((trajectory.scope, end), deque(maxlen=EQUAL_ENDINGS))
            equal.append(step)
            self._shared_endings.put(trajectory.scope, end, trajectory.id)
        if trajectory.trace and (calls := made_calls(response)) is not None:
            trajectory.calls_made.add(calls)
            size += _HASH
        if response_id:
            self._responses[trajectory.tenant, response_id] = step
            trajectory.response_ids.append(response_id)
        trajectory.size += size
        self._size += size
        self._evict()

    @staticmethod
    def _add_hashes(step: CachedStep, hashes: list[PrefixHash]) -> int:
        """Register a step under its prompt's hashes, longest first; return the bytes added."""
        by_prefix = step.trajectory.steps_by_prefix
        size = 0
        for each in reversed(hashes):
            earlier = by_prefix.get(each)
            if earlier is not None and earlier.step_index < step.step_index:
                break  # then an earlier step also has all shorter prefixes
            by_prefix[each] = step
            size += _HASH
        by_prefix[step.end_hash] = step
        return size

    def _continued_step(self, scope: CallerScope, prompt: Prompt, trace: str) -> tuple[CachedStep | None, str]:
        """Return the step whose response ends the longest known prefix, and its trajectory; empty: there is none.

        Of equal ones: a step of the same trace, else one not yet continued, and of these the newest. The step is None
        if another process recorded it, or if it was evicted.
        """
        for index in range(len(prompt.messages) - 1, -1, -1):
            if prompt.messages[index]["role"] == "assistant":
                end = prompt.prefix_hashes[index]
                steps = self._endings.get((scope, end))
                if steps:
                    best = _best(steps, trace)
                    return best, best.trajectory.id
                if recorded := self._shared_endings.get(scope, end):
                    return None, recorded
        return None, ""

    def _load(self, tenant: str, trajectory_id: str, prompt: Prompt, scope: CallerScope | None) -> Trajectory:
        """Add a trajectory that an earlier or another process began, or whose caller named it."""
        # Gateways of other folders may have answered since.
        first = max(self._indices.next_of(tenant, trajectory_id) or 0, _count_responses(prompt))
        return self._add(Trajectory(tenant, trajectory_id, first, scope))

    def _add(self, trajectory: Trajectory) -> Trajectory:
        self._trajectories[trajectory.tenant, trajectory.id] = trajectory
        self._size += trajectory.size
        self._evict()
        return trajectory

    def _is_cached(self, trajectory: Trajectory) -> bool:
        return self._trajectories.get((trajectory.tenant, trajectory.id)) is trajectory

    def _evict(self) -> None:
        """Remove the least recently used trajectories beyond the limits."""
        while len(self._trajectories) > 1 and (len(self._trajectories) > self._limit or self._size > self._limit_bytes):
            _, trajectory = self._trajectories.popitem(last=False)
            self._drop_steps(trajectory)
            self._traces.remove(trajectory)
            self._size -= trajectory.size

    def _drop_steps(self, trajectory: Trajectory) -> None:
        """Forget the steps of a trajectory, but not its next index."""
        for response_id in trajectory.response_ids:
            self._responses.pop((trajectory.tenant, response_id), None)
        if trajectory.scope is not None:
            for step in trajectory.steps:
                key = trajectory.scope, step.end_hash
                equal = self._endings.get(key)
                if equal is not None and step in equal:
                    equal.remove(step)
                    if not equal:
                        del self._endings[key]
        for collection in (
            trajectory.response_ids,
            trajectory.steps,
            trajectory.steps_with_tokens,
            trajectory.steps_by_prefix,
            trajectory.calls_made,
        ):
            collection.clear()
        self._size -= trajectory.size - TRAJECTORY_BYTES
        trajectory.size = TRAJECTORY_BYTES


def _best(equal: Sequence[CachedStep], trace: str) -> CachedStep:
    """Return the step of equal conversations that a call continues."""
    in_trace = [step for step in equal if step.trajectory.trace == trace] if trace else []
    candidates = in_trace or equal
    return next((step for step in reversed(candidates) if not step.continued), candidates[-1])


def _count_responses(prompt: Prompt) -> int:
    return sum([message["role"] == "assistant" for message in prompt.messages])


def _least_index(trajectory: Trajectory, prompt: Prompt) -> int:
    """Return the least index of a call that continues a trajectory.

    Where the prompt repeats a whole conversation that this gateway recorded, the responses after it came from other
    gateways, and each has an index.
    """
    for index in range(len(prompt.prefix_hashes) - 1, -1, -1):
        end_hash = prompt.prefix_hashes[index]
        step = trajectory.steps_by_prefix.get(end_hash)
        if step is not None:
            others = sum([message["role"] == "assistant" for message in prompt.messages[index + 1 :]])
            if step.end_hash == end_hash and others:
                return max(trajectory.next_index, step.step_index + 1 + others)
            break
    return trajectory.next_index
