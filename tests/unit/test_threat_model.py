"""Check docs/threat-model.md: every test that it names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/threat-model.md").read_text()
FILES = sorted(set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE)))
NAMES = sorted(set(re.findall(r"`(test_\w+)`", PAGE)))
DEFINED = {
    name for file in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)\(", file.read_text())
}


@pytest.mark.parametrize("file", FILES)
def test_a_named_file_exists(file: str) -> None:
    assert (ROOT / file).is_file()


@pytest.mark.parametrize("name", NAMES)
def test_a_named_test_exists(name: str) -> None:
    assert name in DEFINED


def test_every_guarantee_names_its_test() -> None:
    rows = [
        row
        for row in PAGE.splitlines()
        if row.startswith("| ") and not row.startswith(("| someone", "| who |", "| what fails"))
    ]
    assert len(rows) >= 55
    assert all(re.search(r"`tests?[_/]", row.split("|")[-2]) for row in rows)
