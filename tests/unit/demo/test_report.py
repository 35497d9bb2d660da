"""The report states its figures and draws its curve."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from stepstream.demo.figures import Rate
from stepstream.demo.report import Report, curve_svg


def test_wilson_interval_is_that_of_the_vectors() -> None:
    assert Rate(7, 10).interval == pytest.approx((0.396778, 0.892209), abs=1e-6)
    assert Rate(0, 20).interval == pytest.approx((0.0, 0.161125), abs=1e-6)


def test_no_attempts_are_null_not_zero() -> None:
    assert Rate(0, 0).facts("s") == {"s": None, "s_interval": None, "s_successes": 0, "s_n": 0}


def test_both_files_are_written(tmp_path: Path) -> None:
    curve = [(0, Rate(3, 10)), (1, Rate(0, 0)), (2, Rate(9, 10))]
    page = Report({"lost": 0, **Rate(9, 10).facts("success_after")}, curve, 0.85).write(tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["lost"] == 0
    assert "<th>lost</th><td>0</td>" in page.read_text()


def test_the_curve_is_well_formed_and_has_a_point_a_version_with_attempts() -> None:
    drawing = ET.fromstring(curve_svg([(0, Rate(3, 10)), (1, Rate(0, 0)), (2, Rate(9, 10))], 0.85))
    (line,) = [node for node in drawing if node.get("class") == "curve"]
    assert len((line.get("points") or "").split()) == 2


def test_an_empty_curve_says_so() -> None:
    assert "No trajectory" in curve_svg([], 0.85)
