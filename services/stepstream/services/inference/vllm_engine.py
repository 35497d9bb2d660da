"""Run real models with vLLM's server, a child process that takes token ids over HTTP.

CPU and GPU differ only by `_CPU_ARGS` and `_CPU_ENV`. A worker extension swaps the weights. Meanwhile running requests
pause; afterwards the new weights recompute their contexts.
"""

import asyncio
import importlib.metadata
import logging
import os
import socket
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from stepstream.config import InferenceSettings
from stepstream.services.inference.engine import (
    BadPromptError,
    Engine,
    EngineError,
    SamplingParams,
    TokenChunk,
    VersionSpan,
)
from stepstream.services.inference.weight_files import TensorEntry, check_finite, check_same_shapes, read_weights

_log = logging.getLogger(__name__)
_START_S = 600.0  # a large model takes minutes to load
_SWAP_S = 600.0
_STOP_S = 15.0
_IDLE_S = 15.0  # vLLM keeps idle connections much longer, so that no request meets a closing one
_CPU_ARGS = ["--enforce-eager", "--dtype", "float32", "--kv-cache-memory-bytes", str(64 * 1024 * 1024)]
_CPU_ENV = {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


class VllmEngine(Engine):
    """Starts vLLM with the first checkpoint; `close` or the end of this process stops it."""

    def __init__(self, inference: InferenceSettings) -> None:
        super().__init__()
        self._inference = inference
        self._version: int | None = None
        self._tensors: dict[str, TensorEntry] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._closing = False
        self._url = ""
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S),
            timeout=aiohttp.ClientTimeout(total=None),
        )

    @property
    def version(self) -> int | None:
        """Version of the weights that sample the next token."""
        return self._version

    async def load(self, folder: Path, version: int) -> None:
        """Start vLLM with the checkpoint, or swap it in."""
        tensors = await asyncio.to_thread(self._checked, folder)
        if self._process is None:
            await self._start(folder)
            await self._call("/update_weight_version", json={"new_version": str(version)})
        else:
            await self._swap(folder, version)
        self._version, self._tensors = version, tensors

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams) -> AsyncGenerator[TokenChunk, None]:
        """See `Engine.generate`."""
        self._check_alive()
        body = {"token_ids": prompt_ids, "stream": params.stream, "sampling_params": _sampling(params)}
        try:
            async with self._http.post(
                f"{self._url}/inference/v1/generate",
                data=orjson.dumps(body),
                headers={"content-type": "application/json"},
            ) as answer:
                if answer.status == 400:
                    raise BadPromptError(_message(await answer.read()))
                if answer.status != 200:
                    raise EngineError(f"vLLM answered {answer.status}: {_message(await answer.read())}")
                if not params.stream:
                    yield _chunk(orjson.loads(await answer.read()))
                    return
                async for line in answer.content:
                    if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                        yield _chunk(orjson.loads(line[6:]))
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"vLLM does not answer: {error or type(error).__name__}") from error

    async def close(self) -> None:
        """Stop vLLM; running requests fail."""
        self._closing = True
        await self._http.close()
        if self._process is None or self._process.returncode is not None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()  # the guard then kills vLLM's whole process group
        await asyncio.wait_for(self._process.wait(), _STOP_S)

    def _checked(self, folder: Path) -> dict[str, TensorEntry]:
        """Return the tensors of a version that vLLM can serve; raises CheckpointRefusedError."""
        tensors = read_weights(folder)
        if self._tensors:
            check_same_shapes(folder, tensors, self._tensors)
        check_finite(folder, tensors)
        return tensors

    async def _start(self, folder: Path) -> None:
        port = self._inference.vllm_port or _free_port()
        self._url = f"http://127.0.0.1:{port}"
        command = [sys.executable, str(Path(__file__).with_name("guard.py")), *self._command(folder, port)]
        _log.info("starting vLLM on port %d; this takes half a minute or more", port)
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=sys.stderr, env=self._environment()
        )
        self._watcher = asyncio.create_task(self._watch(self._process))
        deadline = asyncio.get_running_loop().time() + _START_S
        while True:
            self._check_alive()
            with suppress(aiohttp.ClientError):
                async with self._http.get(f"{self._url}/health") as answer:
                    if answer.status == 200:
                        return
            if asyncio.get_running_loop().time() > deadline:
                raise EngineError(f"vLLM was not ready after {_START_S:.0f} s; see its log above")
            await asyncio.sleep(0.25)

    def _command(self, folder: Path, port: int) -> list[str]:
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--uvicorn-log-level", "warning"]
        command += ["--max-model-len", str(self._inference.max_model_len), "--enable-scale-out"]
        command += ["--max-num-seqs", str(self._inference.max_batch), "--logprobs-mode", "processed_logprobs"]
        command += ["--worker-extension-cls", "stepstream.services.inference.vllm_extension.SwapExtension"]
        if _on_cpu():
            command += _CPU_ARGS
        return command + self._inference.vllm_args

    def _environment(self) -> Mapping[str, str]:
        environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "3600"}
        environment.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        environment.setdefault("VLLM_NO_USAGE_STATS", "1")
        if _on_cpu():
            environment |= _CPU_ENV | {"OMP_NUM_THREADS": str(self._inference.threads)}
        return environment

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        status = await process.wait()
        if not self._closing:
            self._break_down(EngineError(f"vLLM ended with status {status}; see its log above"))

    async def _swap(self, folder: Path, version: int) -> None:
        self._check_alive()
        await self._call("/pause", mode="keep")
        try:
            await self._call("/collective_rpc", json={"method": "stepstream_swap", "args": [str(folder)]})
            # Preempts running requests, so that the new weights recompute their contexts too.
            reset = await self._call("/reset_prefix_cache", reset_running_requests="true")
            if not reset.get("success"):  # vLLM reports the failure with status 200
                raise EngineError("vLLM could not clear its prefix cache, which would mix two versions")
            await self._call("/update_weight_version", json={"new_version": str(version)})
        except EngineError as error:
            # The weights may be half-loaded, so neither version may be served.
            self._break_down(error)
            raise
        await self._call("/resume")

    async def _call(self, path: str, json: Mapping[str, Any] | None = None, **query: str) -> dict[str, Any]:
        try:
            async with (
                asyncio.timeout(_SWAP_S),
                self._http.post(f"{self._url}{path}", json=json, params=query) as answer,
            ):
                body = await answer.read()
                if answer.status != 200:
                    raise EngineError(f"vLLM's {path} answered {answer.status}: {_message(body)}")
                return dict(orjson.loads(body)) if body else {}
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineError(f"vLLM's {path} failed: {error or type(error).__name__}") from error

    def _check_alive(self) -> None:
        if self.failed.done():
            raise self.failed.result()


def _sampling(params: SamplingParams) -> dict[str, Any]:
    """Return vLLM's sampling parameters; only stop strings need detokenization."""
    fields: dict[str, Any] = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "seed": params.seed,
        "logprobs": 0,
        "detokenize": params.stops is not None,
    }
    if params.stops is not None:
        fields |= {"stop": list(params.stops.strings), "skip_special_tokens": False}
    return fields


def _chunk(reply: dict[str, Any]) -> TokenChunk:
    choice = reply["choices"][0]
    reason = choice["finish_reason"]
    if reason not in (None, "stop", "length"):
        raise EngineError(f"vLLM ended the response with '{reason}'")
    content = (choice["logprobs"] or {}).get("content") or []
    spans = choice.get("weight_versions") or []
    return TokenChunk(
        choice["token_ids"] or [],
        [entry["logprob"] for entry in content],
        reason,
        [VersionSpan(int(span["version"]), span["start"], span["end"]) for span in spans],
    )


def _message(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"]["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body.decode(errors="replace")[:500]


def _on_cpu() -> bool:
    try:
        importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
