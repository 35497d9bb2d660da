"""The steps of plain calls: what `assembly` makes of the same spans, to the byte."""

from functools import lru_cache
from typing import cast

from stepstream.delivery.types import EncodedEvent
from stepstream.services.gateway.otlp.assembly import EMPTY, JOB
from stepstream.services.gateway.otlp.attributes import Attributes, text
from stepstream.services.gateway.otlp.fast_path import Gathered, text_of
from stepstream.services.gateway.otlp.identity import Defaults, identity_of
from stepstream.services.gateway.otlp.messages import STEP, shared
from stepstream.services.gateway.otlp.span_index import About, SpanIndex, Whose
from stepstream.services.gateway.otlp.trace import name_of
from stepstream.topics.avro_writer import HALF, SIZES, around, zigzag
from stepstream.topics.events import Consent
from stepstream.topics.ids import derived_id

_around = around(
    STEP,
    [
        "event_id",
        "occurred_at_us",
        "trajectory_id",
        "step_index",
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
_OPEN, _TERMINATED = zigzag(_ENDS.index("open")), zigzag(_ENDS.index("terminated"))


class PlainSteps:
    """Remembers in the same `SpanIndex` as the assembler beside it."""

    def __init__(self, producer: str, places: SpanIndex) -> None:
        """`producer` is the program that writes the events, as `gateway-otlp/0.1.0`."""
        self._places = places
        self._between = lru_cache(1000)(self._write_between)
        self._producer = producer
        self._resource: tuple[Attributes | None, Defaults | None, tuple[str | None, ...] | None] = None, None, None
        """The one that was asked for last, and what came of it."""

    def records(self, trace: Gathered, defaults: Defaults) -> list[EncodedEvent] | None:
        """The steps of a settled trace; None where it is one for `assembly`, and then nothing has changed.

        That is where its resource names somebody, and where it goes on from steps that were offered tools.
        """
        fields = self._whose(trace.shared, defaults)
        if fields is None:
            return None
        agent = (name_of(trace.agent) if trace.agent is not None else "") or text(trace.shared.get("service.name"))
        g = self._between(agent or defaults.agent, *fields)
        calls = trace.calls
        places, trace_id, tenant = self._places, trace.trace_id, defaults.tenant
        key, trajectory = text_of(trace_id.encode()), places.trajectory(tenant, trace_id)
        if trajectory is None:
            trajectory = places.begin(tenant, trace_id, 0)
        elif trajectory.offer:
            return None
        whose = Whose(tenant, None, cast(Consent, fields[1]))
        places.note(trace_id, "", About(trace_id, whose=whose))
        if trace.agent is not None:
            places.note(trace_id, trace.agent.span_id, About(trace_id, whose=whose))
        found: list[EncodedEvent] = []
        last = calls[-1]
        for call in calls:
            span_id, prompt = call.span_id, call.prompt
            place = places.of_span(trace_id, span_id)
            again = False
            if place is not None and place[0] == trace_id:
                index = place[1]
                again = index < trajectory.next_index - 1
            else:
                index = trajectory.next_index
            if index >= trajectory.next_index:
                trajectory.next_index = index + 1
            old = 0
            if not again:
                old = shared(prompt, trajectory.said)
                trajectory.said = [*prompt, call.response]
            places.put(trace_id, span_id, (trace_id, index, whose), call.response_id)
            new = prompt[old:] if old else prompt
            event_id = derived_id(JOB, trace_id, span_id, "step")
            at = call.start_ns // 1000
            body = b"".join(
                (
                    g[0],
                    _ID_SIZE,
                    event_id.encode(),
                    g[1],
                    zigzag(at),
                    g[2],
                    key,
                    g[3],
                    SIZES[index] if index < HALF else zigzag(index),
                    g[4],
                    call.model,
                    g[5],
                    SIZES[old] if old < HALF else zigzag(old),
                    g[6],
                    *((zigzag(len(new)), *new, b"\0") if new else (b"\0",)),
                    g[7],
                    call.response,
                    g[8],
                    call.sampling,
                    g[9],
                    call.finish_reason,
                    g[10],
                    _TERMINATED if call is last and trace.agent is not None else _OPEN,
                    g[11],
                    call.duration_ms,
                    g[12],
                    call.first_token_ms,
                    g[13],
                    call.usage_prompt_tokens,
                    g[14],
                    call.usage_response_tokens,
                    g[15],
                )
            )
            context = {"traceparent": f"00-{trace_id}-{span_id}-01"}
            found.append(EncodedEvent("steps", trace_id, event_id, at, body, context))
        if trace.agent is not None:
            trajectory.said = ()  # hardly anything follows
        return found

    def _whose(self, resource: Attributes, defaults: Defaults) -> tuple[str | None, ...] | None:
        """The fields of the steps of a resource; None where it names a person or a trajectory."""
        known = self._resource
        if known[0] is not resource or known[1] is not defaults:
            identity = identity_of((resource,), defaults)
            named = identity.trajectory_id, identity.parent_trajectory_id, identity.conversation
            told = None if any(named) or identity.fields["user"] else tuple(identity.fields[name] for name in _FIELDS)
            known = self._resource = resource, defaults, told
        return known[2]

    def _write_between(self, agent: str, *fields: str) -> list[bytes]:
        told = dict(zip(_FIELDS, fields, strict=True))
        return _around({**EMPTY, **told, "producer": self._producer, "agent": agent})
