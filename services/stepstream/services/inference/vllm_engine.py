"""Serve real models by vLLM's own server, a child process with Stepstream's plugin.

The worker forwards chat completions to it as they are. Token ids go to its route for them. One call swaps the weights:
running requests pause or end first, and the new weights recompute the contexts of those that go on.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from stepstream.config import InferenceSettings
from stepstream.services.inference.engine import (
    BadPromptError,
    CheckpointRefusedError,
    Engine,
    EngineError,
    SamplingMask,
    SamplingParams,
    TokenChunk,
    VersionSpan,
    malformed_as_refused,
)
from stepstream.services.inference.model_config import check_same_config, read_config
from stepstream.services.inference.vllm_process import URL, VllmProcess
from stepstream.services.inference.weight_files import (
    TensorEntry,
    check_adapters_fit,
    check_finite,
    check_same_shapes,
    read_weights,
)
from stepstream.versions.layout import role_of_path

_log = logging.getLogger(__name__)
_SWAP_S = 600.0
_DRAIN_S = 600.0
"""Time for running requests to end before a swap; a swap's own time comes after it."""
_EXCLUDED = -9999.0
"""vLLM's logprob of a token that cannot be sampled."""


class VllmEngine(Engine):
    """Starts vLLM with the first version; `close` or the end of this process stops it."""

    def __init__(self, inference: InferenceSettings) -> None:
        super().__init__()
        self._inference = inference
        self._version: int | None = None
        self._tensors: dict[str, TensorEntry] = {}
        self._tokenizer: dict[str, str] = {}
        self._config: dict[str, Any] = {}
        self._adapters: dict[int, Path] = {}
        self._process = VllmProcess(inference)
        self._has_failed_start = False

    @property
    def version(self) -> int | None:
        """Version of the weights that sample the next token."""
        return self._version

    async def load(self, folder: Path, version: int) -> None:
        """Start vLLM with the version, or swap it in.

        If vLLM ends while it starts, the version is refused, since the next one may be sound. If that start fails too,
        the engine has failed.
        """
        self._check_alive()
        tensors, tokenizer, config = await asyncio.to_thread(self._checked, folder)
        if self._process.is_started:
            await self._swap(folder, version)
        else:
            await self._start(folder, version)
        self._version, self._tensors, self._tokenizer, self._config = version, tensors, tokenizer, config

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams) -> AsyncGenerator[TokenChunk, None]:
        """See `Engine.generate`."""
        self._check_alive()
        body = {"token_ids": prompt_ids, "stream": params.stream, "sampling_params": _sampling(params)}
        mask = SamplingMask([], []) if params.mask_ids else None
        try:
            async with self.post("/inference/v1/generate", orjson.dumps(body)) as answer:
                if answer.status == 400:
                    raise BadPromptError(_message(await answer.read()))
                if answer.status != 200:
                    raise EngineError(f"vLLM answered {answer.status}: {_message(await answer.read())}")
                if not params.stream:
                    yield _chunk(orjson.loads(await answer.read()), params, mask)
                    return
                async for line in answer.content:
                    if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                        yield _chunk(orjson.loads(line[6:]), params, mask)
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(f"vLLM does not answer: {error or type(error).__name__}") from error

    async def load_adapter(self, folder: Path, version: int) -> None:
        """Load adapters under a new name, which also keeps their cached prefixes apart."""
        self._check_alive()
        if self._version is None or not self._inference.lora_rank:
            needed = "load full weights first" if self._inference.lora_rank else "set inference.lora_rank"
            raise CheckpointRefusedError(f"{folder}: vLLM serves no adapters yet: {needed}")
        if self._adapters.get(version) == folder:
            return
        await asyncio.to_thread(_check_adapters, folder, self._tensors)
        await self.unload_adapter(version)  # of another folder
        name = self._adapter_name(version)
        await self._update_adapters("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        try:
            await self._check_smoke_prompts(folder, name)
        except CheckpointRefusedError:
            await self._update_adapters("/v1/unload_lora_adapter", {"lora_name": name})
            raise
        self._adapters[version] = folder

    async def unload_adapter(self, version: int) -> None:
        """See `Engine.unload_adapter`."""
        self._check_alive()
        if version in self._adapters:
            await self._update_adapters("/v1/unload_lora_adapter", {"lora_name": self._adapter_name(version)})
            del self._adapters[version]

    def served_name(self, version: int) -> str:
        """Return the adapters' name; empty: full weights, which have the model's name."""
        return self._adapter_name(version) if version in self._adapters else ""

    def _adapter_name(self, version: int) -> str:
        return f"{self._inference.model}@{version}"

    async def _update_adapters(self, path: str, body: Mapping[str, str]) -> None:
        try:
            async with asyncio.timeout(_SWAP_S), self.post(path, orjson.dumps(body)) as answer:
                reply = await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineError(f"vLLM does not answer {path}: {error or type(error).__name__}") from error
        if answer.status != 200:
            raise CheckpointRefusedError(f"vLLM's {path} refused {body['lora_name']}: {_message(reply)}")

    def post(self, path: str, body: bytes) -> Any:
        """Return the context manager of a request to vLLM; raises aiohttp.ClientError within."""
        return self._process.http.post(f"{URL}{path}", data=body, headers={"content-type": "application/json"})

    async def metrics(self) -> bytes:
        """Return vLLM's own Prometheus metrics, without those of its process; empty: it does not answer."""
        if self._version is None:
            return b""
        try:
            async with self._process.http.get(f"{URL}/metrics") as answer:
                lines = (await answer.read()).splitlines(keepends=True)
        except (aiohttp.ClientError, OSError):
            return b""
        return b"".join(
            line for line in lines if line.removeprefix(b"# HELP ").removeprefix(b"# TYPE ")[:5] == b"vllm:"
        )

    async def close(self) -> None:
        """Stop vLLM; running requests fail."""
        await self._process.close()

    def _checked(self, folder: Path) -> tuple[dict[str, TensorEntry], dict[str, str], dict[str, Any]]:
        """Return the tensors, the tokenizer's digests and the configuration of a version that vLLM can serve.

        Raises:
            CheckpointRefusedError: it cannot.
        """
        with malformed_as_refused(folder):
            tensors, tokenizer, config = read_weights(folder), _digests(folder), read_config(folder)
            if self._tensors:
                check_same_shapes(folder, tensors, self._tensors)
                if tokenizer != self._tokenizer:
                    raise CheckpointRefusedError(
                        f"{folder}: its tokenizer or template differs from the served version's; start a new worker "
                        "for it"
                    )
                check_same_config(folder, config, self._config)
            check_finite(folder, tensors)
        return tensors, tokenizer, config

    async def _start(self, folder: Path, version: int) -> None:
        process, is_ready = self._process, False
        try:
            await process.start(folder, version)
            is_ready = True
            await self._check_smoke_prompts(folder)
        except (CheckpointRefusedError, EngineError) as error:
            is_fault_of_vllm = isinstance(error, EngineError)
            may_be_the_version = not self._has_failed_start and (is_ready or process.ended.done())
            if isinstance(error, EngineError) and not may_be_the_version:
                self._break_down(error)
                raise
            self._has_failed_start = is_fault_of_vllm
            await process.close()
            self._process = VllmProcess(self._inference)
            if is_fault_of_vllm:
                raise CheckpointRefusedError(f"vLLM cannot start with {folder}: {error}") from error
            raise
        self._has_failed_start = False
        process.ended.add_done_callback(self._end)

    async def _check_smoke_prompts(self, folder: Path, adapters: str | None = None) -> None:
        """Compute the smoke prompts with the weights, or with the adapters of this name; a swap does so itself."""
        if not self._inference.smoke_prompts:
            return
        body = {"prompts": self._inference.smoke_prompts, "adapters": adapters}
        try:
            async with asyncio.timeout(_SWAP_S), self.post("/stepstream/smoke", orjson.dumps(body)) as answer:
                reply = await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineError(f"vLLM does not finish the smoke prompts: {error or type(error).__name__}") from error
        if answer.status not in (200, 409):
            raise EngineError(f"vLLM answered the smoke prompts with {answer.status}: {_message(reply)}")
        if answer.status != 200:
            raise CheckpointRefusedError(f"{folder}: {_message(reply)}")

    async def _swap(self, folder: Path, version: int) -> None:
        drains = self._inference.swap == "drain"
        body = {
            "folder": str(folder),
            "version": version,
            "drain": drains,
            "drain_s": _DRAIN_S,
            "smoke_prompts": self._inference.smoke_prompts,
        }
        try:
            async with (
                asyncio.timeout(_SWAP_S + (_DRAIN_S if drains else 0.0)),
                self.post("/stepstream/swap", orjson.dumps(body)) as answer,
            ):
                reply = await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._broken(f"vLLM did not finish the swap to {folder}: {error or type(error).__name__}") from error
        if answer.status == 409:
            raise CheckpointRefusedError(_message(reply))
        if answer.status != 200:
            # The weights may be half loaded, so neither version may be served.
            raise self._broken(f"vLLM answered the swap to {folder} with {answer.status}: {_message(reply)}")
        _log.info("vLLM swapped: %s", reply.decode())

    def _end(self, ended: "asyncio.Future[EngineError]") -> None:
        if not ended.cancelled():
            self._break_down(ended.result())

    def _broken(self, message: str) -> EngineError:
        error = EngineError(message)
        self._break_down(error)
        return error

    def _check_alive(self) -> None:
        if self.failed.done():
            raise self.failed.result()


def _sampling(params: SamplingParams) -> dict[str, Any]:
    """Return vLLM's sampling parameters; only stop strings need detokenization."""
    fields: dict[str, Any] = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repetition_penalty": params.repetition_penalty,
        "seed": params.seed,
        # One token more than a mask may have: if one of them is excluded, the others are all that are left.
        "logprobs": params.mask_ids + 1 if params.mask_ids and params.truncates else 0,
        "detokenize": params.stops is not None,
    }
    if params.stops is not None:
        fields |= {"stop": list(params.stops.strings), "skip_special_tokens": False}
    if params.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in params.logit_bias}
    return fields


def _chunk(reply: Mapping[str, Any], params: SamplingParams, mask: SamplingMask | None) -> TokenChunk:
    """Read one chunk, and append its tokens to the response's mask."""
    choice = reply["choices"][0]
    reason = choice["finish_reason"]
    if reason not in (None, "stop", "length"):
        raise EngineError(f"vLLM ended the response with '{reason}'")
    content = (choice["logprobs"] or {}).get("content") or []
    spans = choice.get("weight_versions") or []
    if mask is not None:
        for entry in content:
            ids = sorted(top["token_id"] for top in entry["top_logprobs"] if top["logprob"] > _EXCLUDED)
            mask.append(ids if params.truncates and len(ids) <= params.mask_ids else ())
    return TokenChunk(
        choice["token_ids"] or [],
        [entry["logprob"] for entry in content],
        reason,
        [VersionSpan(int(span["version"]), span["start"], span["end"]) for span in spans],
        mask if reason else None,
    )


def _check_adapters(folder: Path, base: dict[str, TensorEntry]) -> None:
    with malformed_as_refused(folder):
        adapters = read_weights(folder, single="adapter_model.safetensors")
        check_adapters_fit(folder, adapters, base)
        check_finite(folder, adapters)


def _digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a version's tokenizer and templates, by its path."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in files.items()
        if role_of_path(name) == "tokenizer"
    }


def _message(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"]["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body.decode(errors="replace")[:500]
