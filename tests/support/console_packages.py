"""Provide the npm packages that tests of the console use: axe-core, an OpenID Connect provider, and its own sources."""

from pathlib import Path

import pytest
from node_project import copy_and_install

PROJECT = Path(__file__).parents[1] / "console"


@pytest.fixture(scope="session")
def console_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of tests/console after `npm ci`."""
    return copy_and_install(PROJECT, tmp_path_factory.mktemp("node") / "console")
