"""Provide the Node projects with their dependencies installed."""

import shutil
import subprocess
from pathlib import Path

import pytest
from required_tools import require_tool
from waiting import TIMEOUT_S

EXAMPLE = Path(__file__).parents[2] / "examples" / "node"
AGENTS = Path(__file__).parents[1] / "agents" / "node"


@pytest.fixture(scope="session")
def node_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of examples/node after `npm ci`."""
    return copy_and_install(EXAMPLE, tmp_path_factory.mktemp("node") / "example")


@pytest.fixture(scope="session")
def node_agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the agents of the Vercel AI SDK after `npm ci`."""
    return copy_and_install(AGENTS, tmp_path_factory.mktemp("node") / "agents")


def copy_and_install(project: Path, folder: Path) -> Path:
    """Copy a project to `folder` and install the packages of its lock file."""
    require_tool("Node")
    shutil.copytree(project, folder, ignore=shutil.ignore_patterns("node_modules"))
    result = subprocess.run(
        ["npm", "ci", "--no-audit", "--no-fund"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return folder
