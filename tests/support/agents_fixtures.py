"""Provide the virtual environment of third-party agents and instrumentations (requirements/agents.txt)."""

from pathlib import Path

import pytest
from required_tools import require_path

PYTHON = Path(__file__).parents[2] / ".venv-agents" / "bin" / "python"


@pytest.fixture(scope="session")
def agents_python() -> Path:
    """Return the interpreter of `.venv-agents`; its packages are never imported here."""
    require_path(PYTHON, "`make test` installs .venv-agents from requirements/agents.txt")
    return PYTHON
