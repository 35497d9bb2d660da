"""Every alert fires in a real Prometheus that scrapes the real metrics of a fault, and none without a fault."""

from pathlib import Path

from metric_exporter import Exporter, exporter
from prometheus_server import PrometheusServer
from waiting import wait_until


def test_every_alert_fires_at_its_fault_and_none_without(tmp_path: Path) -> None:
    other = Exporter()
    with exporter() as one:
        targets = {"all": f"127.0.0.1:{one.port}", "other": f"127.0.0.1:{other.port}"}
        with PrometheusServer(tmp_path, targets) as prometheus:
            wait_until(lambda: len(prometheus.query("up == 1")) == len(targets), "both are scraped")
            prometheus.wait_for_evaluation()
            # On a busy machine a scrape may time out: that target is then down until the next one.
            wait_until(lambda: not prometheus.firing(), lambda: f"false alerts: {prometheus.firing()}")
            other.stop()
            one.break_everything()
            expected = {rule["alert"] for rule in prometheus.rules if "alert" in rule}

            def all_fire() -> bool:
                one.fail_calls()
                return prometheus.firing() == expected

            wait_until(all_fire, lambda: f"no alert: {sorted(expected - prometheus.firing())}")
