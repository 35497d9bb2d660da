"""The rules are valid, read documented metrics only, fire as promtool's tests say, and each alert has its section."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_server import RULES, promtool

from stepstream.core.metrics import every_metric

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests" / "data" / "prometheus" / "rules_test.yml"
PAGE = (ROOT / "docs" / "alerts.md").read_text()
EVERY_RULE: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in EVERY_RULE if "alert" in rule}
RECORDED = {rule["record"] for rule in EVERY_RULE if "record" in rule}
EXPORTED = {
    name + suffix
    for name, kind in ((metric.name, metric.kind) for metric in every_metric())
    for suffix in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))
}


def test_promtool_finds_no_fault() -> None:
    promtool("check", "rules", RULES)
    promtool("check", "config", RULES.with_name("prometheus.yml"))


def test_alerts_fire_at_their_faults_and_not_without() -> None:
    promtool("test", "rules", TESTS)


@pytest.mark.parametrize("rule", EVERY_RULE, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_reads_documented_metrics(rule: dict[str, Any]) -> None:
    expression = re.sub(r"\"[^\"]*\"|\b(by|on) \([^)]*\)|\[\w+\]|offset \w+", "", rule["expr"])
    names = set(re.findall(r"[a-z_]+:[a-z_:0-9]+|stepstream_\w+", expression))
    assert names - EXPORTED - RECORDED == set()
    assert names or rule["alert"] == "StepstreamProcessDown"


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_names_its_section_and_has_a_test_in_which_it_fires(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["annotations"]["runbook"] == f"docs/alerts.md#{alert.lower()}"
    assert rule["labels"]["severity"] in ("critical", "warning")
    tests = [case for test in yaml.safe_load(TESTS.read_text())["tests"] for case in test["alert_rule_test"]]
    fires = [bool(case["exp_alerts"]) for case in tests if case["alertname"] == alert]
    assert set(fires) == {True, False}


def test_every_section_is_about_an_alert_and_says_what_to_do() -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    assert {section.partition("\n")[0] for section in sections} == set(ALERTS)
    assert all("\n1. " in section for section in sections)
