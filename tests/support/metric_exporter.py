"""Export every metric of the catalogue over HTTP, as a process without a fault or with every fault does."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from stepstream.core.metrics import every_metric
from stepstream.embedded.ports import free_block


class Exporter:
    """A process that exports every metric of the catalogue, as one without a fault does."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._metrics: dict[str, Any] = {metric.name: metric.create(registry) for metric in every_metric()}
        self.port = free_block(1)
        self._server, self._thread = start_http_server(self.port, "127.0.0.1", registry)
        self.set("stepstream_job_ready", 1)
        self.set("stepstream_gateway_spool_limit_bytes", 100)
        self.count("stepstream_gateway_calls_total", result="ok")
        for result in ("delivered", "lost", "refused", "unspooled"):
            self.count("stepstream_gateway_events_total", 0, result=result)
        for result in ("delivered", "refused", "given_up", "dropped"):
            self.count("stepstream_control_webhook_messages_total", 0, result=result)

    def set(self, name: str, value: float, **labels: str) -> None:
        self._of(name, labels).set(value)

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        self._of(name, labels).inc(by)

    def _of(self, name: str, labels: dict[str, str]) -> Any:
        return self._metrics[name].labels(**labels) if labels else self._metrics[name]

    def break_everything(self) -> None:
        """Set each metric as the fault of each alert does."""
        self.set("stepstream_table_faulty", 1, topic="policies")
        self.set("stepstream_job_ready", 0)
        self.set("stepstream_job_lag_seconds", 90)
        self.set("stepstream_job_lag_offsets", 500)
        self.set("stepstream_job_snapshot_age_seconds", 4000)
        self.set("stepstream_store_refresh_lag_seconds", 400)
        self.set("stepstream_store_rewriting_age_seconds", 30_000)
        self.set("stepstream_gateway_spool_bytes", 60)
        self.set("stepstream_gateway_backlog", 10)
        self.set("stepstream_alarms_active", 1)
        self.set("stepstream_learner_gap_alarm", 1)
        self.set("stepstream_learner_publication_failing", 1)
        self.set("stepstream_inference_newest_version", 3)
        self.set("stepstream_fleet_task_mix_collapsed", 1)
        self.count("stepstream_stack_failures_total", process="verify")
        self.count("stepstream_job_dead_letters_total", topic="steps", error="malformed")
        self.count("stepstream_job_failed_ticks_total")
        self.count("stepstream_job_history_lost_total", topic="steps")
        self.count("stepstream_job_late_erased_total", topic="steps")
        self.count("stepstream_gateway_events_total", result="lost")
        self.count("stepstream_inference_refused_checkpoints_total")
        self.count("stepstream_control_webhook_messages_total", result="given_up")

    def use_every_metric(self) -> None:
        """Count and set each metric that has no sample yet, with the label values `some`."""
        for metric in every_metric():
            one = self._of(metric.name, dict.fromkeys(metric.labels, "some"))
            if metric.kind == "histogram":
                one.observe(1)
            else:
                one.inc()

    def fail_calls(self) -> None:
        """Count failing calls and stale attempts, once more at each call: a rate needs two samples."""
        self.count("stepstream_gateway_calls_total", result="unanswered")
        self.count("stepstream_learner_trajectories_read_total")
        self.count("stepstream_learner_trajectories_dropped_total", reason="stale")

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def exporter() -> Iterator[Exporter]:
    """Export until the end of the block."""
    one = Exporter()
    try:
        yield one
    finally:
        one.stop()
