"""Swap versions inside vLLM's server: pause, load, finish and resume in one call.

Requests that arrive during a swap wait. Running ones either pause and go on with the new weights, which recompute their
contexts, or end first on the old weights (`drain`), as far as a bound of time allows. If the load fails, the last good
version is loaded again before anything runs.
"""

import asyncio
import itertools
import logging
import math
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from vllm import SamplingParams
from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

Generate = Callable[..., AsyncGenerator[Any, None]]
_T = TypeVar("_T")
_log = logging.getLogger(__name__)
_LIFE_CHECK_S = 0.5


class SwapRefusedError(Exception):
    """The new version cannot be served; the last good one is served again."""


class SwapFailedError(Exception):
    """Neither the new nor the last good version could be loaded, or the engine ended; the server must end."""


@dataclass(frozen=True, slots=True)
class SwapRequest:
    """Body of `POST /stepstream/swap`."""

    folder: str
    """Folder of the new weights."""
    version: int
    drain: bool = False
    """True: running requests end on the old weights first; False: they go on with the new ones."""
    drain_s: float = math.inf
    """With `drain`: seconds after which those that still run go on with the new weights."""
    smoke_prompts: Sequence[str] = ()
    """Prompts whose greedy token must have a finite logprob under the new weights."""


@dataclass(slots=True)
class Swapper:
    """Performs one swap at a time on vLLM's engine client."""

    client: Any
    """vLLM's `EngineClient`."""
    folder: str
    """Folder of the served version."""
    version: int
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)
    _open: asyncio.Event = field(default_factory=asyncio.Event)
    _generate: Generate | None = None

    def guard_requests(self) -> None:
        """Make new requests wait while a swap is under way, also until its smoke prompts have passed."""
        self._open.set()
        self._generate = self.client.generate
        self.client.generate = self._guarded

    async def swap(self, request: SwapRequest) -> dict[str, float]:
        """Serve another version; return the seconds of each part.

        Raises:
            SwapRefusedError: it failed; the last good version is served.
            SwapFailedError: the last good version failed too, or the engine ended.
        """
        async with self._one:
            self._open.clear()
            try:
                return await self._unless_dead(self._swap(request))
            finally:
                self._open.set()

    async def check_prompts(self, prompts: Sequence[str], adapters: Any = None) -> None:
        """Compute smoke prompts with the served weights, or with adapters (vLLM's `LoRARequest`).

        Raises:
            SwapRefusedError: the token after a prompt has no finite logprob.
            SwapFailedError: the engine ended.
        """
        await self._unless_dead(self._check_prompts(prompts, adapters))

    async def _swap(self, request: SwapRequest) -> dict[str, float]:
        times = [time.perf_counter()]
        await (self._drain(request.drain_s) if request.drain else self._pause("keep"))
        times.append(time.perf_counter())
        try:
            await self._load(request.folder, request.version)
        except Exception as error:
            await self._restore()
            raise SwapRefusedError(f"vLLM cannot load {request.folder}: {error}") from error
        times.append(time.perf_counter())
        await self.client.resume_generation()
        try:
            await self._check_prompts(request.smoke_prompts)
        except SwapRefusedError as error:
            await self._pause("keep")
            await self._restore()
            raise SwapRefusedError(f"{request.folder}: {error}") from None
        self.folder, self.version = request.folder, request.version
        times.append(time.perf_counter())
        parts = [round(end - start, 4) for start, end in itertools.pairwise(times)]
        return dict(zip(("pause_s", "load_s", "resume_s"), parts, strict=True))

    async def _unless_dead(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return the result of a swap or check; vLLM never answers a call that its engine had when it ended."""
        task = asyncio.create_task(work)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=_LIFE_CHECK_S)
                if self.client.errored and not task.done():
                    raise SwapFailedError("vLLM's engine ended during the swap")
            return task.result()
        finally:
            task.cancel()

    async def _drain(self, seconds: float) -> None:
        """Wait for the running requests to end; after `seconds`, pause those that still run."""
        drained = asyncio.create_task(self._pause("wait"))
        try:
            await asyncio.wait({drained}, timeout=None if math.isinf(seconds) else seconds)
            if not drained.done():
                _log.warning("requests still run after %g s: they go on with the new weights", seconds)
                await self._pause("keep")
            await drained  # a pause of all requests ends the wait
        finally:
            drained.cancel()

    async def _pause(self, mode: str) -> None:
        await self.client.pause_generation(mode=mode, clear_cache=True)

    async def _load(self, folder: str, version: int) -> None:
        await self.client.start_weight_update()
        await self.client.update_weights(WeightTransferUpdateRequest(update_info={"folder": folder}))
        await self.client.finish_weight_update(str(version))

    async def _restore(self) -> None:
        """Load the last good version and resume; raises SwapFailedError, with the engine still paused."""
        try:
            await self._load(self.folder, self.version)
        except Exception as error:
            raise SwapFailedError(f"vLLM cannot load the last good version {self.folder} again: {error}") from error
        await self.client.resume_generation()

    async def _check_prompts(self, prompts: Sequence[str], adapters: Any = None) -> None:
        for prompt in prompts:
            if not await self._is_finite(prompt, adapters):
                raise SwapRefusedError(f"the token after the smoke prompt {prompt!r} is not finite")

    async def _is_finite(self, prompt: str, adapters: Any) -> bool:
        assert self._generate is not None
        params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=0)
        try:
            logprobs = [
                logprob.logprob
                async for output in self._generate(
                    {"prompt": prompt}, params, f"smoke-{uuid.uuid4().hex}", lora_request=adapters
                )
                for choice in output.outputs
                for tokens in choice.logprobs or ()
                for logprob in tokens.values()
            ]
        except Exception:  # vLLM may also fail to sample from NaN
            return False
        return bool(logprobs) and all(map(math.isfinite, logprobs))

    async def _guarded(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        await self._open.wait()
        assert self._generate is not None
        async with aclosing(self._generate(*args, **kwargs)) as outputs:
            async for output in outputs:
                yield output
