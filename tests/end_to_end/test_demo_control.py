"""Let the control plane answer what happens to a fleet: the short form of `make demo-control`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stack_fixtures import with_long_deadlines, with_settings

from stepstream.config import Settings, environment_of
from stepstream.demo.configuration import demo_settings
from stepstream.demo.control.base import prepare
from stepstream.embedded.addresses import isolated

DEADLINE_S = 1500.0
"""Longest run on a machine that runs other tests too; alone it takes two minutes."""


@pytest.mark.repeats
def test_better_examples_are_promoted_and_a_poisoned_checkpoint_is_rolled_back(
    base_settings: Settings, tmp_path: Path
) -> None:
    settings = with_settings(
        isolated(with_long_deadlines(demo_settings("demo-control")), tmp_path),
        broker={"home": base_settings.broker.home},
        # No job is killed here, and the run waits for this time at its end.
        label={"end_grace_s": 10.0},
    )
    prepare(settings)  # otherwise the stack idles while the base model is trained
    command = [sys.executable, "-m", "stepstream.cli.main", "demo-control", "--short", "--seed", "1"]
    environment = os.environ | environment_of(settings) | {"STEPSTREAM_CONFIG": "demo-control"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=tmp_path
    )
    facts = json.loads((settings.paths.data / "demo-control" / "report.json").read_text("utf-8"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (facts["right_levers"], facts["undone"], facts["false_actions"]) == (2, 1, 0), done.stdout
    assert facts["success_before_interval"][1] < facts["success_after_interval"][0]
    assert "<svg" in (settings.paths.data / "demo-control" / "report.html").read_text("utf-8")
