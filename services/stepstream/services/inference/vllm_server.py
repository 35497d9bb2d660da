"""Run vLLM's own server, and on a CPU start its engine by fork: `python -m stepstream.services.inference.vllm_server`.

A forked engine need not import vLLM again, which takes half of a start. vLLM forks by default, and lets no thread run
at that time. On a CPU it sets spawn instead, because its executor binds processes to cores; the worker's binds nothing.
"""

import os
import runpy
from typing import Any

IN_CORE = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""Executor that computes in the process that schedules. By default vLLM starts another one on a CPU, to bind its
threads to cores."""
_SERVER = "vllm.entrypoints.launchers.api_server.entry"
_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


def fork_on_cpu() -> None:
    """Let vLLM's CPU platform choose fork for an engine that computes in its own process.

    The environment variable `VLLM_WORKER_MULTIPROC_METHOD` takes precedence.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu() or _METHOD in os.environ:
        return
    platform = type(current_platform)
    set_config = platform.check_and_update_config

    def set_config_and_fork(vllm_config: Any) -> None:
        set_config(vllm_config)
        if vllm_config.parallel_config.distributed_executor_backend == IN_CORE:
            os.environ[_METHOD] = "fork"

    platform.check_and_update_config = staticmethod(set_config_and_fork)


if __name__ == "__main__":
    fork_on_cpu()
    runpy.run_module(_SERVER, run_name="__main__", alter_sys=True)
