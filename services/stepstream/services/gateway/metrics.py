"""Define the gateway's Prometheus metrics."""

from prometheus_client import CollectorRegistry, Counter

from stepstream.core.metrics import gateway

_LONGEST_REASON = 40
"""Characters of a worker's reason."""


class Metrics:
    """Metrics of one gateway, in their own registry: tests run several in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        calls = gateway.CALLS.create(self.registry)
        self.calls_refused = calls.labels("refused")
        self.calls_disconnected = calls.labels("disconnected")
        self.calls_overloaded = calls.labels("overloaded")
        self._calls_with_error = calls.labels("error")
        self._calls_by_error = {
            None: calls.labels("ok"),
            "upstream_unavailable": calls.labels("unanswered"),
            "client_disconnected": self.calls_disconnected,
        }
        self.call_seconds = gateway.CALL_SECONDS.create(self.registry)
        self.upstream_failures = gateway.UPSTREAM_FAILURES.create(self.registry)
        self.fallbacks = gateway.FALLBACKS.create(self.registry)
        self.alternatives = gateway.ALTERNATIVES.create(self.registry)
        self.parents_unknown = gateway.PARENTS_UNKNOWN.create(self.registry)
        choices = gateway.WORKER_CHOICES.create(self.registry)
        self.worker_first = choices.labels("first")
        self.worker_kept = choices.labels("kept")
        self.worker_moved = choices.labels("moved")
        self.track_calls = gateway.TRACK_CALLS.create(self.registry)
        harness_calls = gateway.HARNESS_CALLS.create(self.registry)
        self.harness_applied = harness_calls.labels("applied")
        self.harness_none = harness_calls.labels("none")
        self.harness_unnamed = harness_calls.labels("unnamed")
        self.canary_unserved = gateway.CANARY_UNSERVED.create(self.registry)
        self.prefixes = gateway.PREFIXES.create(self.registry)
        # `labels` costs more than all else of a count.
        self._prefixes_by_label: dict[tuple[str, str, str], Counter] = {}
        self._calls_by_track: dict[tuple[str, str], Counter] = {}
        self.workers = gateway.WORKERS.create(self.registry)
        events = gateway.EVENTS.create(self.registry)
        self.events_delivered = events.labels("delivered")
        self.events_refused = events.labels("refused")
        self.events_lost = events.labels("lost")
        self.events_unspooled = events.labels("unspooled")
        self.backlog = gateway.BACKLOG.create(self.registry)
        self.spool_bytes = gateway.SPOOL_BYTES.create(self.registry)
        self.spool_limit_bytes = gateway.SPOOL_LIMIT_BYTES.create(self.registry)
        self.in_flight = gateway.IN_FLIGHT.create(self.registry)

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
