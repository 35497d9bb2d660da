"""What is remembered of a trajectory: a tree of steps, and what a call says about its place in it. Pure.

Links of a conversation: each names its messages up to one of them, by a digest. Pure.

An agent repeats its own messages byte by byte, but a response often comes back a little changed, since libraries parse
and write it again: spaces around its text, the looks of its arguments' JSON and the reasoning before it do not count.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

import orjson

from stepstream.services.gateway.context import packed_tokens
from stepstream.topics.events import Message

Link = bytes


def link(before: Link, message: Message) -> Link:
    """The link of a message after those that `before` names; `b""`: it is the first."""
    if message["role"] == "assistant":
        calls = [(call["call_id"], call["name"], _plain(call["arguments"])) for call in message["tool_calls"]]
        said = orjson.dumps(("assistant", message["content"].strip(), calls))
    else:
        said = orjson.dumps((message["role"], message["content"], message["tool_call_id"], message["name"]))
    return blake2b(before + said, digest_size=16).digest()


def chain(messages: Iterable[Message], before: Link = b"") -> list[Link]:
    """The link of each of the messages."""
    links = []
    for message in messages:
        before = link(before, message)
        links.append(before)
    return links


def _plain(arguments: str) -> str:
    """JSON without the freedom of its looks; what is no JSON as it is."""
    try:
        return orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONDecodeError:
        return arguments


TRAJECTORY_BYTES = 800
"""What one takes in memory without its steps, roughly: to keep a bound, not to account."""


class KeptIndex(Protocol):
    """The next step index of one trajectory, where it outlives the gateway."""

    value: int | None
    """None: none is known."""

    def note(self, value: int) -> None:
        """Keeps another."""
        ...


class Indices(Protocol):
    """Those of all trajectories; see `next_indices.py`."""

    def of(self, tenant: str, trajectory_id: str) -> KeptIndex:
        """One of them."""
        ...


Scope = tuple[str, ...]
"""Whose calls without a session are compared with one another: tenant, key, agent."""


@dataclass(slots=True, eq=False)
class Node:
    """A recorded step, as the ones after it see it."""

    trajectory: "Trajectory"
    step_index: int
    messages: int
    """Messages of its prompt and response together."""
    first: Link | None
    """Link of its first message alone."""
    end: Link
    """Link of its response."""
    prompt_tokens: int
    tokens: bytes
    """Packed ids of prompt and response; empty below fidelity `token`, and once they were let go."""
    offer: int = 0
    """Hash of the tools that were on offer; 0: none."""
    continued: bool = False
    _digests: dict[int, str] = field(default_factory=dict)

    def shared_tokens(self, prompt: bytes) -> int:
        """How many leading tokens of a packed prompt are this step's: exact, or one of the lengths still known."""
        if self.tokens:
            return packed_tokens.shared_tokens(prompt, self.tokens)
        for length in sorted(self._digests, reverse=True):
            if (
                len(prompt) >= length * packed_tokens.WIDTH
                and packed_tokens.digest(prompt, length) == self._digests[length]
            ):
                return length
        return 0

    def let_go(self) -> int:
        """Keeps digests in place of the tokens; returns the bytes that this frees."""
        freed = len(self.tokens)
        if freed:
            prompt, whole = packed_tokens.two_digests(self.tokens, self.prompt_tokens)
            self._digests = {self.prompt_tokens: prompt, freed // packed_tokens.WIDTH: whole}
            self.tokens = b""
        return freed


@dataclass(slots=True, eq=False)
class Trajectory:
    """One trajectory."""

    tenant: str
    id: str
    next_index: int = 0
    kept: KeptIndex | None = None
    """Keeps `next_index` for the time after a restart; None: no call has named it."""
    scope: Scope | None = None
    """Set where its calls are placed by their content."""
    links: dict[Link, Node] = field(default_factory=dict)
    """The step that first asked, or last answered, each conversation."""
    nodes: list[Node] = field(default_factory=list)
    packed: deque[Node] = field(default_factory=deque)
    """The newest steps that hold tokens."""
    response_ids: list[str] = field(default_factory=list)
    size: int = TRAJECTORY_BYTES


@dataclass(slots=True)
class Prompt:
    """A call's messages with their links."""

    messages: list[Message]
    links: list[Link]
    before: Node | None = None
    """The step whose prompt and response come before `messages`, where a call names it and repeats nothing."""


@dataclass(slots=True)
class StepPosition:
    """Where a call belongs."""

    trajectory: Trajectory
    step_index: int
    continues: Node | None = None
    """The step after whose response its content placed it."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What of a prompt an earlier step holds already."""

    step: int | None = None
    """Index of that step; None: the step before, or nothing is shared."""
    messages: int = 0
    tokens: int = 0
    repeated: int = 0
    """How many of the messages that the call itself sent these are."""
    offer: int = 0
    """Hash of the tools that step was offered."""


NOTHING = Shared()


def prompt_of(messages: list[Message], before: Node | None = None) -> Prompt:
    """A prompt with its links; instructions that the step before had too, as its first message, are not new."""
    if before is None:
        return Prompt(messages, chain(messages))
    if messages and messages[0]["role"] in ("system", "developer") and link(b"", messages[0]) == before.first:
        messages = messages[1:]
    return Prompt(messages, chain(messages, before.end), before)
