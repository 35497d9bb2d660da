"""Count the restarts and failures of a stack's processes for Prometheus."""

from prometheus_client import Counter, Gauge

from stepstream.embedded.startup import Event

_UP = Gauge("stepstream_stack_process_up", "1 while a process runs, 0 after it failed or ended.", ["process"])
_RESTARTS = Counter("stepstream_stack_restarts_total", "Restarts of crashed processes.", ["process"])
_FAILURES = Counter("stepstream_stack_failures_total", "Times that a process could not be kept running.", ["process"])


def observe(event: Event) -> None:
    """Count an event of a process."""
    if event.state in ("ready", "restarted"):
        _UP.labels(event.name).set(1)
    if event.state in ("failed", "ended", "stopped"):
        _UP.labels(event.name).set(0)
    if event.state == "restarted":
        _RESTARTS.labels(event.name).inc()
    if event.state == "failed":
        _FAILURES.labels(event.name).inc()
