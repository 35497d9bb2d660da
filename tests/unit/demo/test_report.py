"""The report holds the run's results and draws the learning curve."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

from stepstream.demo.report import Report, curve_svg
from stepstream.demo.run_stats import Rate


def test_write_creates_the_json_file_and_the_page(tmp_path: Path) -> None:
    curve = [(0, Rate(3, 10)), (1, Rate(0, 0)), (2, Rate(9, 10))]
    page = Report({"lost": 0, **Rate(9, 10).facts("success_after")}, curve, 0.85).write(tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["lost"] == 0
    assert "<th>lost</th><td>0</td>" in page.read_text()


def test_the_curve_has_one_point_for_each_version_with_attempts() -> None:
    drawing = ET.fromstring(curve_svg([(0, Rate(3, 10)), (1, Rate(0, 0)), (2, Rate(9, 10))], 0.85))
    (line,) = [node for node in drawing if node.get("class") == "curve"]
    assert len((line.get("points") or "").split()) == 2


def test_a_curve_without_attempts_is_replaced_by_a_sentence() -> None:
    assert "No trajectory" in curve_svg([], 0.85)
