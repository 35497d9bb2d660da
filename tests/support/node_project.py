"""The Node projects with their dependencies installed, for every test that needs Node."""

import shutil
import subprocess
from pathlib import Path

import pytest
from required_tools import require_tool
from waiting import PATIENCE_S

EXAMPLE = Path(__file__).parents[2] / "examples" / "node"
AGENTS = Path(__file__).parents[1] / "agents" / "node"


@pytest.fixture(scope="session")
def node_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of examples/node after `npm ci`."""
    return installed(EXAMPLE, tmp_path_factory.mktemp("node") / "example")


@pytest.fixture(scope="session")
def node_agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the agents of the Vercel AI SDK after `npm ci`."""
    return installed(AGENTS, tmp_path_factory.mktemp("node") / "agents")


def installed(project: Path, folder: Path) -> Path:
    """A copy of a project with what its lock file names."""
    require_tool("Node")
    shutil.copytree(project, folder, ignore=shutil.ignore_patterns("node_modules"))
    done = subprocess.run(
        ["npm", "ci", "--no-audit", "--no-fund"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder
