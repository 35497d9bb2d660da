"""Write the steps of plain traces (`fast_path`), with the same bytes as `assembly`'s."""

from functools import lru_cache
from typing import cast

from stepstream.delivery.types import EncodedEvent
from stepstream.services.gateway.context.carried_calls import LEAST_ID, call_ids
from stepstream.services.gateway.otlp.assembly import EMPTY_STEP, JOB
from stepstream.services.gateway.otlp.attributes import Attributes, text
from stepstream.services.gateway.otlp.fast_path import TraceSpans
from stepstream.services.gateway.otlp.identity import Defaults, identity_of
from stepstream.services.gateway.otlp.messages import STEP, shared_prefix
from stepstream.services.gateway.otlp.span_index import Owner, SpanIndex, Subject
from stepstream.services.gateway.otlp.span_layout import avro_string
from stepstream.topics.avro_writer import compile_split_writer
from stepstream.topics.catalogue import STEPS
from stepstream.topics.events import Consent
from stepstream.topics.ids import SEPARATOR, derived_ids
from stepstream.topics.varints import HALF, SIZES, zigzag

_write_between = compile_split_writer(
    STEP,
    [
        "event_id",
        "occurred_at_us",
        "trajectory_id",
        "step_index",
        "call_ids",
        "model",
        "prompt_shared_messages",
        "messages",
        "response",
        "sampling",
        "finish_reason",
        "end",
        "duration_ms",
        "first_token_ms",
        "usage_prompt_tokens",
        "usage_response_tokens",
    ],
)
_FIELDS = "tenant", "consent", "task_id", "group_id", "environment", "harness_version", "split"
_ENDS = next(field["type"]["symbols"] for field in STEP["fields"] if field["name"] == "end")
_ID_SIZE = zigzag(36)
_STEP = f"{SEPARATOR}step"
_ONE = zigzag(1)
_new = tuple.__new__
"""Makes a named tuple in half the time of its constructor."""
_OPEN, _TERMINATED = zigzag(_ENDS.index("open")), zigzag(_ENDS.index("terminated"))


class PlainStepWriter:
    """Encodes steps; shares its `SpanIndex` with the assembler."""

    def __init__(self, producer: str, span_index: SpanIndex) -> None:
        """Set the program that writes the events, for example `gateway-otlp/0.1.0`."""
        self._span_index = span_index
        self._constant_parts = lru_cache(1000)(self._write_constant_parts)
        self._producer = producer
        self._resource: tuple[Attributes | None, Defaults | None, tuple[str | None, ...] | None] = None, None, None
        """The last resource and defaults, and the result of `_fields_of` for them."""

    def records(self, trace: TraceSpans, defaults: Defaults) -> list[EncodedEvent] | None:
        """Return the steps of a plain trace; None: `assembly` must handle it, and no state has changed.

        That is the case if its resource names a person or trajectory, if it continues steps that had tools, or if the
        gateway carried one of its calls.
        """
        fields = self._fields_of(trace.shared, defaults)
        if fields is None:
            return None
        calls, has_agent = trace.calls, trace.agent_id is not None
        span_index, trace_id, tenant = self._span_index, trace.trace_id, defaults.tenant
        if span_index.has_carried_steps() and any(
            span_index.carried_step(tenant, call_ids(call.response_id, trace_id, call.span_id)) for call in calls
        ):
            return None
        trajectory = span_index.trajectory(tenant, trace_id)
        if trajectory is None:
            trajectory = span_index.begin(tenant, trace_id, 0)
        elif trajectory.tools_hash:
            return None
        owner = Owner(tenant, None, cast(Consent, fields[1]))
        subject = Subject(trace_id, owner=owner)
        span_index.add_subject(tenant, trace_id, "", subject)
        if trace.agent_id is not None:
            span_index.add_subject(tenant, trace_id, trace.agent_id, subject)
        agent = trace.agent_name or text(trace.shared.get("service.name")) or defaults.agent
        p = self._constant_parts(agent, *fields)
        before_index = b"".join((p[2], avro_string(trace_id.encode()), p[3]))
        id_of, origin = derived_ids(tenant), SEPARATOR.join((JOB, trace_id, ""))
        # All names of spans have the same size.
        span_name = avro_string(call_ids("", trace_id, calls[0].span_id)[0].encode())[: -len(calls[0].span_id)]
        events: list[EncodedEvent] = []
        last = calls[-1]
        for call in calls:
            span_id, prompt, response_id = call.span_id, call.prompt, call.response_id
            position = span_index.step_of(tenant, trace_id, span_id)
            is_repeated = False
            if position is not None and position[0] == trace_id:
                index = position[1]
                is_repeated = index < trajectory.next_index - 1
            else:
                index = trajectory.next_index
            if index >= trajectory.next_index:
                trajectory.next_index = index + 1
            shared = 0
            if not is_repeated:
                if trajectory.messages:
                    shared = shared_prefix(prompt, trajectory.messages)
                trajectory.messages = [*prompt, call.response]
            span_index.add_step(trace_id, span_id, (trace_id, index, owner), response_id)
            new = prompt[shared:] if shared else prompt
            event_id = id_of(f"{origin}{span_id}{_STEP}")
            at = call.start_ns // 1000
            body = b"".join(
                (
                    p[0],
                    _ID_SIZE,
                    event_id.encode(),
                    p[1],
                    zigzag(at),
                    before_index,
                    SIZES[index] if index < HALF else zigzag(index),
                    p[4],
                    _encoded_names(response_id) if len(response_id) >= LEAST_ID else _ONE,
                    span_name,
                    span_id.encode(),
                    b"\0",
                    p[5],
                    call.model,
                    p[6],
                    SIZES[shared] if shared < HALF else zigzag(shared),
                    p[7],
                    SIZES[len(new)] if len(new) < HALF else zigzag(len(new)),
                    *new,
                    b"\0" if new else b"",
                    p[8],
                    call.response,
                    p[9],
                    call.sampling,
                    p[10],
                    call.finish_reason,
                    p[11],
                    _TERMINATED if has_agent and call is last else _OPEN,
                    p[12],
                    call.duration_ms,
                    p[13],
                    call.first_token_ms,
                    p[14],
                    call.usage_prompt_tokens,
                    p[15],
                    call.usage_response_tokens,
                    p[16],
                )
            )
            context = {"traceparent": f"00-{trace_id}-{span_id}-01"}
            events.append(_new(EncodedEvent, (STEPS, trace_id, event_id, at, body, context)))
        if has_agent:
            trajectory.messages = ()  # frees memory: steps rarely follow
        return events

    def _fields_of(self, resource: Attributes, defaults: Defaults) -> tuple[str | None, ...] | None:
        """Return the step fields of a resource; None: it names a person or a trajectory."""
        last = self._resource
        if last[0] is not resource or last[1] is not defaults:
            identity = identity_of((resource,), defaults)
            named = identity.trajectory_id, identity.parent_trajectory_id, identity.conversation
            step_fields = (
                None if any(named) or identity.fields["user"] else tuple(identity.fields[name] for name in _FIELDS)
            )
            last = self._resource = resource, defaults, step_fields
        return last[2]

    def _write_constant_parts(self, agent: str, *fields: str) -> list[bytes]:
        resource_fields = dict(zip(_FIELDS, fields, strict=True))
        count = self._span_index.count
        constant = {"producer": self._producer, "agent": agent, "counted_by": count}
        return _write_between({**EMPTY_STEP, **resource_fields, **constant})


def _encoded_names(response_id: str) -> bytes:
    """Encode the beginning of a call's two names: their number, and the response's."""
    return zigzag(2) + avro_string(call_ids(response_id, "")[0].encode())
