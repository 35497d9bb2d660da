"""Run vLLM's own HTTP server as a child process that listens on a Unix socket.

CPU and GPU differ only by `_CPU_ARGS` and `_CPU_ENV`. The socket lies in a folder that only this user may enter, so
that vLLM's routes are reachable by this process alone.
"""

import asyncio
import importlib.metadata
import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import aiohttp
import orjson

from stepstream.config import InferenceSettings
from stepstream.services.inference.engine import EngineError
from stepstream.services.inference.request_fields import MAX_MASK_IDS
from stepstream.services.inference.vllm_plugin import BACKEND, ServingPlugin
from stepstream.services.inference.vllm_server import IN_CORE

_log = logging.getLogger(__name__)
_START_S = 600.0  # a large model takes minutes to load
_STOP_S = 15.0
_IDLE_S = 15.0  # vLLM keeps idle connections much longer, so that no request meets a closing one
_CPU_ARGS = ["--enforce-eager", "--dtype", "float32", "--distributed-executor-backend", IN_CORE]
_CPU_ENV = {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
URL = "http://vllm"
"""Beginning of every address; the name is not resolved."""


class VllmProcess:
    """One vLLM server; `close` or the end of this process stops it. Create and use it on one event loop."""

    def __init__(self, inference: InferenceSettings) -> None:
        self._inference = inference
        self._folder = tempfile.TemporaryDirectory(prefix="stepstream-vllm-")
        self._socket = Path(self._folder.name) / "http"
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._closing = False
        self.ended: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
        """Set to the reason if vLLM ends by itself."""
        self.http = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(self._socket), limit=0, keepalive_timeout=_IDLE_S),
            timeout=aiohttp.ClientTimeout(total=None),
        )

    @property
    def is_started(self) -> bool:
        """True after the first `start`, also if it failed."""
        return self._process is not None

    async def start(self, folder: Path, version: int) -> None:
        """Start vLLM with a version's folder; blocks until it serves.

        Raises:
            EngineError: the plugin is not installed, or vLLM ended or was not ready in time.
        """
        _check_plugin()
        command = [sys.executable, str(Path(__file__).with_name("guard.py")), *self._command(folder, version)]
        _log.info("starting vLLM; this takes half a minute or more")
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=sys.stderr, env=self._environment()
        )
        self._watcher = asyncio.create_task(self._watch(self._process))
        deadline = asyncio.get_running_loop().time() + _START_S
        while True:
            if self.ended.done():
                raise self.ended.result()
            with suppress(aiohttp.ClientError):
                async with self.http.get(f"{URL}/health") as answer:
                    if answer.status == 200:
                        return
            if asyncio.get_running_loop().time() > deadline:
                raise EngineError(f"vLLM was not ready after {_START_S:.0f} s; see its log above")
            await asyncio.sleep(0.25)

    async def close(self) -> None:
        """Stop vLLM; running requests fail."""
        self._closing = True
        await self.http.close()
        if self._process is not None and self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.close()  # the guard then kills vLLM's whole process group
            await asyncio.wait_for(self._process.wait(), _STOP_S)
        self._folder.cleanup()

    def _command(self, folder: Path, version: int) -> list[str]:
        inference = self._inference
        command = [sys.executable, "-m", "stepstream.services.inference.vllm_server", "--model", str(folder)]
        command += ["--uds", str(self._socket), "--uvicorn-log-level", "warning", "--enable-scale-out"]
        command += ["--served-model-name", inference.model, "--max-model-len", str(inference.max_model_len or "auto")]
        command += ["--max-num-seqs", str(inference.max_batch), "--logprobs-mode", "processed_logprobs"]
        command += ["--max-logprobs", str(MAX_MASK_IDS + 1)]  # a sampling mask is read off the likeliest tokens
        command += ["--generation-config", "vllm"]  # else the model's own file changes requests without a word
        command += ["--weight-transfer-config", orjson.dumps({"backend": BACKEND}).decode()]
        command += ["--additional-config", orjson.dumps({"stepstream": {"version": version}}).decode()]
        command += ["--tool-parser-plugin", "stepstream.services.inference.vllm_tool_parsers"]
        command += ["--enable-auto-tool-choice", "--tool-call-parser", inference.tool_parser]
        if inference.lora_rank:
            command += ["--enable-lora", "--max-loras", str(inference.max_adapters)]
            command += ["--max-lora-rank", str(inference.lora_rank)]
        if inference.reasoning_parser:
            command += ["--reasoning-parser", inference.reasoning_parser]
        if _on_cpu():
            command += [*_CPU_ARGS, "--kv-cache-memory-bytes", str(inference.kv_cache_bytes)]
        return command + inference.vllm_args

    def _environment(self) -> Mapping[str, str]:
        environment = {**os.environ, "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "3600"}
        if self._inference.lora_rank:
            environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        plugins = [ServingPlugin.name, *filter(None, environment.get("VLLM_PLUGINS", "").split(","))]
        environment["VLLM_PLUGINS"] = ",".join(plugins)
        environment.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        environment.setdefault("VLLM_NO_USAGE_STATS", "1")
        if _on_cpu():
            environment |= _CPU_ENV | {"OMP_NUM_THREADS": str(self._inference.threads)}
            # Threads that wait for one another must not keep the cores from other processes.
            environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        return environment

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        status = await process.wait()
        if not self._closing:
            self.ended.set_result(EngineError(f"vLLM ended with status {status}; see its log above"))


def _check_plugin() -> None:
    found = importlib.metadata.entry_points(group="vllm.endpoint_plugins", name=ServingPlugin.name)
    if not found:
        raise EngineError("the installed package has no entry point for vLLM: install stepstream again")


def _on_cpu() -> bool:
    try:
        importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
