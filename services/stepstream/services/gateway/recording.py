"""From a call and its answer to a `Step` that stores only what is new. Pure: no clock, no I/O."""

from dataclasses import dataclass
from typing import Any

from stepstream.services.gateway import tokens
from stepstream.services.gateway.answers import Answer, policy_spans
from stepstream.services.gateway.contexts import Context, shared_messages
from stepstream.services.gateway.identity import Identity
from stepstream.services.gateway.protocols.messages import record_message
from stepstream.topics.events import Fidelity, PolicySpan, Sampling, Step, new_sampling, new_step


@dataclass(slots=True)
class Call:
    """One model call as it came in."""

    identity: Identity
    request: dict[str, Any]
    step_index: int
    event_id: str
    started_us: int
    """Microseconds since the Unix epoch."""


@dataclass(slots=True)
class Timing:
    """How long it took, in milliseconds."""

    duration_ms: float
    first_token_ms: float | None = None


@dataclass(slots=True)
class _Tokens:
    """The sampled response and its prompt, where both were captured exactly."""

    prompt: bytes
    prompt_ids: list[int]
    response: bytes
    response_ids: list[int]
    logprobs: list[float]
    spans: list[PolicySpan]


def step_of(call: Call, answer: Answer, before: Context | None, timing: Timing, producer: str) -> tuple[Step, Context]:
    """The step to publish, and the context that the next step of its trajectory is compared with.

    Args:
        call: the request and whose it is.
        answer: what came back; an answer with an error is recorded without tokens.
        before: the step before this one, where it is remembered.
        timing: of the call.
        producer: program that writes the event, as `gateway/0.1.0`.
    """
    request, identity = call.request, call.identity
    raw_messages = request.get("messages")
    messages = [record_message(raw) for raw in raw_messages] if isinstance(raw_messages, list) else []
    old_messages = shared_messages(messages, before.messages) if before is not None else 0
    model = request["model"] if isinstance(request.get("model"), str) else answer.model
    captured = _captured(answer, answer.model or model)
    old_tokens = tokens.shared_tokens(captured.prompt, before.tokens) if captured and before is not None else 0
    fidelity: Fidelity = "token" if captured else "text"
    step = new_step(
        event_id=call.event_id,
        occurred_at_us=call.started_us,
        producer=producer,
        tenant=identity.tenant,
        consent=identity.consent,
        user=identity.user,
        trajectory_id=identity.trajectory_id,
        step_index=call.step_index,
        parent_trajectory_id=identity.parent_trajectory_id,
        parent_step_index=identity.parent_step_index,
        task_id=identity.task_id,
        group_id=identity.group_id,
        agent=identity.agent,
        environment=identity.environment,
        harness_version=identity.harness_version,
        split=identity.split,
        model=model,
        fidelity=fidelity,
        prompt_shared_messages=old_messages,
        prompt_shared_tokens=old_tokens,
        prompt_shared_digest=tokens.digest(captured.prompt, old_tokens) if captured and old_tokens else None,
        messages=messages[old_messages:],
        prompt_token_ids=captured.prompt_ids[old_tokens:] if captured else None,
        response=answer.message,
        response_token_ids=captured.response_ids if captured else None,
        response_logprobs=captured.logprobs if captured else None,
        policy_spans=captured.spans if captured else None,
        sampling=_sampling(request),
        finish_reason=answer.finish_reason,
        error=answer.error,
        duration_ms=timing.duration_ms,
        first_token_ms=timing.first_token_ms,
    )
    if answer.error is None:
        messages.append(answer.message)
    return step, Context(call.step_index, messages, captured.prompt + captured.response if captured else b"")


def _captured(answer: Answer, model: str) -> _Tokens | None:
    """The tokens of an answer, or None unless every one came with its id, its logprob and, if told, its version."""
    prompt, response, logprobs = answer.prompt_token_ids, answer.token_ids, answer.logprobs
    if answer.error is not None or not prompt or not response or logprobs is None or len(logprobs) != len(response):
        return None
    spans = policy_spans(answer.weight_versions, len(response), model)
    if spans is None:
        return None
    try:
        return _Tokens(tokens.pack(prompt), prompt, tokens.pack(response), response, logprobs, spans)
    except (TypeError, OverflowError):
        return None


def _sampling(request: dict[str, Any]) -> Sampling:
    most = _number(request.get("max_completion_tokens"))
    if most is None:
        most = _number(request.get("max_tokens"))
    temperature, top_p, seed = (_number(request.get(name)) for name in ("temperature", "top_p", "seed"))
    return new_sampling(
        temperature=1.0 if temperature is None else float(temperature),
        top_p=1.0 if top_p is None else float(top_p),
        max_tokens=None if most is None or abs(most) >= 2**31 else int(most),
        seed=None if seed is None or abs(seed) >= 2**63 else int(seed),
    )


def _number(value: Any) -> int | float | None:
    """A number of the request, or None: what is no number is the upstream's to refuse."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
