"""Fuzz OTLP: every export becomes valid records, is refused, or waits for the rest of its trace."""

import random
import zlib
from typing import Any

import orjson
from fuzzing import fuzz, refused
from mutations import json_bytes, mutated, mutated_bytes
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otlp_fixtures import GENERATIONS, recorded_requests

from stepstream.config import Settings
from stepstream.core.slices import at_once
from stepstream.services.gateway.errors import GatewayError
from stepstream.services.gateway.otlp import wire
from stepstream.services.gateway.otlp.assembly import AssembledRecord, Assembler
from stepstream.services.gateway.otlp.fast_steps import PlainStepWriter
from stepstream.services.gateway.otlp.identity import Defaults
from stepstream.services.gateway.otlp.intake import Intake, IntakeResult
from stepstream.services.gateway.otlp.span_index import SpanIndex
from stepstream.topics.codec import Codec

DEFAULTS = Defaults("shop", "analyse", "agent")
LARGEST_BODY = 100_000
BOMB = zlib.compress(bytes(10 * LARGEST_BODY))
"""A body of 1 KB that decompresses to ten times what is allowed."""


def test_otlp_takes_any_export() -> None:
    index = SpanIndex(10)
    intake = Intake(Assembler("test/1", index), PlainStepWriter("test/1", index), "test/1", lambda tenant, trace: False)
    codec = Codec(Settings())
    bodies = [
        (request.path, first_records(request.path, request.body))
        for name in GENERATIONS
        for request in recorded_requests(name)
    ]
    documents = [
        (request.path, first_records_of_json(orjson.loads(request.body)))
        for name in GENERATIONS
        for request in recorded_requests(name, as_json=True)
    ]

    def target(rng: random.Random) -> None:
        if rng.random() < 0.5:
            path, seed = rng.choice(documents)
            body, kind = json_bytes(mutated([seed], rng), rng), wire.JSON
        else:
            path, raw = rng.choice(bodies)
            body, kind = mutated_bytes(raw, rng), wire.PROTOBUF
        try:
            if rng.random() < 0.1:
                compressed = mutated_bytes(rng.choice((BOMB, zlib.compress(body, 1))), rng)
                body = wire.inflate(compressed, rng.choice(("gzip", "deflate", "br")), LARGEST_BODY)
                assert len(body) <= LARGEST_BODY
            result = take(intake, path, body, kind)
        except GatewayError as error:
            refused(error)
            wire.error_body(error, kind)
            return
        wire.success_body("traces", kind, result.rejected, result.reason)
        for record in result.records:
            if isinstance(record, AssembledRecord):
                codec.body(record.topic, record.record)

    try:
        fuzz(target)
    finally:
        codec.close()


def take(intake: Intake, path: str, body: bytes, kind: str) -> IntakeResult:
    if path == "/v1/traces":
        return at_once(intake.traces(at_once(wire.traces(body, kind)), DEFAULTS, 1))
    return at_once(intake.logs(at_once(wire.logs(body, kind)), DEFAULTS, 1))


def first_records(path: str, body: bytes) -> bytes:
    """Return an export with the first span or log record of each scope: a change hits more in a small document."""
    if path == "/v1/traces":
        traces = ExportTraceServiceRequest.FromString(body)
        for spans in (scope.spans for group in traces.resource_spans for scope in group.scope_spans):
            del spans[1:]
        return traces.SerializeToString()
    logs = ExportLogsServiceRequest.FromString(body)
    for records in (scope.log_records for group in logs.resource_logs for scope in group.scope_logs):
        del records[1:]
    return logs.SerializeToString()


def first_records_of_json(document: Any) -> Any:
    groups = [group for name in ("resourceSpans", "resourceLogs") for group in document.get(name, ())]
    for scope in [scope for group in groups for scope in group.get("scopeSpans", group.get("scopeLogs", ()))]:
        for name in ("spans", "logRecords"):
            if name in scope:
                scope[name] = scope[name][:1]
    return document
