"""Count the restarts and failures of a stack's processes for Prometheus."""

from stepstream.core.metrics import services
from stepstream.embedded.startup import Event

_UP = services.PROCESS_UP.create()
_RESTARTS = services.RESTARTS.create()
_FAILURES = services.FAILURES.create()


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
