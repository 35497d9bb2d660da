"""Kill a worker on vLLM, and vLLM below it, in each stage of a swap: restarted, it serves what the log says."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from command_line import stepstream
from engine_models import TransformersModel
from inference_workers import VersionPublisher, WorkerClient
from required_tools import require_package
from service_process import ServiceProcess
from stack_fixtures import with_settings
from waiting import wait_until

from stepstream.config import Settings
from stepstream.embedded.ports import free_block

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.repeats]

MODEL = "killed-vllm"
SITE = Path(__file__).parents[1] / "support" / "kill_site"
STREAMS, TOKENS = 3, 40


class Stage(NamedTuple):
    """The line before which a process is killed."""

    name: str
    module: str
    line: str
    """Part of its text."""
    is_child: bool
    """True: a process of vLLM; False: the worker."""


STAGES = (
    Stage("load in vLLM's engine, weights in place", "vllm_transfer", "missing = sorted", is_child=True),
    Stage("swap in the worker, vLLM has swapped", "vllm_engine", "if answer.status == 409", is_child=False),
)
"""A download is the same code for both engines: test_killed_while_loading.py."""


@pytest.fixture
def settings(registry_settings: Settings) -> Settings:
    require_package("vllm")
    port = free_block(1)
    worker = {"model": MODEL, "port": port, "worker_id": f"killed-{port}", "engine": "vllm", "max_batch": 4}
    limits = {"max_model_len": 512, "kv_cache_bytes": 64 << 20}
    return with_settings(registry_settings, inference=worker | limits | {"tool_parser": "none"})


@pytest.fixture
def publisher(settings: Settings, tmp_path: Path) -> Iterator[VersionPublisher]:
    publisher = VersionPublisher(settings, tmp_path, MODEL)
    yield publisher
    publisher.close()


@contextmanager
def callers(client: WorkerClient) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    """Keep calls running until the worker ends; their statuses (0: cut) and replies are collected."""
    replies: list[tuple[int, dict[str, Any]]] = []
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            try:
                replies.append(client.chat(max_tokens=TOKENS))
            except OSError:
                replies.append((0, {}))
                return

    with ThreadPoolExecutor(STREAMS) as pool:
        for _ in range(STREAMS):
            pool.submit(call)
        try:
            wait_until(lambda: len(replies) >= STREAMS)
            yield replies
        finally:
            stop.set()


def test_a_killed_vllm_serves_the_decided_version_after_its_restart_and_mislabels_no_token(
    settings: Settings, publisher: VersionPublisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest version is not the decided one, so that only the log can tell a restarted worker what to serve."""
    client = WorkerClient(settings)
    versions = dict(enumerate(STAGES, start=2))
    for version in (1, *versions, 9):
        publisher.publish(publisher.make(version, seed=version))

    @cache
    def greedy(version: int, *prompt: int) -> list[int]:
        return TransformersModel(tmp_path / f"v{version}").greedy(prompt, TOKENS)

    def promote(version: int) -> None:
        result = stepstream(settings, "models", "promote", f"{MODEL}@{version}")
        assert result.status == 0, result.stderr

    def check(status: int, reply: dict[str, Any]) -> None:
        assert status in (0, 200, 503), (status, reply)
        if status == 200:
            choice = reply["choices"][0]
            tokens, prompt = choice["token_ids"], reply["prompt_token_ids"]
            for span in choice["weight_versions"]:
                start, end = span["start"], span["end"]
                assert tokens[start:end] == greedy(span["version"], *prompt, *tokens[:start])[: end - start], choice
            assert end == len(tokens)

    def launch() -> ServiceProcess:
        worker = ServiceProcess("stepstream.services.inference", settings, lambda: True, tmp_path / "worker.log")
        worker.launch()
        return worker

    promote(1)
    served = 1
    for version, stage in versions.items():
        flag = tmp_path / str(version)
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")])))
            patch.setenv("KILL_BEFORE", f"stepstream.services.inference.{stage.module}|{stage.line}|{flag}")
            worker = launch()
        try:
            wait_until(lambda served=served: client.version() == served)  # type: ignore[misc]
            children = worker.children()
            with callers(client) as replies:
                flag.touch()
                promote(version)
                wait_until(lambda worker=worker: worker.status is not None)  # type: ignore[misc]
            assert worker.status == (1 if stage.is_child else -signal.SIGKILL), f"{stage.name}: {worker.log_text}"
            for status, reply in replies:
                check(status, reply)
            wait_until(lambda children=children: not any(map(psutil.Process.is_running, children)))  # type: ignore[misc]
            served = version
        finally:
            worker.kill()
    worker = launch()
    try:
        wait_until(lambda: client.version() == served)
        check(*client.chat(max_tokens=TOKENS))
        assert client.version() == served
        assert worker.stop() == 0
    finally:
        worker.kill()
