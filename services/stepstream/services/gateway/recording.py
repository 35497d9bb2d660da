"""From a call and its answer to a `Step` that stores only what is new. Pure: no clock, no I/O."""

from dataclasses import dataclass, replace

from stepstream.services.gateway import tokens
from stepstream.services.gateway.capture import captured
from stepstream.services.gateway.contexts import Contexts
from stepstream.services.gateway.identity import Identity
from stepstream.services.gateway.protocols.base import Answer, Conversation
from stepstream.services.gateway.tool_calls import checked, definitions
from stepstream.services.gateway.trees import Place, Prompt
from stepstream.topics.events import Step
from stepstream.topics.ids import new_event_id


@dataclass(slots=True)
class Call:
    """One model call as it came in."""

    identity: Identity
    conversation: Conversation
    prompt: Prompt
    place: Place
    event_id: str
    started_us: int
    """Microseconds since the Unix epoch."""


@dataclass(slots=True)
class Timing:
    """How long it took, in milliseconds."""

    duration_ms: float
    first_token_ms: float | None = None


def branch(contexts: Contexts, call: Call, number: int) -> Call:
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


def record(contexts: Contexts, call: Call, answer: Answer, timing: Timing, producer: str) -> Step:
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
        "prompt_shared_digest": tokens.digest(packed, shared.tokens) if shared.tokens else None,
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
