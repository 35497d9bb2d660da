"""Traces that waited on the log are told, each for itself."""

from dataclasses import dataclass
from typing import Any, cast

from hand_made_traces import DEFAULTS

from stepstream.config import load
from stepstream.services.gateway.otlp.assembly import Record
from stepstream.services.gateway.otlp.identity import Defaults
from stepstream.services.gateway.otlp.open_traces import OpenTraces
from stepstream.services.gateway.otlp.protocol import TraceRequest
from stepstream.services.gateway.otlp.trace import Trace
from stepstream.topics.codec import Codec
from stepstream.topics.events import new_trace_export


@dataclass
class Part:
    """A message of the topic; its value is the trace's id."""

    trace_id: str
    place: int

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.place

    def value(self) -> str:
        return self.trace_id


class Plain:
    """A codec of such messages."""

    def decode(self, topic: str, trace_id: str) -> Any:
        request = TraceRequest()
        request.resource_spans.add().scope_spans.add().spans.add(trace_id=bytes.fromhex(trace_id), span_id=b"12345678")
        return new_trace_export(
            event_id="",
            occurred_at_us=0,
            producer="",
            trace_id=trace_id,
            tenant=DEFAULTS.tenant,
            consent=DEFAULTS.consent,
            signal="traces",
            payload=request.SerializeToString(),
        )


def test_a_trace_that_cannot_be_told_holds_up_no_other() -> None:
    poison, sound = "aa" * 16, "bb" * 16
    published: list[Record] = []

    def tell(trace: Trace, defaults: Defaults) -> list[Record]:
        if trace.trace_id == poison:
            raise TypeError("nobody thought of this")
        return [Record("steps", trace.trace_id, {})]

    traces = OpenTraces(load({}), cast(Codec, Plain()), tell, "agent")
    traces._publish = published.extend
    for place, trace_id in enumerate((poison, sound)):
        traces._read(cast(Any, Part(trace_id, place)))
    traces._settle(float("inf"))
    assert [record.key for record in published] == [sound]
