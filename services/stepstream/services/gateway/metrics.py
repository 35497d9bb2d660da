"""Define the gateway's Prometheus metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


_LONGEST_REASON = 40
"""Characters of a worker's reason."""


class Metrics:
    """Metrics of one gateway, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        calls = Counter("stepstream_gateway_calls", "Model calls by result.", ["result"], registry=self.registry)
        self.calls_refused = calls.labels("refused")
        self.calls_disconnected = calls.labels("disconnected")
        self.calls_overloaded = calls.labels("overloaded")
        self._calls_with_error = calls.labels("error")
        self._calls_by_error = {
            None: calls.labels("ok"),
            "upstream_unavailable": calls.labels("unanswered"),
            "client_disconnected": self.calls_disconnected,
        }
        self.call_seconds = Histogram(
            "stepstream_gateway_call_seconds", "Duration of whole calls.", buckets=BUCKETS, registry=self.registry
        )
        self.upstream_failures = Counter(
            "stepstream_gateway_upstream_failures", "Attempts that an upstream did not answer.", registry=self.registry
        )
        self.fallbacks = Counter(
            "stepstream_gateway_fallbacks",
            "Calls that a provider could not serve and its fallback got.",
            ["provider", "fallback"],
            registry=self.registry,
        )
        self.alternatives = Counter(
            "stepstream_gateway_alternatives",
            "Alternatives beyond the first (n > 1), each recorded as a branch of its own.",
            registry=self.registry,
        )
        self.parents_unknown = Counter(
            "stepstream_gateway_parents_unknown",
            "Calls that name an unknown parent trajectory: recorded without the parent's step.",
            registry=self.registry,
        )
        choices = Counter(
            "stepstream_gateway_worker_choices",
            "Chosen workers: `first` of a trajectory, `kept` (the one of the step before), or `moved` from it.",
            ["result"],
            registry=self.registry,
        )
        self.worker_first = choices.labels("first")
        self.worker_kept = choices.labels("kept")
        self.worker_moved = choices.labels("moved")
        self.track_calls = Counter(
            "stepstream_gateway_track_calls",
            "Calls that inference workers answered, by model and track.",
            ["model", "track"],
            registry=self.registry,
        )
        self.canary_unserved = Counter(
            "stepstream_gateway_canary_unserved",
            "Calls of the track `canary` that went to `stable`, since no worker served the canary.",
            registry=self.registry,
        )
        self.prefixes = Counter(
            "stepstream_gateway_prefixes",
            "Calls after a step with tokens. The prompt begins so: by the worker's `splice`, or "
            "`rendered` again. It does not: `broken`, with the reason. The agent changed its history: `none`.",
            ["model", "result", "reason"],
            registry=self.registry,
        )
        # `labels` costs more than all else of a count.
        self._prefixes_by_label: dict[tuple[str, str, str], Counter] = {}
        self._calls_by_track: dict[tuple[str, str], Counter] = {}
        self.workers = Gauge(
            "stepstream_gateway_workers",
            "Inference workers by model and state: that of their status, `paused` after a failed call, or `static`.",
            ["model", "state"],
            registry=self.registry,
        )
        events = Counter("stepstream_gateway_events", "Events by result.", ["result"], registry=self.registry)
        self.events_delivered = events.labels("delivered")
        self.events_refused = events.labels("refused")
        self.events_lost = events.labels("lost")
        self.events_unspooled = events.labels("unspooled")
        self.backlog = Gauge(
            "stepstream_gateway_backlog",
            "Events that Kafka has not acknowledged.",
            registry=self.registry,
        )
        self.spool_bytes = Gauge("stepstream_gateway_spool_bytes", "Bytes of the spool.", registry=self.registry)
        self.in_flight = Gauge(
            "stepstream_gateway_upstream_in_flight",
            "Calls in flight by upstream.",
            ["upstream"],
            registry=self.registry,
        )

    def count_prefix(self, model: str, result: str, reason: str) -> None:
        """Count a call whose trajectory has recorded tokens."""
        key = model, result, reason
        counter = self._prefixes_by_label.get(key)
        if counter is None:
            counter = self._prefixes_by_label[key] = self.prefixes.labels(model, result, reason[:_LONGEST_REASON])
        counter.inc()

    def count_track(self, model: str, track: str) -> None:
        """Count a call that a worker answered."""
        counter = self._calls_by_track.get((model, track))
        if counter is None:
            counter = self._calls_by_track[model, track] = self.track_calls.labels(model, track)
        counter.inc()

    def count_call(self, error: str | None) -> None:
        """Count a recorded call by the error of its step."""
        self._calls_by_error.get(error, self._calls_with_error).inc()
