"""Represent a trajectory as a tree of steps, found by hashes of their message prefixes. Pure.

A prefix hash names a message and all messages before it, so one hash identifies a whole conversation up to there.

Agents repeat their own messages byte by byte. A response often comes back slightly changed, since client libraries
parse and serialise it again. The hash of a response therefore ignores spaces around its text, the formatting of its
arguments' JSON, and its reasoning.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple, Protocol

import orjson

from stepstream.services.gateway.context import packed_tokens
from stepstream.topics.events import Message, Track

PrefixHash = bytes

CallerScope = tuple[str, ...]
"""Tenant, key, agent, task, group, person, environment, split and parent of a call. A call that names no trajectory
continues only one of the same scope. A value that only one of the two has is a difference.
"""

TRAJECTORY_BYTES = 800
"""Approximate memory of a trajectory without its steps: bounds the cache, exact enough for nothing else."""


class StepIndices(Protocol):
    """The step indices of all trajectories; `StepIndexFile` is the implementation."""

    name: str
    """Name of the count: indices that it gives to steps of one trajectory differ."""

    def next_of(self, tenant: str, trajectory_id: str) -> int | None:
        """Return the index of a trajectory's next step; None: unknown."""
        ...

    def reserve(self, tenant: str, trajectory_id: str, least: int) -> int:
        """Return the index of a new step, at least `least`; no later call gets it."""
        ...

    def advance(self, tenant: str, trajectory_id: str, following: int) -> None:
        """Let the index of the next step be `following` or more."""
        ...


class Endings(Protocol):
    """Trajectories by the conversation that they ended with; `EndingFile` is the implementation."""

    def get(self, scope: CallerScope, end_hash: PrefixHash) -> str | None:
        """Return the newest trajectory with this conversation; None: unknown."""
        ...

    def put(self, scope: CallerScope, end_hash: PrefixHash, trajectory_id: str) -> None:
        """Record that a trajectory has this conversation."""
        ...


@dataclass(slots=True, eq=False)
class CachedStep:
    """A recorded step, as later steps compare themselves with it."""

    trajectory: "Trajectory"
    step_index: int
    messages: int
    """Number of messages of prompt and response together."""
    first_hash: PrefixHash | None
    """Hash of the first message alone; None: the step has no prompt."""
    end_hash: PrefixHash
    """Prefix hash of the response."""
    prompt_tokens: int
    tokens: bytes
    """Packed ids of prompt and response; empty below fidelity `token`, and after `drop_tokens`."""
    tools_hash: int = 0
    """Hash of the offered tools; 0: none."""
    model: str = ""
    """Model that answered, whose tokens these are."""
    continued: bool = False
    """True once a later call without a trajectory's name continues from this step."""
    _digests: dict[int, str] = field(default_factory=dict)

    def shared_tokens(self, prompt: bytes) -> int:
        """Return the number of leading tokens of a packed prompt that equal this step's.

        After `drop_tokens` only two lengths can be recognised: the prompt's, and that of prompt and response.
        """
        if self.tokens:
            return packed_tokens.shared_tokens(prompt, self.tokens)
        for length in sorted(self._digests, reverse=True):
            if (
                len(prompt) >= length * packed_tokens.WIDTH
                and packed_tokens.digest(prompt, length) == self._digests[length]
            ):
                return length
        return 0

    def drop_tokens(self) -> int:
        """Replace the tokens by digests; return the number of bytes freed."""
        freed = len(self.tokens)
        if freed:
            prompt, all_tokens = packed_tokens.two_digests(self.tokens, self.prompt_tokens)
            self._digests = {self.prompt_tokens: prompt, freed // packed_tokens.WIDTH: all_tokens}
            self.tokens = b""
        return freed


class AnsweredTrack(NamedTuple):
    """The track of the call of a trajectory that a worker answered last."""

    model: str
    track: Track
    canary_version: int | None
    """The model's canary when the track was chosen; None: there was none."""


@dataclass(slots=True, eq=False)
class Trajectory:
    """One trajectory in the cache."""

    tenant: str
    id: str
    next_index: int = 0
    """Least index of its next step, as far as this process knows."""
    scope: CallerScope | None = None
    """Set if its calls are matched by content."""
    trace: str = ""
    """Trace in which it began, if no call named it; empty: none."""
    first_prompt: PrefixHash = b""
    """Prefix hash of its first prompt, if it began in a trace."""
    calls_made: set[PrefixHash] = field(default_factory=set)
    """Digests of its responses that call tools, if it began in a trace."""
    failed: bool = False
    """True once a call of it has failed."""
    steps_by_prefix: dict[PrefixHash, CachedStep] = field(default_factory=dict)
    """The first step that sent each conversation, or the last that answered with it."""
    steps: list[CachedStep] = field(default_factory=list)
    steps_with_tokens: deque[CachedStep] = field(default_factory=deque)
    """The newest steps whose tokens are still in memory."""
    response_ids: list[str] = field(default_factory=list)
    worker: str = ""
    """Address of the inference worker that answered last, which has the prefix in its cache; empty: none."""
    track: AnsweredTrack | None = None
    """None: no worker has answered yet."""
    harness: str | None = None
    """Harness version of its newest call that opted in, empty if unchanged; None: no call has opted in."""
    started_us: int = 0
    """Time of its first call that the gateway remembers, in microseconds since the Unix epoch; 0: none."""
    size: int = TRAJECTORY_BYTES
    """Approximate bytes."""


@dataclass(slots=True)
class Prompt:
    """The messages that a call sent, with their prefix hashes."""

    messages: list[Message]
    prefix_hashes: list[PrefixHash]
    previous: CachedStep | None = None
    """The step whose conversation precedes `messages`, if the call names it by its response instead of repeating it."""


@dataclass(slots=True)
class StepPosition:
    """The trajectory and index of a call."""

    trajectory: Trajectory
    step_index: int
    counted_by: str | None = None
    """Count that gave the index; None: the caller named it."""
    continues: CachedStep | None = None
    """The step whose response the call's content continues, if that decided its position."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """The part of a prompt that an earlier step stores already."""

    step: int | None = None
    """Index of that step; None: the step directly before, or nothing is shared."""
    messages: int = 0
    tokens: int = 0
    repeated: int = 0
    """Number of the shared messages that the call itself sent."""
    tools_hash: int = 0
    """Hash of the tools offered in that step."""


NOTHING_SHARED = SharedPrefix()


def prompt_of(messages: list[Message], previous: CachedStep | None = None) -> Prompt:
    """Return a prompt with its hashes.

    After `previous`, a first system message equal to that of the whole conversation is not new and is left out.
    """
    if previous is None:
        return Prompt(messages, prefix_hashes(messages))
    if (
        messages
        and messages[0]["role"] in ("system", "developer")
        and prefix_hash(b"", messages[0]) == previous.first_hash
    ):
        messages = messages[1:]
    return Prompt(messages, prefix_hashes(messages, previous.end_hash), previous)


def prefix_hashes(messages: Iterable[Message], before: PrefixHash = b"") -> list[PrefixHash]:
    """Return the prefix hash of each message."""
    hashes = []
    for message in messages:
        before = prefix_hash(before, message)
        hashes.append(before)
    return hashes


def prefix_hash(before: PrefixHash, message: Message) -> PrefixHash:
    """Return the hash of a message after the conversation `before`; `b""`: it is the first."""
    if message["role"] == "assistant":
        calls = [(call["call_id"], call["name"], _normalised(call["arguments"])) for call in message["tool_calls"]]
        content = orjson.dumps(("assistant", message["content"].strip(), calls))
    else:
        content = orjson.dumps((message["role"], message["content"], message["tool_call_id"], message["name"]))
    return blake2b(before + content, digest_size=16).digest()


def _normalised(arguments: str) -> str:
    """Return JSON text with sorted keys and no spaces; text that is not JSON unchanged."""
    try:
        return orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONDecodeError:
        return arguments
