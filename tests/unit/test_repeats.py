"""Tests of the tests that a run leaves out once it has taken `TEST_REPEATS_MINUTES`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
OWNERS = "tests/unit/jobs/runtime/test_owners_of_label.py"


def test_the_files_that_run_last_are_those_that_are_marked(request: pytest.FixtureRequest) -> None:
    conftest = request.config.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    assert conftest is not None
    marked = {path.name for path in TESTS.rglob("test_*.py") if re.search(r"mark\.repeats\b", path.read_text("utf-8"))}
    assert marked == set(conftest.REPEATS)


@pytest.mark.parametrize(("began", "skipped"), [("0", True), ("32503680000", False)])  # 1970 and 3000
def test_none_of_them_begins_after_the_minutes_of_a_run(began: str, skipped: bool) -> None:
    environment = os.environ | {"TESTS_BEGAN": began, "TEST_REPEATS_MINUTES": "45"}
    arguments = [OWNERS, "-p", "no:xdist", "-p", "no:cacheprovider", "-rs", "-q"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, *([] if skipped else ["--setup-only"])],
        cwd=TESTS.parent,
        env={name: value for name, value in environment.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ("needs a faster machine" in run.stdout) == skipped, run.stdout
    assert run.returncode == 0, run.stdout + run.stderr
