"""The report of a run under the control plane: each decision with its evidence and delay."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

from stepstream.demo.control.page import ControlReport, timeline_svg
from stepstream.demo.control.production import Point
from stepstream.demo.control.run import Result
from stepstream.demo.control.scoring import judge
from stepstream.demo.control.timeline import Occurrence
from stepstream.demo.run_stats import Rate
from stepstream.topics.events import Decision, new_decision, new_decision_alternative, new_decision_evidence

SECOND = 1_000_000


def result() -> Result:
    occurrences = (
        Occurrence("tool_breaks", 10 * SECOND, 50 * SECOND, "get"),
        Occurrence("quiet", 50 * SECOND, 90 * SECOND),
    )
    evidence = [new_decision_evidence(name="error_share", value=0.9, low=0.8, high=0.95, n=40)]
    lost = [new_decision_alternative(rule="new_version", lever="weights", action="canary", reason="weights cost more")]
    decisions: list[Decision] = [
        new_decision(
            event_id=f"{at}",
            occurred_at_us=at * SECOND,
            agent="a",
            model="m",
            action="disable",
            lever="tools",
            target=target,
            rule="tool_errors",
            reason="errors of <get>",
            evidence=evidence,
            lost=lost,
        )
        for at, target in ((22, "get"), (60, "find"))
    ]
    curve = (Point(12 * SECOND, Rate(3, 10)), Point(17 * SECOND, Rate(0, 0)), Point(40 * SECOND, Rate(9, 10)))
    states = {one["event_id"]: "done" for one in decisions}
    hold = new_decision(
        event_id="5", occurred_at_us=5 * SECOND, agent="a", model="m", action="hold", reason="cool-down of tools"
    )
    score = judge(occurrences, decisions, ["tool_breaks"])
    return Result(Rate(30, 100), Rate(90, 100), occurrences, score, tuple(decisions), (hold,), states, curve)


def test_the_report_has_the_figures_and_each_decision(tmp_path: Path) -> None:
    page = ControlReport(result(), 3, 90.0).write(tmp_path).read_text()
    facts = json.loads((tmp_path / "report.json").read_text())
    assert (facts["right_levers"], facts["undone"], facts["false_actions"]) == (1, 1, 1)
    assert (facts["success_before"], facts["success_after"]) == (0.3, 0.9)
    assert (facts["delays_s"], facts["order"], facts["holds"]) == ({"tool_breaks": 12.0}, ["tool_breaks", "quiet"], 1)
    lines = [json.loads(line) for line in (tmp_path / "decisions.jsonl").read_text().splitlines()]
    assert [(one["reason"], one["state"]) for one in lines[:2]] == [
        ("cool-down of tools", ""),
        ("errors of <get>", "done"),
    ]
    for text in (
        "disable tools get",
        "errors of &lt;get&gt; (tool_errors)",
        "error_share 0.9 (0.8 to 0.95), n=40",
        "12.0 s after: a tool breaks",
        "nothing called for it",
        "new_version: weights cost more",
    ):
        assert text in page, text


def test_the_drawing_has_a_line_for_each_event_and_a_point_for_each_interval() -> None:
    found = result()
    drawing = ET.fromstring(timeline_svg(found.curve, found.occurrences))
    [curve] = [node for node in drawing if node.get("class") == "curve"]
    assert len((curve.get("points") or "").split()) == 2
    assert len([node for node in drawing if node.get("class") == "target"]) == 2
    assert "No trajectory" in timeline_svg([], found.occurrences)
