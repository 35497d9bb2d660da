"""Test OTLP over HTTP for exporters: encodings, answers, and no success before Kafka's acknowledgement."""

import asyncio
import gzip
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from api_key_records import key_grant
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from otlp_fixtures import GENERATIONS, recorded_requests, trace_id
from prometheus_client import CollectorRegistry
from stack_fixtures import with_settings

from stepstream.config import Settings, load
from stepstream.delivery.confirmed_producer import NotDelivered
from stepstream.services.gateway.errors import Forbidden
from stepstream.services.gateway.grant import ANYTHING, Grant
from stepstream.services.gateway.otlp import wire
from stepstream.services.gateway.otlp.assembly import AssembledRecord
from stepstream.services.gateway.otlp.receiver import GrantOf, OtlpReceiver


@dataclass
class Kafka:
    """Takes records, or does not."""

    away: bool = False
    too_large: int | None = None
    records: list[AssembledRecord] = field(default_factory=list)

    async def deliver(self, events: Sequence[AssembledRecord], timeout_s: float) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise NotDelivered("Kafka is away")
        if self.too_large is not None and any(e.record["step_index"] == self.too_large for e in events):
            raise NotDelivered("too large", retry=False)
        self.records += events


@dataclass
class Reply:
    status: int
    headers: dict[bytes, bytes]
    body: bytes


def receiver(
    kafka: Kafka, settings: Settings | None = None, grant_of: GrantOf = lambda scope: ANYTHING
) -> OtlpReceiver:
    return OtlpReceiver(settings or load({}), kafka, CollectorRegistry(), "gateway/1", grant_of)


async def post(otlp: OtlpReceiver, path: str, headers: dict[str, str], body: bytes) -> Reply:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await otlp({"type": "http", "path": path, "headers": raw}, receive, send)
    return Reply(sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"])


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("as_json", [False, True], ids=["protobuf", "json"])
@pytest.mark.parametrize("encoding", ["", "gzip", "deflate"])
async def test_every_generation_is_accepted_in_every_encoding(generation: str, as_json: bool, encoding: str) -> None:
    kafka = Kafka()
    otlp = receiver(kafka)
    for request in recorded_requests(generation, as_json=as_json, encoding=encoding):
        reply = await post(otlp, request.path, request.headers, request.body)
        assert (reply.status, reply.headers[b"content-type"].decode()) == (200, request.content_type)
        assert reply.body == (b"{}" if as_json else b"")
    topics = [record.topic for record in kafka.records]
    if generation in ("events-as-logs", "current-details", "no-content"):
        # The content comes in log records, so both parts wait in the topic of open traces.
        assert topics == ["open-traces", "open-traces"]
        assert [record.record["signal"] for record in kafka.records] == ["traces", "logs"]
    else:
        assert topics == ["steps"] * 3
        assert [record.record["step_index"] for record in kafka.records] == [0, 1, 2]
        assert {record.key for record in kafka.records} == {trace_id(generation)}


async def test_spans_of_an_incomplete_trace_wait_for_the_rest() -> None:
    kafka = Kafka()
    otlp = receiver(kafka)
    request = recorded_requests("openllmetry")[0]
    first, second = (
        ExportTraceServiceRequest.FromString(request.body),
        ExportTraceServiceRequest.FromString(request.body),
    )
    del first.resource_spans[0].scope_spans[1]  # the agent's own span and its tools, which end later
    del second.resource_spans[0].scope_spans[0]
    for part in (first, second, second):
        assert (await post(otlp, request.path, request.headers, part.SerializeToString())).status == 200
    assert [record.topic for record in kafka.records] == ["open-traces"] * 3
    assert {record.key for record in kafka.records} == {trace_id("openllmetry")}
    # Of a trace with parts on the log, what is whole in itself belongs there too.
    assert (await post(otlp, request.path, request.headers, request.body)).status == 200
    assert kafka.records[-1].topic == "open-traces"


async def test_a_large_request_leaves_turns_of_the_loop_to_running_streams() -> None:
    turns = 0

    async def stream() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    kafka = Kafka()
    otlp = receiver(kafka)
    request = recorded_requests("openllmetry")[0]
    whole = ExportTraceServiceRequest()
    for number in range(400):
        other = request.body.replace(bytes.fromhex(trace_id("openllmetry")), number.to_bytes(16, "big"))
        whole.MergeFromString(other)
    body = whole.SerializeToString()
    assert len(body) > 1_000_000
    streaming = asyncio.create_task(stream())
    reply = await post(otlp, request.path, request.headers, body)
    streaming.cancel()
    assert reply.status == 200
    assert len(kafka.records) == 3 * 400
    assert turns > 10  # a slice of 2 ms at a time; without slices there are three turns


async def test_an_unacknowledged_request_answers_503() -> None:
    otlp = receiver(Kafka(away=True))
    request = recorded_requests("openllmetry")[0]
    reply = await post(otlp, request.path, request.headers, request.body)
    assert reply.status == 503
    assert int(reply.headers[b"retry-after"]) > 0
    assert b"Kafka is away" in reply.body


async def test_only_the_record_that_kafka_rejects_is_rejected() -> None:
    kafka = Kafka(too_large=1)
    request = recorded_requests("openllmetry")[0]
    reply = await post(receiver(kafka), request.path, request.headers, request.body)
    partial = ExportTraceServiceResponse.FromString(reply.body).partial_success
    assert (reply.status, partial.rejected_spans, partial.error_message) == (200, 1, "too large")
    assert [record.record["step_index"] for record in kafka.records] == [0, 2]


@pytest.mark.parametrize(
    ("headers", "body", "status", "partial"),
    [
        ({"content-type": "application/x-protobuf"}, b"\xff\xff", 400, "no OTLP request"),
        ({"content-type": "application/json"}, b"{", 400, "no OTLP request"),
        ({"content-type": "application/json"}, b"[]", 400, "a JSON object"),
        ({"content-type": "application/json"}, b'{"resourceSpans":[{"scopeSpans":7}]}', 400, "no OTLP request"),
        ({"content-type": "text/plain"}, b"", 415, "content-type must be"),
        ({}, b"", 415, "content-type must be"),
        ({"content-type": "application/json", "content-encoding": "br"}, b"", 415, "content-encoding must be"),
        ({"content-type": "application/json", "content-encoding": "gzip"}, b"{}", 400, "is not gzip"),
        (
            {"content-type": "application/json", "content-encoding": "gzip"},
            gzip.compress(b"{}", mtime=0)[:-4],
            400,
            "cut off",
        ),
        (
            {"content-type": "application/json", "content-encoding": "gzip"},
            gzip.compress(b" " * 2**21, mtime=0),
            413,
            "larger",
        ),
    ],
)
async def test_an_unreadable_request_is_rejected_with_a_reason(
    headers: dict[str, str], body: bytes, status: int, partial: str
) -> None:
    otlp = receiver(Kafka(), with_settings(load({}), otlp={"max_body_mb": 1}))
    reply = await post(otlp, "/v1/traces", headers, body)
    assert reply.status == status
    if headers.get("content-type") == "application/json":
        assert partial in orjson.loads(reply.body)["message"]
    else:
        assert reply.body[0] == 0x08  # a google.rpc.Status: its code
        assert partial.encode() in reply.body


async def test_compressed_bodies_are_inflated_one_at_a_time_and_never_on_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running, most, on_the_loop = 0, 0, False
    inflate = wire.inflate

    def observed(body: bytes, encoding: str, max_bytes: int) -> bytes:
        nonlocal running, most, on_the_loop
        on_the_loop = on_the_loop or threading.current_thread() is threading.main_thread()
        running += 1
        most = max(most, running)
        time.sleep(0.005)
        running -= 1
        return inflate(body, encoding, max_bytes)

    monkeypatch.setattr(wire, "inflate", observed)
    otlp = receiver(Kafka(), with_settings(load({}), otlp={"max_body_mb": 1}))
    headers = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}
    bomb = gzip.compress(bytes(2**21))
    assert len(bomb) < 4096
    replies = await asyncio.gather(*[post(otlp, "/v1/traces", headers, bomb) for _ in range(5)])
    assert [reply.status for reply in replies] == [413] * 5
    assert (most, on_the_loop) == (1, False)


async def test_decompressed_bodies_that_wait_for_kafka_have_a_limit() -> None:
    acknowledged = asyncio.Event()

    class SlowKafka(Kafka):
        async def deliver(self, events: Sequence[AssembledRecord], timeout_s: float) -> None:
            await acknowledged.wait()
            await super().deliver(events, timeout_s)

    otlp = receiver(SlowKafka(), with_settings(load({}), http={"bodies_mb": 2}))
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    body = gzip.compress(b"{}" + b" " * (2**20 - 2))
    waiting = [asyncio.create_task(post(otlp, "/v1/traces", headers, body)) for _ in range(3)]
    [first, *_], _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    refused = await first
    assert (refused.status, refused.headers[b"retry-after"]) == (503, b"2")
    acknowledged.set()
    assert sorted([(await each).status for each in waiting]) == [200, 200, 503]
    assert (await post(otlp, "/v1/traces", headers, body)).status == 200


async def test_a_faulty_span_is_rejected_alone() -> None:
    kafka = Kafka()
    otlp = receiver(kafka)
    request = recorded_requests("openinference")[0]
    export = ExportTraceServiceRequest.FromString(request.body)
    wrong = export.resource_spans.add().scope_spans.add().spans
    wrong.add(trace_id=b"short", span_id=b"12345678")
    guess = wrong.add(trace_id=b"0123456789abcdef", span_id=b"12345678").attributes.add(key="stepstream.consent")
    guess.value.string_value = "maybe"
    reply = await post(otlp, request.path, request.headers, export.SerializeToString())
    partial = ExportTraceServiceResponse.FromString(reply.body).partial_success
    assert (reply.status, partial.rejected_spans) == (200, 2)
    assert "16 bytes" in partial.error_message
    assert [record.topic for record in kafka.records] == ["steps"] * 3


@pytest.mark.parametrize("odd", ["no hexadecimal", "CvdlGRbNQ92ESOshHIAxnA==", 12, ["ab"], None, ""])
async def test_a_malformed_id_in_json_rejects_only_its_span(odd: Any) -> None:
    kafka = Kafka()
    request = recorded_requests("openinference", as_json=True)[0]
    export = orjson.loads(request.body)
    wrong = {"traceId": odd, "spanId": "b7ad6b7169203331"}, {"traceId": "ab" * 16, "spanId": odd}
    export["resourceSpans"].append({"scopeSpans": [{"spans": wrong}]})
    reply = await post(receiver(kafka), request.path, request.headers, orjson.dumps(export))
    assert (reply.status, orjson.loads(reply.body)["partialSuccess"]["rejectedSpans"]) == (200, "2")
    assert [record.topic for record in kafka.records] == ["steps"] * 3

    logs = [{"eventName": "gen_ai.choice", "traceId": odd, "spanId": "b7ad6b7169203331"}]
    export = {"resourceLogs": [{"scopeLogs": [{"logRecords": logs}]}]}
    reply = await post(receiver(kafka), "/v1/logs", request.headers, orjson.dumps(export))
    assert (reply.status, orjson.loads(reply.body)["partialSuccess"]["rejectedLogRecords"]) == (200, "1")


ODD = [
    {"arrayValue": {"values": [{"stringValue": "chat"}]}},
    {"kvlistValue": {}},
    {"boolValue": False},
    {"intValue": 0},
]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    "name", ["gen_ai.operation.name", "openinference.span.kind", "mcp.method.name", "stepstream.consent"]
)
async def test_an_attribute_of_another_type_affects_no_other_span(name: str, odd: Any) -> None:
    kafka = Kafka()
    request = recorded_requests("openinference", as_json=True)[0]
    export = orjson.loads(request.body)
    strange = {"traceId": "ab" * 16, "spanId": "b7ad6b7169203331", "attributes": [{"key": name, "value": odd}]}
    export["resourceSpans"].append({"scopeSpans": [{"spans": [strange]}]})
    reply = await post(receiver(kafka), request.path, request.headers, orjson.dumps(export))
    refused = name == "stepstream.consent"  # an invalid consent is no permission
    assert (reply.status, b"rejectedSpans" in reply.body) == (200, refused)
    assert [record.topic for record in kafka.records] == ["steps"] * 3 + ([] if refused else ["open-traces"])


@pytest.mark.parametrize("name", ["gen_ai.input.messages", "gen_ai.output.messages"])
async def test_a_trace_that_cannot_be_assembled_affects_no_other_trace(name: str) -> None:
    kafka = Kafka()
    request = recorded_requests("openinference", as_json=True)[0]
    export = orjson.loads(request.body)
    deep = "[" * 300 + "]" * 300  # orjson reads it, and cannot write it
    values = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", name: deep}
    attributes = [{"key": key, "value": {"stringValue": value}} for key, value in values.items()]
    span = {"traceId": "ab" * 16, "spanId": "b7ad6b7169203331", "endTimeUnixNano": "2", "attributes": attributes}
    export["resourceSpans"].append({"scopeSpans": [{"spans": [span]}]})
    reply = await post(receiver(kafka), request.path, request.headers, orjson.dumps(export))
    assert reply.status == 200
    # In the topic of open traces it becomes a dead letter.
    assert [record.topic for record in kafka.records] == ["steps"] * 3 + ["open-traces"]


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/logs"])
@pytest.mark.parametrize("levels", [400, 900, 100_000])
async def test_json_that_is_nested_too_deeply_is_refused(path: str, levels: int) -> None:
    name = path.removeprefix("/v1/").replace("traces", "spans").title()
    value = b'{"arrayValue":{"values":[' * (levels // 3) + b"]}}" * (levels // 3)
    body = b'{"resource%b":[{"resource":{"attributes":[{"key":"a","value":%b}]}}]}' % (name.encode(), value)
    reply = await post(receiver(Kafka()), path, {"content-type": "application/json"}, body)
    assert reply.status == 400


async def test_a_log_record_without_its_span_is_rejected() -> None:
    kafka = Kafka()
    export = {
        "resourceLogs": [{"scopeLogs": [{"logRecords": [{"eventName": "gen_ai.choice"}, {"eventName": "boot"}]}]}]
    }
    reply = await post(receiver(kafka), "/v1/logs", {"content-type": "application/json"}, orjson.dumps(export))
    partial = orjson.loads(reply.body)["partialSuccess"]
    assert partial["rejectedLogRecords"] == "1"
    assert "gen_ai.choice has no trace and span" in partial["errorMessage"]
    assert kafka.records == []
    assert ExportLogsServiceResponse.FromString(b"").partial_success.rejected_log_records == 0


async def test_an_evaluation_without_a_known_subject_is_rejected() -> None:
    kafka = Kafka()

    def log(**about: str) -> dict[str, Any]:
        attributes = [
            {"key": name.replace("__", "."), "value": {"stringValue": value}} for name, value in about.items()
        ]
        return {"eventName": "gen_ai.evaluation.result", "attributes": attributes}

    logs = [log(gen_ai__response__id="of another process"), log(gen_ai__conversation__id="chat-7"), log()]
    export = {"resourceLogs": [{"scopeLogs": [{"logRecords": logs}]}]}
    reply = await post(receiver(kafka), "/v1/logs", {"content-type": "application/json"}, orjson.dumps(export))
    partial = orjson.loads(reply.body)["partialSuccess"]
    assert partial["rejectedLogRecords"] == "2"
    assert "gen_ai.response.id" in partial["errorMessage"]
    assert [record.key for record in kafka.records] == ["chat-7"]


async def test_an_api_key_decides_the_tenant_and_lowers_the_consent() -> None:
    kafka = Kafka()
    request = recorded_requests("openinference")[0]
    await post(
        receiver(kafka, grant_of=lambda scope: key_grant(tenant="acme", consent="analyse")),
        request.path,
        request.headers,
        request.body,
    )
    assert {(record.record["tenant"], record.record["consent"]) for record in kafka.records} == {("acme", "analyse")}

    def dead_letter(scope: Any) -> Grant:
        raise Forbidden("not for otlp")

    reply = await post(receiver(kafka, grant_of=dead_letter), request.path, request.headers, request.body)
    assert reply.status == 403
    assert len(kafka.records) == 3
