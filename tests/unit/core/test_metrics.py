"""Metrics are declared in one catalogue, follow Prometheus' naming rules, and are the ones that processes export."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from scraped_metrics import names_of

from stepstream.core.metrics import GROUPS, every_metric, exported_by, metrics_page
from stepstream.core.metrics.definition import Metric
from stepstream.services.fleet.metrics import Metrics as FleetMetrics
from stepstream.services.gateway.metrics import Metrics as GatewayMetrics
from stepstream.services.gateway.otlp.receiver import Metrics as OtlpMetrics

ROOT = Path(__file__).parents[3]
SOURCES = ("core", "topics", "sdk", "stream-jobs", "learner", "services", "infra")
METRICS = {metric.name: metric for metric in every_metric()}
SUFFIXES = {"seconds": "_seconds", "bytes": "_bytes"}
MODULES = {
    "govern": "stepstream.jobs.runtime.metrics",
    "watch": "stepstream.jobs.watch",
    "control": "stepstream.services.control.metrics",
    "curate": "stepstream.jobs.curate",
    "store-writer": "stepstream.jobs.sink",
    "learner": "stepstream.learner.metrics",
    "worker": "stepstream.services.inference.metrics",
    "registry": "stepstream.services.registry.app",
    "store": "stepstream.services.store.metrics",
    "console": "stepstream.services.console.app",
    "up": "stepstream.embedded.stack_metrics",
}


def test_the_page_is_generated() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == metrics_page(), "run `stepstream schemas generate`"


def test_names_are_unique() -> None:
    names = [metric.name for metric in every_metric()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_a_name_follows_the_rules_of_prometheus(metric: Metric) -> None:
    assert metric.name.startswith("stepstream_")
    base = metric.name.removesuffix("_total")
    assert (metric.name != base) == (metric.kind == "counter"), "counters end in _total, and nothing else does"
    for unit, suffix in SUFFIXES.items():
        assert (metric.unit == unit) == base.endswith(suffix), metric.unit
    assert not {"le", "quantile", "job", "instance"} & set(metric.labels)
    assert metric.doc.endswith(".")


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_a_definition_makes_the_metric_that_it_describes(metric: Metric) -> None:
    registry = CollectorRegistry()
    made: Any = metric.create(registry)
    assert type(made).__name__.lower() == metric.kind
    if metric.labels:
        made.labels(*metric.labels)  # a sample
    (family,) = registry.collect()
    assert family.name == metric.name.removesuffix("_total")
    assert family.documentation == metric.doc
    assert names_in(registry) == {metric.name}


def names_in(registry: CollectorRegistry) -> set[str]:
    """Return the names of a registry's page, as the catalogue writes them."""
    return names_of(generate_latest(registry).decode())


@pytest.mark.parametrize("process", MODULES)
def test_a_process_exports_its_metrics(process: str) -> None:
    code = (
        f"import {MODULES[process]}\n"
        "from prometheus_client import REGISTRY\n"
        "for family in REGISTRY.collect():\n"
        "    print(family.name + ('_total' if family.type == 'counter' else ''))"
    )
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    own = {name for name in listed if name.startswith("stepstream_")}
    assert own - {"stepstream_table_faulty"} == {metric.name for metric in exported_by(process)}


def test_gateway_and_fleet_export_their_metrics() -> None:
    gateway = GatewayMetrics()
    OtlpMetrics(gateway.registry)
    assert names_in(gateway.registry) == {metric.name for metric in exported_by("gateway")}
    fleet = CollectorRegistry()
    FleetMetrics(fleet)
    assert names_in(fleet) == {metric.name for metric in exported_by("fleet")}


def test_every_process_of_the_catalogue_is_tested() -> None:
    same_as_govern = {"label", "measure", "verify", "judge", "inspect"}
    assert {name for group in GROUPS for name in group.processes} == {*MODULES, "gateway", "fleet"} | same_as_govern


def test_no_module_names_a_metric_beside_the_catalogue() -> None:
    makers = []
    for file in (file for root in SOURCES for file in (ROOT / root).rglob("*.py")):
        if file.parent.name == "metrics" or file.name == "dashboards.py":  # it queries them
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and str(node.value).removesuffix("_total") in BASES:
                makers.append(f"{file}:{node.lineno}")
            if isinstance(node, ast.Call) and ast.unparse(node.func) in MAKERS and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str) and len(node.args) > 1:
                    makers.append(f"{file}:{node.lineno}")
    assert makers == []


BASES = {name.removesuffix("_total") for name in METRICS}
MAKERS = {f"{prefix}{kind}" for prefix in ("", "prometheus_client.") for kind in ("Counter", "Gauge", "Histogram")}
