"""Kill an inference worker in download, load and swap of a version: restarted, it serves what the log says."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import stepstream
from engine_models import TransformersModel
from inference_workers import VersionPublisher, WorkerClient
from service_process import ServiceProcess
from stack_fixtures import with_settings
from waiting import wait_until

from stepstream.config import Settings
from stepstream.embedded.ports import free_block

MODEL = "killed-worker"
KILLER = Path(__file__).parents[1] / "support" / "kill_in_file.py"
STAGES = {
    "download": ("versions/check.py", 12),
    "load": ("inference/llama.py", 40),
    "swap": ("inference/continuous_batch.py", 3),
}
"""The file that runs in each stage, and the number of its lines before the kill."""


@pytest.fixture(scope="module")
def settings(registry_settings: Settings) -> Settings:
    port = free_block(1)
    return with_settings(registry_settings, inference={"model": MODEL, "port": port, "worker_id": f"killed-{port}"})


@pytest.fixture
def publisher(settings: Settings, tmp_path: Path) -> Iterator[VersionPublisher]:
    publisher = VersionPublisher(settings, tmp_path, MODEL)
    yield publisher
    publisher.close()


def test_a_worker_killed_in_any_stage_serves_the_decided_version_after_its_restart(
    settings: Settings, publisher: VersionPublisher, tmp_path: Path
) -> None:
    """The newest version is not the decided one, so that only the log can tell a restarted worker what to serve."""
    client = WorkerClient(settings)
    versions = dict(enumerate(STAGES, start=2))
    for version in (1, *versions, 9):
        publisher.publish(publisher.make(version, seed=version))

    def promote(version: int) -> None:
        result = stepstream(settings, "models", "promote", f"{MODEL}@{version}")
        assert result.status == 0, result.stderr

    def launch(*under: str) -> ServiceProcess:
        worker = ServiceProcess(
            "stepstream.services.inference", settings, lambda: True, tmp_path / "worker.log", under=under
        )
        worker.launch()
        return worker

    promote(1)
    served = 1
    for version, stage in versions.items():
        flag = tmp_path / stage
        file, lines = STAGES[stage]
        worker = launch(str(KILLER), file, str(lines), str(flag))
        try:
            wait_until(lambda served=served: client.version() == served)  # type: ignore[misc]
            flag.touch()
            promote(version)
            wait_until(lambda worker=worker: worker.status is not None)  # type: ignore[misc]
            assert worker.status == -signal.SIGKILL, f"{stage}: {worker.log_text}"
            served = version
        finally:
            worker.kill()
    worker = launch()
    try:
        wait_until(lambda: client.version() == served)
        _, reply = client.chat()
        tokens = reply["choices"][0]["token_ids"]
        assert tokens == TransformersModel(tmp_path / f"v{served}").greedy(reply["prompt_token_ids"], 12)
        assert worker.stop() == 0
    finally:
        worker.kill()
