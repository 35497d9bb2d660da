"""The Node example with its dependencies installed, for every test that needs Node."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent / "examples" / "node"


@pytest.fixture(scope="session")
def node_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of examples/node after `npm ci`."""
    if not shutil.which("node") or not shutil.which("npm"):
        if os.environ.get("CI") == "true":
            pytest.fail("CI needs node and npm on the PATH")
        pytest.skip("node and npm are not on the PATH")
    folder = tmp_path_factory.mktemp("node") / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules"))
    installed = subprocess.run(
        ["npm", "ci", "--no-audit", "--no-fund"], cwd=folder, capture_output=True, text=True, timeout=180, check=False
    )
    assert installed.returncode == 0, installed.stderr
    return folder
