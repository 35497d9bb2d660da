"""Every query of every panel runs: PromQL on a real Prometheus with all metrics, SQL on the store with all views."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from chart import CHART
from clickhouse_connect.driver.client import Client
from metric_exporter import exporter
from prometheus_server import PrometheusServer
from waiting import wait_until

from stepstream.jobs.clickhouse.views import views

BOARDS: dict[str, dict[str, Any]] = {
    file.stem: json.loads(file.read_text()) for file in sorted((CHART / "dashboards").glob("*.json"))
}
PANELS = [(board, panel) for board, content in BOARDS.items() for panel in content["panels"]]
PROMQL = [
    (f"{board}: {panel['title']}", target["expr"])
    for board, panel in PANELS
    for target in panel["targets"]
    if "expr" in target
]
SQL = [
    (f"{board}: {panel['title']}", target["rawSql"])
    for board, panel in PANELS
    for target in panel["targets"]
    if "rawSql" in target
]
VARIABLES = [
    (f"{board}: {variable['name']}", variable["query"])
    for board, content in BOARDS.items()
    for variable in content["templating"]["list"]
]
MACROS = {"$__fromTime": "toDateTime(1763856000)", "$__toTime": "toDateTime(1763942400)"}
"""Macros as Grafana's plugin for ClickHouse expands them."""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    folder = tmp_path_factory.mktemp("prometheus")
    with exporter() as one, PrometheusServer(folder, {"all": f"127.0.0.1:{one.port}"}) as server:
        wait_until(lambda: server.query("up == 1"), "it is scraped")
        for _ in range(2):  # a rate needs two values
            one.use_every_metric()
            one.break_everything()
            server.wait_for_evaluation()
        yield server


@pytest.mark.parametrize(("panel", "expression"), PROMQL)
def test_a_panel_of_prometheus_shows_data(prometheus: PrometheusServer, panel: str, expression: str) -> None:
    wait_until(lambda: prometheus.query(expression), f"{panel} has samples", timeout_s=60)


@pytest.mark.parametrize(("panel", "sql"), [*SQL, *VARIABLES])
def test_a_query_of_clickhouse_runs_and_reads_views_only(view_client: Client, panel: str, sql: str) -> None:
    read = set(re.findall(r"FROM (\w+)", sql))
    assert read
    assert read <= set(views()), panel
    for macro, value in MACROS.items():
        sql = sql.replace(macro, value)
    chosen = re.sub(r"\$\{(tenant|model)\}", "some", sql)
    assert "$" not in chosen
    view_client.query(chosen)
