"""Run small models with torch in this process, on a separate thread, with continuous batching."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.continuous_batch import Batch, Generation
from stepstream.services.inference.engine import (
    BadPromptError,
    CheckpointRefusedError,
    Engine,
    EngineError,
    NoValueError,
    SamplingParams,
    TokenChunk,
    malformed_as_refused,
)
from stepstream.services.inference.llama import Llama, LlamaWeights
from stepstream.services.inference.weight_files import check_same_shapes

_log = logging.getLogger(__name__)
_SMOKE_TOKENS = 16
_Item = TokenChunk | EngineError
_QueuedItem = tuple[asyncio.Queue[_Item], _Item]


class _Scoring(NamedTuple):
    """Contexts to score; see `Engine.score`."""

    prompts: Sequence[Sequence[int]]
    tokens: tuple[int, int] | None
    scored: asyncio.Future[tuple[list[float], int]]


class TorchEngine(Engine):
    """Computes on its own thread, which sleeps when idle; create and use it on one event loop."""

    def __init__(
        self,
        max_batch: int,
        max_length: int,
        threads: int,
        device: str = "cpu",
        *,
        drain: bool = False,
        smoke_prompts: Sequence[str] = (),
    ) -> None:
        """Run at most `max_batch` sequences of `max_length` tokens at once on `threads` CPU threads or a GPU.

        Args:
            max_batch: sequences at once.
            max_length: tokens of each.
            threads: CPU threads.
            device: torch's name of the device.
            drain: True: at a swap, running sequences end on the old weights first; False: they go on with the new ones.
            smoke_prompts: texts after which the logits of a new version must be finite.

        Raises:
            EngineError: this machine has no such device.
        """
        super().__init__()
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            raise EngineError(f"no device '{device}': torch finds no GPU here; set inference.device to cpu")
        self._device = device
        torch.set_num_threads(threads)
        self._max_batch, self._max_length = max_batch, max_length
        self._drain, self._smoke_prompts = drain, tuple(smoke_prompts)
        self._loop = asyncio.get_running_loop()
        self._weights: LlamaWeights | None = None
        self._version: int | None = None
        self._wake = threading.Condition()
        # Guarded by `_wake`:
        self._waiting: deque[Generation] = deque()
        self._cancelled: set[Generation] = set()
        self._scoring: deque[_Scoring] = deque()
        self._swap: tuple[LlamaWeights, int, asyncio.Future[None]] | None = None
        self._closing = False
        self._failure: EngineError | None = None
        # Of the engine's thread alone:
        self._queues: dict[Generation, asyncio.Queue[_Item]] = {}
        self._queued_items: list[_QueuedItem] = []
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int | None:
        """Version of the weights that sample new requests."""
        return self._version

    async def load(self, folder: Path, version: int) -> None:
        """Read the checkpoint beside the running batch; swap it in between two tokens, or once the batch is empty."""
        weights = await asyncio.to_thread(self._checked, folder)
        swapped: asyncio.Future[None] = self._loop.create_future()
        with self._wake:
            self._check_alive()
            self._swap = (weights, version, swapped)
            self._wake.notify()
        await swapped
        self._weights, self._version = weights, version

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams) -> AsyncGenerator[TokenChunk, None]:
        """See `Engine.generate`."""
        self._check_prompt(prompt_ids)
        self._check_biases(params)
        queue: asyncio.Queue[_Item] = asyncio.Queue()
        generation = Generation(prompt_ids, params, lambda chunk: self._queued_items.append((queue, chunk)))
        with self._wake:
            self._check_alive()
            self._queues[generation] = queue
            self._waiting.append(generation)
            self._wake.notify()
        finished = False
        try:
            while not finished:
                item = await queue.get()
                if isinstance(item, EngineError):
                    raise item
                finished = item.finish_reason is not None
                yield item
        finally:
            with self._wake:
                self._queues.pop(generation, None)
                if generation in self._waiting:
                    self._waiting.remove(generation)
                elif not finished:
                    self._cancelled.add(generation)

    async def score(self, prompts: Sequence[Sequence[int]], tokens: tuple[int, int] | None) -> tuple[list[float], int]:
        """See `Engine.score`."""
        for prompt in prompts:
            self._check_prompt(prompt)
        scored: asyncio.Future[tuple[list[float], int]] = self._loop.create_future()
        with self._wake:
            self._check_alive()
            self._scoring.append(_Scoring(prompts, tokens, scored))
            self._wake.notify()
        return await scored

    async def close(self) -> None:
        """Stop the thread; running requests fail."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _checked(self, folder: Path) -> LlamaWeights:
        """Read and compute a version beside the running batch; raises CheckpointRefusedError if it cannot serve."""
        with malformed_as_refused(folder):
            weights = LlamaWeights(folder, self._device)
            if self._weights is not None:
                check_same_shapes(folder, weights.entries, self._weights.entries)
                if weights.shape != self._weights.shape:
                    raise CheckpointRefusedError(
                        f"{folder}: its config.json differs from the served version's; start a new worker for it"
                    )
            _smoke_test(folder, weights, self._smoke_prompts)
        return weights

    def _check_prompt(self, prompt_ids: Sequence[int]) -> None:
        if self._weights is None:
            raise EngineError("the engine has no checkpoint yet")
        shape = self._weights.shape
        length = min(self._max_length, shape.max_length)
        if not 0 < len(prompt_ids) < length:
            raise BadPromptError(f"the prompt has {len(prompt_ids)} tokens; this model takes 1 to {length - 1}")
        if min(prompt_ids) < 0 or max(prompt_ids) >= shape.vocabulary:
            raise BadPromptError(f"the prompt has a token id outside 0..{shape.vocabulary - 1}")

    def _check_biases(self, params: SamplingParams) -> None:
        assert self._weights is not None
        vocabulary = self._weights.shape.vocabulary
        if any(token >= vocabulary for token, _ in params.logit_bias):
            raise BadPromptError(f"logit_bias has a token id outside 0..{vocabulary - 1}")

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                self._serve()
            failure = EngineError("the engine was closed")
        except Exception as error:
            _log.exception("the engine has failed")
            failure = EngineError(f"the engine has failed: {type(error).__name__}: {error}")
        with self._wake:
            self._failure = failure
            self._queued_items += [(queue, failure) for queue in self._queues.values()]
            swap = self._swap
            unscored, self._scoring = self._scoring, deque()
        self._deliver()
        for scoring in unscored:
            self._loop.call_soon_threadsafe(_set_exception, scoring.scored, failure)
        if swap is not None:
            self._loop.call_soon_threadsafe(_set_exception, swap[2], failure)
        if not self._closing:
            self._loop.call_soon_threadsafe(self._break_down, failure)

    def _serve(self) -> None:
        batch: Batch | None = None
        while True:
            with self._wake:
                while not (
                    self._swap or self._closing or (batch and (batch.running or self._waiting or self._scoring))
                ):
                    self._wake.wait()
                if self._closing:
                    return
                if batch is not None and self._cancelled:
                    batch.remove(self._cancelled)
                    self._cancelled = set()
                is_draining = bool(self._swap and self._drain and batch and batch.running)
                swap = None
                if not is_draining:
                    swap, self._swap = self._swap, None
                scoring = self._scoring.popleft() if self._scoring and batch and batch.free else None
                room = 0 if is_draining else batch.free if batch else self._max_batch
                joining = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
            if swap is not None:
                batch = self._apply_swap(batch, *swap)
            assert batch is not None
            if scoring is not None:
                self._score(batch, scoring)
            if joining:
                batch.join(joining)
            batch.step()
            self._deliver()

    def _apply_swap(
        self, batch: Batch | None, weights: LlamaWeights, version: int, swapped: asyncio.Future[None]
    ) -> Batch:
        if batch is None:
            batch = Batch(weights, version, self._max_batch, self._max_length)
        else:
            batch.swap(weights, version)
        self._loop.call_soon_threadsafe(_set_result, swapped, None)
        return batch

    def _score(self, batch: Batch, scoring: "_Scoring") -> None:
        try:
            result = batch.score(scoring.prompts, scoring.tokens), batch.version
        except NoValueError as error:
            self._loop.call_soon_threadsafe(_set_exception, scoring.scored, error)
        except Exception as error:
            failure = EngineError(f"the engine has failed: {type(error).__name__}: {error}")
            self._loop.call_soon_threadsafe(_set_exception, scoring.scored, failure)
            raise
        else:
            self._loop.call_soon_threadsafe(_set_result, scoring.scored, result)

    def _deliver(self) -> None:
        """Pass all chunks of one step to the event loop in one wake-up."""
        if self._queued_items:
            items, self._queued_items = self._queued_items, []
            self._loop.call_soon_threadsafe(_put_all, items)


def _smoke_test(folder: Path, weights: LlamaWeights, prompts: Sequence[str]) -> None:
    """Compute a prompt of tokens from the whole vocabulary, and some texts, beside the running batch.

    Raises:
        CheckpointRefusedError: the shapes do not fit each other, or a logit is NaN or infinite.
    """
    shape = weights.shape
    tokens = torch.linspace(0, shape.vocabulary - 1, min(_SMOKE_TOKENS, shape.max_length)).long()
    _check_logits(folder, weights, tokens, "a test prompt")
    tokenizer = ChatTokenizer(folder) if prompts else None
    for prompt in prompts:
        assert tokenizer is not None
        _check_logits(folder, weights, torch.tensor(tokenizer.encode(prompt)), f"the smoke prompt {prompt!r}")


def _check_logits(folder: Path, weights: LlamaWeights, tokens: torch.Tensor, name: str) -> None:
    device, count = weights.embedding.device, len(tokens)
    try:
        with torch.inference_mode():
            logits = Llama(weights, 1, count).prefill(
                0, tokens[None].to(device), torch.tensor([count - 1], device=device)
            )
    except (RuntimeError, IndexError) as error:
        raise CheckpointRefusedError(f"{folder}: its tensors do not fit each other: {error}") from error
    if not bool(logits.isfinite().all()):
        raise CheckpointRefusedError(f"{folder}: its logits for {name} are NaN or infinite")


def _put_all(items: list[_QueuedItem]) -> None:
    for queue, item in items:
        queue.put_nowait(item)


def _set_result(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
