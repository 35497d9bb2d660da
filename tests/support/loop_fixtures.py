"""Provide whole-loop tests with a shared base model, and the demo's settings with their own ports and data."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from stack_fixtures import with_long_deadlines, with_settings

from stepstream.config import Settings
from stepstream.demo.base import prepare
from stepstream.demo.configuration import demo_settings, fresh_run
from stepstream.embedded.addresses import isolated


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's warm-started model; it takes half a minute, so all test processes share one."""
    data = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        data = data.parent
    settings = demo_settings()
    with (data / "base-model.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return prepare(settings.model_copy(update={"paths": settings.paths.model_copy(update={"data": data})}))


@pytest.fixture(scope="session")
def smollm2_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 as `make demo-model` converts it at its installation; all test processes share one conversion."""
    data = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        data = data.parent
    with (data / "smollm2.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment = {**os.environ, "STEPSTREAM_PATHS_DATA": str(data)}
        subprocess.run([sys.executable, "-m", "stepstream.demo.smollm2"], env=environment, check=True)
        [folder] = (data / "models").glob("smollm2-*")
    return folder


@pytest.fixture
def loop_settings(
    base_model: Path, base_settings: Settings, with_topics_and_tables: Callable[[Settings], Settings], tmp_path: Path
) -> Settings:
    """Settings of a whole loop with `base_model` as the root version."""
    return with_topics_and_tables(loop_of(base_model, base_settings, tmp_path))


def loop_of(base_model: Path, base_settings: Settings, folder: Path) -> Settings:
    """Return settings of a whole loop with its data in `folder`; its topics do not exist yet."""
    return with_settings(
        with_long_deadlines(isolated(fresh_run(demo_settings()), folder / "loop")),
        stack={"base_model": str(base_model)},
        fleet={"ledger": folder / "ledger.jsonl"},
        broker={"home": base_settings.broker.home},
    )
