"""From a call and its answer to a `Step` that stores only what is new. Pure: no clock, no I/O.

The tokens of an answer, where every one is certain. Nothing is ever tokenised again from text. Pure.

The tools that an agent was offered: their definitions, and calls of others. Pure.
"""

import math
import struct
from dataclasses import dataclass, replace
from typing import Any

import orjson

from stepstream.services.gateway.context import packed_tokens
from stepstream.services.gateway.context.cache import ContextCache
from stepstream.services.gateway.context.tree import Prompt, StepPosition
from stepstream.services.gateway.identity import Identity
from stepstream.services.gateway.protocols.base import Answer, Conversation
from stepstream.topics.events import Message, PolicySpan, Step, new_policy_span
from stepstream.topics.ids import new_event_id

_ROUNDED = 1e-4
"""How far above 0 rounding may put a logprob."""


@dataclass(slots=True)
class Captured:
    """The sampled response and its prompt; `prompt` and `response` are packed."""

    prompt: bytes
    prompt_ids: list[int]
    response: bytes
    response_ids: list[int]
    logprobs: list[float]
    spans: list[PolicySpan]


def captured(answer: Answer, model: str) -> Captured | None:
    """The tokens, or None unless every one came with its id, and those of the response with logprob and version."""
    prompt, response, logprobs = answer.prompt_token_ids, answer.token_ids, answer.logprobs
    if answer.error is not None or not prompt or not response or not logprobs:
        return None
    try:
        if len(logprobs) != len(response) or not math.isfinite(sum(logprobs)) or max(logprobs) > _ROUNDED:
            return None
        if min(prompt) < 0 or min(response) < 0:
            return None
        spans = policy_spans(answer.weight_versions, len(response), model)
        if spans is None:
            return None
        return Captured(packed_tokens.pack(prompt), prompt, packed_tokens.pack(response), response, logprobs, spans)
    except (TypeError, ValueError, OverflowError, struct.error):
        return None


def policy_spans(weight_versions: Any, count: int, model: str) -> list[PolicySpan] | None:
    """The versions of a response's `count` tokens.

    Returns:
        None where what the upstream tells does not cover them in order without gaps: a token of unknown version.
    """
    spans = []
    position = 0
    try:
        for span in weight_versions:
            start, end, version = span["start"], span["end"], span["version"]
            if start != position or end < start or int(version) < 0:
                return None
            if end > start:
                spans.append(new_policy_span(start=start, end=end, model=model, version=int(version)))
            position = end
    except (TypeError, KeyError, ValueError):
        return None
    return spans if position == count else None


UNKNOWN_TOOL = "unknown_tool"
"""Error of a call that names no tool on offer: the call is malformed, no tool has failed."""


def checked(message: Message, tools: Any) -> Message:
    """The response with the error of such calls; as it is where all are known, or where it cannot be told.

    Args:
        message: what the model answered.
        tools: on offer, as a chat completion request tells them; None: not known.
    """
    if not message["tool_calls"] or not isinstance(tools, list):
        return message
    offered = {_name(tool) for tool in tools}
    if None in offered or all(call["name"] in offered for call in message["tool_calls"]):
        return message
    calls = [call.copy() for call in message["tool_calls"]]
    for call in calls:
        if call["name"] not in offered:
            call["error"] = UNKNOWN_TOOL
    return {**message, "tool_calls": calls}


def definitions(tools: Any) -> tuple[bytes, int]:
    """The tools on offer as JSON, and its hash, to compare them by in this process; empty and 0 where there are none.

    Python's own hash is keyed, and costs a quarter of a cryptographic digest: this is done for each call.
    """
    if not tools:
        return b"", 0
    text = orjson.dumps(tools)
    return text, hash(text) or 1


def _name(tool: Any) -> str | None:
    """Name of a tool on offer; None for one whose calls have names of their own, as those that a provider runs."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    said = tool.get(kind) if isinstance(kind, str) else None
    name = said.get("name") if isinstance(said, dict) else None
    return name if isinstance(name, str) else None


@dataclass(slots=True)
class Call:
    """One model call as it came in."""

    identity: Identity
    conversation: Conversation
    prompt: Prompt
    place: StepPosition
    event_id: str
    started_us: int
    """Microseconds since the Unix epoch."""


@dataclass(slots=True)
class Timing:
    """How long it took, in milliseconds."""

    duration_ms: float
    first_token_ms: float | None = None


def branch(contexts: ContextCache, call: Call, number: int) -> Call:
    """The call as that which an alternative of its answer (`n` above 1) answers: a trajectory of its own.

    It goes on behind the step before the call, as any other attempt at the rest would, and has no group: nobody has
    attempted the task in that way before somebody goes on from there.

    Args:
        contexts: what is remembered of the call's trajectory.
        call: as it came in.
        number: of the alternative, from 1.
    """
    place = contexts.branch(call.place, number)
    before = call.place.step_index - 1
    identity = replace(
        call.identity,
        trajectory_id=place.trajectory.id,
        parent_trajectory_id=call.place.trajectory.id,
        parent_step_index=before if before >= 0 else None,
        group_id=None,
    )
    return Call(identity, call.conversation, call.prompt, place, new_event_id(), call.started_us)


def build_step(contexts: ContextCache, call: Call, answer: Answer, timing: Timing, producer: str) -> Step:
    """The step to publish; later steps are compared with it from now on.

    Args:
        contexts: what is remembered of the trajectory; a call with an error is not, as nothing goes on from it.
        call: the request and whose it is.
        answer: what came back; one with an error is recorded without tokens.
        timing: of the call.
        producer: program that writes the event, as `gateway/0.1.0`.
    """
    identity, place, prompt, conversation = call.identity, call.place, call.prompt, call.conversation
    model = conversation.model or answer.model
    sampled = None if conversation.hidden else captured(answer, answer.model or model)
    packed = sampled.prompt if sampled is not None else b""
    shared = contexts.shared(place, prompt, packed)
    tools, offer = definitions(conversation.tools)
    # All fields, without the helper that has their defaults: passing on forty of them costs more than the rest of this.
    step: Step = {
        "event_id": call.event_id,
        "occurred_at_us": call.started_us,
        "producer": producer,
        "tenant": identity.tenant,
        "consent": identity.consent,
        "user": identity.user or conversation.user,
        "trajectory_id": place.trajectory.id,
        "step_index": place.step_index,
        "parent_trajectory_id": identity.parent_trajectory_id,
        "parent_step_index": identity.parent_step_index,
        "task_id": identity.task_id,
        "group_id": identity.group_id,
        "agent": identity.agent,
        "environment": identity.environment,
        "harness_version": identity.harness_version,
        "track": "stable",
        "split": identity.split,
        "model": model,
        "fidelity": "text" if sampled is None else "token",
        "prompt_shared_messages": shared.messages,
        "prompt_shared_step": shared.step,
        "prompt_shared_tokens": shared.tokens,
        "prompt_shared_digest": packed_tokens.digest(packed, shared.tokens) if shared.tokens else None,
        "messages": prompt.messages[shared.repeated :],
        "prompt_token_ids": [] if sampled is None else sampled.prompt_ids[shared.tokens :],
        "tool_definitions": None if offer == shared.offer else tools.decode() or "[]",
        "response": checked(answer.message, conversation.tools),
        "response_token_ids": [] if sampled is None else sampled.response_ids,
        "response_logprobs": [] if sampled is None else sampled.logprobs,
        "loss_mask": [],
        "policy_spans": [] if sampled is None else sampled.spans,
        "sampling": conversation.sampling,
        "finish_reason": answer.finish_reason,
        "end": "open",
        "error": answer.error,
        "duration_ms": timing.duration_ms,
        "first_token_ms": timing.first_token_ms,
        "cost_usd": None,
        "usage_prompt_tokens": answer.usage_prompt_tokens,
        "usage_response_tokens": answer.usage_response_tokens,
        "seal_key": None,
        "sealed": None,
        "governed": None,
    }
    if answer.error is not None:
        contexts.fail(place)
        return step
    both = packed if sampled is None else packed + sampled.response
    prompt_tokens = 0 if sampled is None else len(sampled.prompt_ids)
    contexts.remember(place, prompt, answer.message, both, prompt_tokens, answer.response_id, offer)
    return step
