"""List and rebuild versions of a stopped stack: each command starts the embedded broker while it runs."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from command_line import stepstream
from labelled_records import tiny_model

from stepstream.config import Settings, environment_of
from stepstream.embedded.stack import Stack
from stepstream.learner.publish import publish_root


def process(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stepstream.cli.main", *arguments]
    return subprocess.run(command, env=environment_of(settings), capture_output=True, text=True, check=False)


def test_versions_are_read_from_a_stopped_stack(stack_factory: Callable[..., Stack], tmp_path: Path) -> None:
    stack = stack_factory(["broker", "registry"])
    published = publish_root(stack.settings, tiny_model(tmp_path / "base"), "small")
    stack.stop()

    listed = process(stack.settings, "models", "list", "--json")
    assert listed.returncode == 0, listed.stderr
    [row] = json.loads(listed.stdout)
    assert (row["name"], row["weights_sha256"]) == ("small@0", published["weights_sha256"])
    assert "starting the embedded one" in listed.stderr

    rebuilt = stepstream(stack.settings, "rebuild", "small@latest", "--json")
    assert rebuilt.status == 0, rebuilt.stderr
    assert json.loads(rebuilt.stdout)["rebuilt_sha256"] == published["weights_sha256"]

    unknown = stepstream(stack.settings, "rebuild", "small@7")
    assert unknown.status == 1
    assert "small@7" in unknown.stderr
