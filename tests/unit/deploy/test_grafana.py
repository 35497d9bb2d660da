"""The dashboards are generated, and Grafana finds them and the data sources that they name."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from chart import CHART

from stepstream.cli.dashboard_panels import CLICKHOUSE, PROMETHEUS
from stepstream.cli.dashboards import DASHBOARDS

DEPLOY = CHART.parent
OVERLAY: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.grafana.yaml").read_text())
PROVISIONING = DEPLOY / "grafana" / "provisioning"


def test_the_files_are_generated() -> None:
    files = {file.name: file.read_text() for file in (CHART / "dashboards").iterdir()}
    assert files == {f"{board.uid}.json": board.text() for board in DASHBOARDS}, "run `stepstream schemas generate`"
    rules = (DEPLOY / "prometheus" / "rules.yml").read_text()
    assert (CHART / "rules.yml").read_text() == rules, "run `stepstream schemas generate`"


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.uid)
def test_panels_do_not_overlap_and_explain_themselves(board: Any) -> None:
    assert len({panel.title for panel in board.panels}) == len(board.panels)
    assert all(panel.meaning.endswith(".") and panel.queries for panel in board.panels)


def test_the_sources_of_panels_are_provisioned() -> None:
    (file,) = (PROVISIONING / "datasources").iterdir()
    sources = {source["uid"]: source["type"] for source in yaml.safe_load(file.read_text())["datasources"]}
    assert sources == {PROMETHEUS: "prometheus", CLICKHOUSE: "grafana-clickhouse-datasource"}


def test_compose_runs_grafana_with_the_dashboards_and_an_account_that_only_reads() -> None:
    schema = yaml.safe_load((DEPLOY.parents[1] / "tests" / "data" / "compose" / "compose-spec.json").read_text())
    jsonschema.validate(OVERLAY, schema)
    grafana = OVERLAY["services"]["grafana"]
    assert all(port.startswith("127.0.0.1:") for port in grafana["ports"])
    mounts = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    assert mounts["./chart/dashboards"] == dashboards_folder()
    assert all((DEPLOY / source).exists() for source in mounts if source.startswith("."))
    (reader,) = OVERLAY["services"]["clickhouse"]["volumes"]
    account = (DEPLOY / reader.partition(":")[0]).read_text()
    assert f"<{grafana['environment']['CLICKHOUSE_USER']}>" in account
    assert account.count("GRANT") == 1
    assert "GRANT SELECT ON stepstream.*" in account


def dashboards_folder() -> str:
    (file,) = (PROVISIONING / "dashboards").iterdir()
    (provider,) = yaml.safe_load(Path(file).read_text())["providers"]
    return str(provider["options"]["path"])
