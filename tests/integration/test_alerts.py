"""Every alert fires in a real Prometheus that scrapes the real metrics of a fault, and none without a fault."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_server import PrometheusServer
from waiting import wait_until

from stepstream.core.metrics import every_metric
from stepstream.embedded.ports import free_block


class Exporter:
    """A process that exports every metric of the catalogue, as one without a fault does."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._metrics: dict[str, Any] = {metric.name: metric.create(registry) for metric in every_metric()}
        self.port = free_block(1)
        self._server, self._thread = start_http_server(self.port, "127.0.0.1", registry)
        self.set("stepstream_job_ready", 1)
        self.set("stepstream_gateway_spool_limit_bytes", 100)
        self.count("stepstream_gateway_calls_total", result="ok")
        for result in ("delivered", "lost", "refused", "unspooled"):
            self.count("stepstream_gateway_events_total", 0, result=result)

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
        self.set("stepstream_gateway_spool_bytes", 60)
        self.set("stepstream_gateway_backlog", 10)
        self.set("stepstream_alarms_active", 1)
        self.set("stepstream_learner_gap_alarm", 1)
        self.set("stepstream_learner_publication_failing", 1)
        self.set("stepstream_inference_newest_version", 3)
        self.count("stepstream_stack_failures_total", process="verify")
        self.count("stepstream_job_dead_letters_total", topic="steps", error="malformed")
        self.count("stepstream_job_failed_ticks_total")
        self.count("stepstream_job_history_lost_total", topic="steps")
        self.count("stepstream_job_late_erased_total", topic="steps")
        self.count("stepstream_gateway_events_total", result="lost")
        self.count("stepstream_inference_refused_checkpoints_total")

    def fail_calls(self) -> None:
        """Count failing calls and stale attempts, once more at each call: a rate needs two samples."""
        self.count("stepstream_gateway_calls_total", result="unanswered")
        self.count("stepstream_learner_trajectories_read_total")
        self.count("stepstream_learner_trajectories_dropped_total", reason="stale")

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    exporter = Exporter()
    yield exporter
    exporter.stop()


def test_every_alert_fires_at_its_fault_and_none_without(exporter: Exporter, tmp_path: Path) -> None:
    other = Exporter()
    targets = {"all": f"127.0.0.1:{exporter.port}", "other": f"127.0.0.1:{other.port}"}
    try:
        with PrometheusServer(tmp_path, targets) as prometheus:
            wait_until(lambda: len(prometheus.query("up == 1")) == len(targets), "both are scraped")
            prometheus.wait_for_evaluation()
            assert prometheus.firing() == set()
            other.stop()
            exporter.break_everything()
            expected = {rule["alert"] for rule in prometheus.rules if "alert" in rule}

            def all_fire() -> bool:
                exporter.fail_calls()
                return prometheus.firing() == expected

            wait_until(all_fire, lambda: f"no alert: {sorted(expected - prometheus.firing())}", timeout_s=60)
    finally:
        other.stop()
