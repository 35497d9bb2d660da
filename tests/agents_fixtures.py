"""The environment of agents and instrumentation packages that no one here wrote (requirements/agents.txt)."""

import os
from pathlib import Path

import pytest

PYTHON = Path(__file__).parents[1] / ".venv-agents" / "bin" / "python"


@pytest.fixture(scope="session")
def agents_python() -> Path:
    """The interpreter of `.venv-agents`; it is a file of its own, never imported from here."""
    if not PYTHON.exists():
        why = "there is no .venv-agents: `make test-proxy` installs requirements/agents.txt there"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    return PYTHON
