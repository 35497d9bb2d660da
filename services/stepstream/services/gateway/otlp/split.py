"""An export cut into its traces: each is kept under its own key until it is whole."""

from collections.abc import Collection
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest


def split_traces(request: Any, wanted: Collection[str]) -> dict[str, bytes]:
    """For each trace of a `TraceRequest` that is wanted, by its id, a request with its spans alone."""
    return _split(request, wanted, "resource_spans", "scope_spans", "spans")


def split_logs(request: ExportLogsServiceRequest, wanted: Collection[str]) -> dict[str, bytes]:
    """As `split_traces`, of log records; only those of GenAI, which is what `wanted` traces have."""
    return _split(request, wanted, "resource_logs", "scope_logs", "log_records")


def _split(request: Any, wanted: Collection[str], resources: str, scopes: str, records: str) -> dict[str, bytes]:
    """The requests by trace; the names are those of the request's three levels."""
    found: dict[str, Any] = {}
    for group in getattr(request, resources):
        for scope in getattr(group, scopes):
            # Where records of this resource and scope go, by trace.
            places: dict[str, Any] = {}
            for record in getattr(scope, records):
                trace_id = record.trace_id.hex()
                if trace_id not in wanted:
                    continue
                if trace_id not in places:
                    part = getattr(found.setdefault(trace_id, type(request)()), resources).add()
                    part.resource.CopyFrom(group.resource)
                    places[trace_id] = getattr(part, scopes).add()
                    places[trace_id].scope.CopyFrom(scope.scope)
                getattr(places[trace_id], records).append(record)
    return {trace_id: part.SerializeToString() for trace_id, part in found.items()}
