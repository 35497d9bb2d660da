"""An export cut into its traces: each is kept under its own key until it is whole."""

from collections.abc import Collection

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def split_traces(request: ExportTraceServiceRequest, wanted: Collection[str]) -> dict[str, bytes]:
    """For each trace that is wanted, by its id, a request with its spans alone."""
    found: dict[str, ExportTraceServiceRequest] = {}
    for group in request.resource_spans:
        for scope in group.scope_spans:
            # Where spans of this resource and scope go, by trace.
            places = {}
            for span in scope.spans:
                trace_id = span.trace_id.hex()
                if trace_id not in wanted:
                    continue
                if trace_id not in places:
                    part = found.setdefault(trace_id, ExportTraceServiceRequest()).resource_spans.add()
                    part.resource.CopyFrom(group.resource)
                    places[trace_id] = part.scope_spans.add()
                    places[trace_id].scope.CopyFrom(scope.scope)
                places[trace_id].spans.append(span)
    return {trace_id: part.SerializeToString() for trace_id, part in found.items()}


def split_logs(request: ExportLogsServiceRequest, wanted: Collection[str]) -> dict[str, bytes]:
    """As `split_traces`, of log records; only those of GenAI, which is what `wanted` traces have."""
    found: dict[str, ExportLogsServiceRequest] = {}
    for group in request.resource_logs:
        for scope in group.scope_logs:
            places = {}
            for record in scope.log_records:
                trace_id = record.trace_id.hex()
                if trace_id not in wanted:
                    continue
                if trace_id not in places:
                    part = found.setdefault(trace_id, ExportLogsServiceRequest()).resource_logs.add()
                    part.resource.CopyFrom(group.resource)
                    places[trace_id] = part.scope_logs.add()
                    places[trace_id].scope.CopyFrom(scope.scope)
                places[trace_id].log_records.append(record)
    return {trace_id: part.SerializeToString() for trace_id, part in found.items()}
