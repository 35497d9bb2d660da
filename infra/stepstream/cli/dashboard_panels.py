"""Describe Grafana dashboards, and write them as Grafana's JSON. Pure."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

PROMETHEUS: Literal["prometheus"] = "prometheus"
CLICKHOUSE: Literal["clickhouse"] = "clickhouse"
"""Ids of the provisioned data sources."""
_TYPES = {PROMETHEUS: "prometheus", CLICKHOUSE: "grafana-clickhouse-datasource"}
_COLUMNS, _PANEL_WIDTH, _PANEL_HEIGHT = 24, 12, 8
_SCHEMA_VERSION = 39


@dataclass(frozen=True)
class Query:
    """One query of a panel."""

    text: str
    """PromQL, or ClickHouse SQL with macros of Grafana's plugin (`$__fromTime`) and `${variable}`."""
    legend: str = ""
    """Name of a PromQL series, as `{{process}}`; empty: all labels."""


@dataclass(frozen=True)
class Panel:
    """One chart, number or table."""

    title: str
    meaning: str
    """Shown at the panel's title: how to read it."""
    queries: tuple[Query, ...]
    source: Literal["prometheus", "clickhouse"] = PROMETHEUS
    kind: Literal["timeseries", "stat", "table"] = "timeseries"
    unit: str = "short"
    """Unit of the values, as Grafana names it: `s`, `bytes`, `percentunit`, `ops`."""


def chart(title: str, meaning: str, query: str, legend: str = "", unit: str = "short") -> Panel:
    """Return the panel of one PromQL query over time."""
    return Panel(title, meaning, (Query(query, legend),), unit=unit)


def view_chart(title: str, meaning: str, query: str) -> Panel:
    """Return the panel of a view in ClickHouse over time: columns `time`, `series` and a value."""
    return Panel(title, meaning, (Query(query),), source=CLICKHOUSE)


def view_table(title: str, meaning: str, query: str) -> Panel:
    """Return the table of a view in ClickHouse."""
    return Panel(title, meaning, (Query(query),), source=CLICKHOUSE, kind="table")


@dataclass(frozen=True)
class Variable:
    """A choice at the top of a dashboard: the values of the query's column."""

    name: str
    query: str
    """ClickHouse SQL."""


@dataclass(frozen=True)
class Dashboard:
    """One dashboard."""

    uid: str
    title: str
    panels: tuple[Panel, ...]
    variables: tuple[Variable, ...] = ()
    since: str = "now-6h"
    """Begin of the shown range, as Grafana writes it."""

    def text(self) -> str:
        """Return the dashboard as a file for Grafana's provisioning."""
        return json.dumps(self._model(), indent=1) + "\n"

    def _model(self) -> dict[str, Any]:
        return {
            "uid": self.uid,
            "title": self.title,
            "tags": ["stepstream"],
            "schemaVersion": _SCHEMA_VERSION,
            "editable": True,
            "refresh": "30s",
            "time": {"from": self.since, "to": "now"},
            "templating": {"list": [_variable(variable) for variable in self.variables]},
            "panels": list(self._panels()),
        }

    def _panels(self) -> Iterator[dict[str, Any]]:
        in_a_row = _COLUMNS // _PANEL_WIDTH
        for number, panel in enumerate(self.panels):
            row, column = divmod(number, in_a_row)
            yield {
                "id": number + 1,
                "type": panel.kind,
                "title": panel.title,
                "description": panel.meaning,
                "gridPos": {
                    "x": column * _PANEL_WIDTH,
                    "y": row * _PANEL_HEIGHT,
                    "w": _PANEL_WIDTH,
                    "h": _PANEL_HEIGHT,
                },
                "datasource": _source(panel.source),
                "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
                "targets": [_target(panel, query, chr(ord("A") + n)) for n, query in enumerate(panel.queries)],
            }


def _source(name: str) -> dict[str, str]:
    return {"type": _TYPES[name], "uid": name}


def _target(panel: Panel, query: Query, letter: str) -> dict[str, Any]:
    target: dict[str, Any] = {"refId": letter, "datasource": _source(panel.source)}
    if panel.source == PROMETHEUS:
        instant = panel.kind != "timeseries"
        return target | {
            "expr": query.text,
            "legendFormat": query.legend or "__auto",
            "instant": instant,
            "range": not instant,
            "format": "table" if panel.kind == "table" else "time_series",
        }
    series = panel.kind == "timeseries"
    return target | {
        "rawSql": query.text,
        "editorType": "sql",
        "queryType": "timeseries" if series else "table",
        "format": 0 if series else 1,
    }


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "type": "query",
        "datasource": _source(CLICKHOUSE),
        "query": variable.query,
        "refresh": 2,  # when the range of time changes
        "sort": 1,
    }
