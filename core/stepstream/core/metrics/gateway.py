"""Define the metrics of the gateway and of its OpenTelemetry receiver."""

from stepstream.core.metrics.definition import CounterMetric, GaugeMetric, HistogramMetric

CALLS = CounterMetric(
    "stepstream_gateway_calls_total",
    "calls",
    "Model calls by result: ok, error, unanswered, disconnected, refused, overloaded.",
    ("result",),
)
CALL_SECONDS = HistogramMetric(
    "stepstream_gateway_call_seconds",
    "seconds",
    "Duration of whole calls.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)
UPSTREAM_FAILURES = CounterMetric(
    "stepstream_gateway_upstream_failures_total", "attempts", "Attempts that an upstream did not answer."
)
FALLBACKS = CounterMetric(
    "stepstream_gateway_fallbacks_total",
    "calls",
    "Calls that a provider could not serve and its fallback got.",
    ("provider", "fallback"),
)
ALTERNATIVES = CounterMetric(
    "stepstream_gateway_alternatives_total",
    "alternatives",
    "Alternatives beyond the first (n > 1), each recorded as a branch of its own.",
)
PARENTS_UNKNOWN = CounterMetric(
    "stepstream_gateway_parents_unknown_total",
    "calls",
    "Calls that name an unknown parent trajectory: recorded without the parent's step.",
)
WORKER_CHOICES = CounterMetric(
    "stepstream_gateway_worker_choices_total",
    "choices",
    "Chosen workers: `first` of a trajectory, `kept` (the one of the step before), or `moved` from it.",
    ("result",),
)
TRACK_CALLS = CounterMetric(
    "stepstream_gateway_track_calls_total",
    "calls",
    "Calls that inference workers answered, by model and track.",
    ("model", "track"),
)
HARNESS_CALLS = CounterMetric(
    "stepstream_gateway_harness_calls_total",
    "calls",
    "Calls that opted in to their agent's harness: `applied`, `none` (no version serves the agent), or `unnamed` (the "
    "call names no trajectory).",
    ("result",),
)
CANARY_UNSERVED = CounterMetric(
    "stepstream_gateway_canary_unserved_total",
    "calls",
    "Calls of the track `canary` that went to `stable`, since no worker served the canary.",
)
PREFIXES = CounterMetric(
    "stepstream_gateway_prefixes_total",
    "calls",
    "Calls after a step with tokens. The prompt begins so: by the worker's `splice`, or `rendered` again. It does not: "
    "`broken`, with the reason. The agent changed its history: `none`.",
    ("model", "result", "reason"),
)
WORKERS = GaugeMetric(
    "stepstream_gateway_workers",
    "workers",
    "Inference workers by model and state: that of their status, `paused` after a failed call, or `static`.",
    ("model", "state"),
)
EVENTS = CounterMetric(
    "stepstream_gateway_events_total",
    "events",
    "Events by result: delivered; refused by Kafka; lost, as the spool was full; unspooled, as its disk failed.",
    ("result",),
)
BACKLOG = GaugeMetric("stepstream_gateway_backlog", "events", "Events that Kafka has not acknowledged.")
SPOOL_BYTES = GaugeMetric("stepstream_gateway_spool_bytes", "bytes", "Size of the spool.")
SPOOL_LIMIT_BYTES = GaugeMetric(
    "stepstream_gateway_spool_limit_bytes", "bytes", "Size at which the spool drops its oldest events."
)
IN_FLIGHT = GaugeMetric("stepstream_gateway_upstream_in_flight", "calls", "Calls in flight by upstream.", ("upstream",))
OTLP_REQUESTS = CounterMetric(
    "stepstream_otlp_requests_total", "requests", "OTLP requests by signal and HTTP status.", ("signal", "result")
)
OTLP_RECORDS = CounterMetric(
    "stepstream_otlp_records_total", "records", "Records assembled from OTLP requests.", ("topic",)
)
OTLP_REJECTED = CounterMetric(
    "stepstream_otlp_rejected_total", "spans and log records", "Rejected spans and log records.", ("signal",)
)

GATEWAY = (
    CALLS, CALL_SECONDS, UPSTREAM_FAILURES, FALLBACKS, ALTERNATIVES, PARENTS_UNKNOWN, WORKER_CHOICES, TRACK_CALLS,
    HARNESS_CALLS, CANARY_UNSERVED, PREFIXES, WORKERS, EVENTS, BACKLOG, SPOOL_BYTES, SPOOL_LIMIT_BYTES, IN_FLIGHT,
    OTLP_REQUESTS, OTLP_RECORDS, OTLP_REJECTED,
)  # fmt: skip
