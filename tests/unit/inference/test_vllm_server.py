"""Test how vLLM's engine starts on a CPU, with vLLM's own platform but without an engine."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
from required_tools import require_package

from stepstream.services.inference.vllm_server import IN_CORE, fork_on_cpu

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # of what vLLM imports
_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


@pytest.mark.parametrize(
    ("executor", "given", "method"),
    [(IN_CORE, None, "fork"), ("mp", None, "spawn"), (IN_CORE, "spawn", "spawn")],
    ids=["computes in its own process", "starts processes", "set by the user"],
)
def test_an_engine_that_computes_in_its_own_process_forks(
    monkeypatch: pytest.MonkeyPatch, executor: str, given: str | None, method: str
) -> None:
    require_package("vllm")
    from vllm.platforms import current_platform

    def set_config(config: Any) -> None:
        os.environ[_METHOD] = "spawn"  # as vLLM does on a CPU

    monkeypatch.setenv(_METHOD, "")  # restored at the end
    if given is None:
        monkeypatch.delenv(_METHOD)
    else:
        monkeypatch.setenv(_METHOD, given)
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda _: True)
    monkeypatch.setattr(type(current_platform), "check_and_update_config", staticmethod(set_config))
    fork_on_cpu()
    config = SimpleNamespace(parallel_config=SimpleNamespace(distributed_executor_backend=executor))
    type(current_platform).check_and_update_config(config)
    assert os.environ[_METHOD] == method
