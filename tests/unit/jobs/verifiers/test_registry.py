"""Verifiers by name: their options, and plug-ins."""

from pathlib import Path
from typing import Any

import pytest
from text_verifiers import create

from stepstream.jobs.verifiers import registry
from stepstream.jobs.verifiers.base import Case
from stepstream.jobs.verifiers.options import InvalidOptions


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nothing", {}, "no verifier 'nothing'; there are exact, json_schema"),
        ("exact", {"case": "maybe"}, "case"),
        ("exact", {"cases": True}, "cases"),
        ("regex", {"pattern": "("}, "pattern: missing"),
        ("json_schema", {"file": "gone.json"}, "gone.json cannot be read"),
        ("judge", {}, "set judge.url and judge.model"),
        ("process_reward", {}, "model"),
        ("unit_tests", {"file": "../solution.py"}, "file"),
    ],
)
def test_invalid_options_are_rejected_with_a_reason(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOptions, match=message):
        create(name, **options)


def test_an_installed_package_can_add_a_verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plug.py").write_text(
        "class Plug:\n"
        "    source, reads_trajectory = 'verifier', False\n"
        "    def __init__(self, options): self.options = options\n"
        "    def verify(self, case): return [self.options['value']]\n"
        "def make(options, surroundings): return Plug(options)\n"
    )
    info = tmp_path / "plug-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[stepstream.verifiers]\nplugged = plug:make\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "plugged" in registry.names()
    assert create("plugged", value=3).verify(Case("t", "", "")) == [3]
