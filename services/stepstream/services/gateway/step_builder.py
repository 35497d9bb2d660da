"""Build the `Step` of a call and its answer, storing only what no earlier step stores. Pure: no clock, no I/O.

Tokens are taken over only if every one is certain; text is never tokenised again.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepstream.services.gateway.context import packed_tokens
from stepstream.services.gateway.context.cache import ContextCache
from stepstream.services.gateway.context.carried_calls import call_ids
from stepstream.services.gateway.context.tree import Prompt, StepPosition
from stepstream.services.gateway.identity import Identity
from stepstream.services.gateway.protocols.base import Answer, Conversation
from stepstream.topics.events import (
    Message,
    PolicySpan,
    SamplingMask,
    Step,
    Track,
    new_policy_span,
    new_sampling_mask,
)
from stepstream.topics.ids import new_event_id

UNKNOWN_TOOL = "unknown_tool"
"""Error of a tool call that names no offered tool: the call is malformed, no tool has failed."""
_ROUNDING = 1e-4
"""Largest logprob above 0 that rounding explains."""


@dataclass(slots=True)
class Call:
    """One model call as it came in."""

    identity: Identity
    conversation: Conversation
    prompt: Prompt
    position: StepPosition
    event_id: str
    started_us: int
    """Microseconds since the Unix epoch."""
    track: Track = "stable"


@dataclass(slots=True)
class Timing:
    """Durations of a call in milliseconds."""

    duration_ms: float
    first_token_ms: float | None = None
    """None: not streamed, or the model gave no output."""


@dataclass(slots=True)
class SampledTokens:
    """Tokens of prompt and response; `prompt` and `response` are packed."""

    prompt: bytes
    prompt_ids: list[int]
    response: bytes
    response_ids: list[int]
    logprobs: list[float]
    spans: list[PolicySpan]
    mask: SamplingMask | None = None


def build_step(
    contexts: ContextCache, call: Call, answer: Answer, timing: Timing, producer: str, *, continues_by_id: bool = False
) -> Step:
    """Return the step to publish, and add it to its trajectory in the cache.

    Args:
        contexts: cache of trajectories; a call with an error is not added, since nothing continues from it.
        call: the request, its identity and its position.
        answer: the answer; one with an error is recorded without tokens.
        timing: durations of the call.
        producer: program that writes the event, as `gateway/0.1.0`.
        continues_by_id: True if a later call may continue from the answer by its response id.
    """
    identity, position, prompt, conversation = call.identity, call.position, call.prompt, call.conversation
    model = conversation.model or answer.model
    sampled = None if conversation.has_unrecorded_text else sampled_tokens(answer, answer.model or model)
    packed_prompt = b"" if sampled is None else sampled.prompt
    packed_response = b"" if sampled is None else sampled.response
    tools, tools_hash = conversation.encoded_tools()
    response = mark_unknown_tools(answer.message, conversation.tools)
    shared = contexts.extend(
        position,
        prompt,
        answer.message if answer.error is None else None,
        packed_prompt,
        packed_response,
        answer.response_id if continues_by_id else "",
        tools_hash,
        conversation.model,
    )
    # A literal with all fields: passing forty arguments to a helper costs more than the rest of this function.
    return {
        "event_id": call.event_id,
        "occurred_at_us": call.started_us,
        "producer": producer,
        "tenant": identity.tenant,
        "consent": identity.consent,
        "user": identity.user or conversation.user,
        "trajectory_id": position.trajectory.id,
        "step_index": position.step_index,
        "counted_by": position.counted_by,
        "parent_trajectory_id": identity.parent_trajectory_id,
        "parent_step_index": identity.parent_step_index,
        "task_id": identity.task_id,
        "group_id": identity.group_id,
        "agent": identity.agent,
        "environment": identity.environment,
        "harness_version": identity.harness_version,
        "track": call.track,
        "split": identity.split,
        "call_ids": call_ids(answer.response_id, identity.trace_id, identity.span_id) if not answer.error else [],
        "model": model,
        "fidelity": "text" if sampled is None else "token",
        "prompt_shared_messages": shared.messages,
        "prompt_shared_step": shared.step,
        "prompt_shared_tokens": shared.tokens,
        "prompt_shared_digest": packed_tokens.digest(packed_prompt, shared.tokens) if shared.tokens else None,
        "messages": prompt.messages[shared.repeated :],
        "prompt_token_ids": [] if sampled is None else sampled.prompt_ids[shared.tokens :],
        "tool_definitions": None if tools_hash == shared.tools_hash else tools.decode() or "[]",
        "response": response,
        "response_token_ids": [] if sampled is None else sampled.response_ids,
        "response_logprobs": [] if sampled is None else sampled.logprobs,
        "loss_mask": [],
        "policy_spans": [] if sampled is None else sampled.spans,
        "sampling_mask": None if sampled is None else sampled.mask,
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
        "claim": None,
        "governed": None,
    }


def branch_call(contexts: ContextCache, call: Call, number: int) -> Call:
    """Return the call as an alternative answer to it (`n` above 1) records it: in a trajectory of its own.

    The branch's parent step is the one before the call. It has no group, since it is no attempt at the task until
    somebody continues it.

    Args:
        contexts: cache of trajectories.
        call: the original call.
        number: number of the alternative, from 1.
    """
    position = contexts.branch(call.position, number)
    parent_step = call.position.step_index - 1
    identity = replace(
        call.identity,
        trajectory_id=position.trajectory.id,
        parent_trajectory_id=call.position.trajectory.id,
        parent_step_index=parent_step if parent_step >= 0 else None,
        group_id=None,
        traceparent=None,  # its spans name the call itself
    )
    return Call(identity, call.conversation, call.prompt, position, new_event_id(), call.started_us, call.track)


def sampled_tokens(answer: Answer, model: str) -> SampledTokens | None:
    """Return the tokens; None unless every token has an id, and every response token a logprob and a version."""
    prompt, response, logprobs = answer.prompt_token_ids, answer.token_ids, answer.logprobs
    if answer.error is not None or not prompt or not response or not logprobs:
        return None
    try:
        if len(logprobs) != len(response) or not math.isfinite(sum(logprobs)) or max(logprobs) > _ROUNDING:
            return None
        if min(prompt) < 0 or min(response) < 0:
            return None
        spans = policy_spans(answer.weight_versions, len(response), model)
        if spans is None:
            return None
        mask = sampling_mask(answer.sampling_mask, response)
        return SampledTokens(
            packed_tokens.pack(prompt), prompt, packed_tokens.pack(response), response, logprobs, spans, mask
        )
    except (TypeError, ValueError, OverflowError, struct.error):
        return None


def sampling_mask(mask: Any, response: Sequence[int]) -> SamplingMask | None:
    """Return the sampling mask of a response; None: the upstream sent none, or one that does not fit the tokens."""
    try:
        counts, ids = mask["counts"], mask["token_ids"]
        if len(counts) != len(response) or min(counts) < 0 or sum(counts) != len(ids) or (ids and min(ids) < 0):
            return None
        packed_tokens.pack(ids)  # 32-bit integers
        end = 0
        for token, count in zip(response, counts, strict=True):
            if count and token not in ids[end : end + count]:
                return None
            end += count
        return new_sampling_mask(counts=counts, token_ids=ids) if ids else None
    except (TypeError, KeyError, ValueError, OverflowError, struct.error):
        return None


def policy_spans(weight_versions: Any, count: int, model: str) -> list[PolicySpan] | None:
    """Return the policy versions of a response's `count` tokens.

    Returns:
        None if the upstream's spans leave a token without a version, overlap, or are out of order.
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


def mark_unknown_tools(message: Message, tools: Any) -> Message:
    """Return a response whose calls of tools that were not offered carry the error `UNKNOWN_TOOL`.

    The message itself is returned if all tools are known, or if that cannot be decided.

    Args:
        message: answer of the model.
        tools: offered tools, as a chat completion request lists them; None: unknown.
    """
    if not message["tool_calls"] or not isinstance(tools, list):
        return message
    offered = {_tool_name(tool) for tool in tools}
    if None in offered or all(call["name"] in offered for call in message["tool_calls"]):
        return message
    calls = [call.copy() for call in message["tool_calls"]]
    for call in calls:
        if call["name"] not in offered:
            call["error"] = UNKNOWN_TOOL
    return {**message, "tool_calls": calls}


def _tool_name(tool: Any) -> str | None:
    """Return the name of an offered tool; None: its calls have other names, as those of provider-run tools."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    definition = tool.get(kind) if isinstance(kind, str) else None
    name = definition.get("name") if isinstance(definition, dict) else None
    return name if isinstance(name, str) else None
