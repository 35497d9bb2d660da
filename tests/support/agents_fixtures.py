"""The environment of agents and instrumentation packages that no one here wrote (requirements/agents.txt)."""

from pathlib import Path

import pytest
from required_tools import require_path

PYTHON = Path(__file__).parents[2] / ".venv-agents" / "bin" / "python"


@pytest.fixture(scope="session")
def agents_python() -> Path:
    """The interpreter of `.venv-agents`; it is a file of its own, never imported from here."""
    require_path(PYTHON, "`make test` installs .venv-agents from requirements/agents.txt")
    return PYTHON
