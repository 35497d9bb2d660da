"""Serve one model on its tracks: an engine for each, at the versions that passed their checks."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from stepstream.services.inference import metrics
from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.engine import CheckpointRefusedError, Engine, EngineError
from stepstream.topics.events import Checkpoint, ServedVersion, Track, new_served_version
from stepstream.versions.layout import role_of

_log = logging.getLogger(__name__)


class Slot:
    """One track's weights: those of an engine, or adapters beside them."""

    def __init__(self, model: str, engine: Engine) -> None:
        self.model = model
        self.engine = engine
        self.tokenizer: ChatTokenizer | None = None
        self.in_flight = 0
        """Requests that use the engine now."""
        self._adapter: int | None = None
        self._weights: tuple[Path, int] | None = None
        self._tokenizer_files: frozenset[tuple[str, str]] = frozenset()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def version(self) -> int | None:
        """Version that answers the next request; None before the first checkpoint."""
        if self.tokenizer is None:
            return None
        return self.engine.version if self._adapter is None else self._adapter

    @property
    def has_adapters(self) -> bool:
        """True if adapters beside the engine's weights answer the next request."""
        return self._adapter is not None

    @property
    def served_name(self) -> str:
        """Name that selects its version in a request to the engine."""
        return self.model if self._adapter is None else self.engine.served_name(self._adapter) or self.model

    async def load(self, checkpoint: Checkpoint, folder: Path) -> None:
        """Serve a verified checkpoint from the next token on.

        Raises:
            CheckpointRefusedError: the engine or the tokenizer cannot load it.
        """
        started = time.perf_counter()
        files = frozenset(
            (file["path"], file["sha256"]) for file in checkpoint["files"] if role_of(file) == "tokenizer"
        )
        tokenizer = self.tokenizer
        if tokenizer is None or files != self._tokenizer_files:
            tokenizer = ChatTokenizer(folder)
        await self.engine.load(folder, checkpoint["version"])
        self.tokenizer, self._tokenizer_files, self._adapter = tokenizer, files, None
        self._weights = folder, checkpoint["version"]
        self._log_swap(checkpoint, started)

    async def load_adapter(self, checkpoint: Checkpoint, base: Path, adapter: Path) -> None:
        """Serve verified adapters from the next request on; load their base first if the engine holds another.

        Raises:
            CheckpointRefusedError: the engine or the tokenizer cannot load them; what was served goes on.
        """
        started = time.perf_counter()
        base_version = checkpoint["base_version"]
        assert base_version is not None, "adapters name their base"
        tokenizer = ChatTokenizer(base) if self.tokenizer is None else self.tokenizer
        if self.engine.version != base_version:
            tokenizer = ChatTokenizer(base)
            await self.engine.load(base, base_version)
        try:
            await self.engine.load_adapter(adapter, checkpoint["version"])
        except CheckpointRefusedError:
            await self._restore_weights()
            raise
        self.tokenizer, self._tokenizer_files, self._adapter = tokenizer, frozenset(), checkpoint["version"]
        self._weights = base, base_version
        self._log_swap(checkpoint, started)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the engine open for one request."""
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    async def retire(self) -> None:
        """Close the engine after its last request."""
        try:
            await self._idle.wait()
        finally:
            await self.engine.close()

    async def _restore_weights(self) -> None:
        """Load the weights below what is served again, if the engine has others by now."""
        if self._weights is not None and self.engine.version != self._weights[1]:
            served, self._adapter = self._adapter, None  # if the load fails, the slot serves the engine's weights
            await self.engine.load(*self._weights)
            self._adapter = served

    def _log_swap(self, checkpoint: Checkpoint, started: float) -> None:
        seconds = time.perf_counter() - started
        metrics.SWAP_SECONDS.observe(seconds)
        _log.info("serving %s@%d (swapped in %.3f s)", self.model, checkpoint["version"], seconds)


class Worker:
    """The slots of one model; use it on one event loop.

    The first slot always exists. With the tracks `stable` and `canary`, a second slot exists while there is a canary,
    if there is a way to make a second engine, or if the engine serves adapters and both versions are adapters of one
    base. Else the first slot serves each request on any track.
    """

    def __init__(
        self,
        model: str,
        engine: Engine,
        max_length: int,
        *,
        tracks: Sequence[Track] = ("stable",),
        new_engine: Callable[[], Engine] | None = None,
        max_adapters: int = 0,
    ) -> None:
        """Serve `model` with `engine`; see the class.

        Args:
            model: name of the model.
            engine: engine of the first slot.
            max_length: limit of prompt and response tokens together.
            tracks: tracks to serve; the first slot serves the first one.
            new_engine: makes the engine of a canary; None: this worker holds one set of weights.
            max_adapters: adapters that the engine keeps beside its weights; 0: it serves none.
        """
        self.model = model
        self.max_length = max_length
        self.track: Track = tracks[0]
        """Track of the first slot."""
        self.in_flight = 0
        self.failed: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
        """Set to the error of the first engine that fails for good."""
        self._first = Slot(model, engine)
        self._canary: Slot | None = None
        self._has_both = self.track == "stable" and "canary" in tracks
        self._new_engine = new_engine if self._has_both else None
        self._max_adapters = max_adapters
        self._adapters: list[int] = []
        self._retiring: set[asyncio.Task[None]] = set()
        self._running = 0
        self._adapter_requests = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._open = asyncio.Event()
        self._open.set()
        engine.failed.add_done_callback(self._break_down)

    @property
    def holds_both_tracks(self) -> bool:
        """True if a canary gets a slot of its own."""
        return self._new_engine is not None or (self._has_both and self.serves_adapters)

    @property
    def serves_adapters(self) -> bool:
        """True if the engine serves adapters beside its weights; else adapters are merged into weights."""
        return self._max_adapters > 0

    @property
    def version(self) -> int | None:
        """Version that answers the next request on the first track; None before the first checkpoint."""
        return self._first.version

    @property
    def tokenizer(self) -> ChatTokenizer | None:
        """Tokenizer of the first slot; None before the first checkpoint."""
        return self._first.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: ChatTokenizer | None) -> None:
        self._first.tokenizer = tokenizer

    @property
    def tracks(self) -> dict[Track, int]:
        """Served versions by track."""
        return {served["track"]: served["version"] for served in self.served_versions()}

    def served_versions(self) -> list[ServedVersion]:
        """Return the served versions by track, as the worker's status has them."""
        slots: dict[Track, Slot] = {self.track: self._first}
        if self._canary is not None:
            slots["canary"] = self._canary
        return [
            new_served_version(track=track, version=slot.version, served_name=slot.served_name)
            for track, slot in slots.items()
            if slot.version is not None
        ]

    def version_on(self, track: Track) -> int | None:
        """Return the version of the track's own slot; None: it has none, or no version."""
        if track == self.track:
            return self._first.version
        return None if self._canary is None else self._canary.version

    def slot(self, track: Track) -> Slot:
        """Return the slot that answers a request on a track."""
        canary = self._canary if track == "canary" else None
        return self._first if canary is None or canary.version is None else canary

    @asynccontextmanager
    async def request(self, track: Track) -> AsyncIterator[Slot]:
        """Give one request the slot of its track; it waits while the weights below adapters change."""
        await self._open.wait()
        slot = self.slot(track)
        adapters = int(slot.has_adapters)
        self._running += 1
        self._adapter_requests += adapters
        self._idle.clear()
        try:
            with slot.in_use():
                yield slot
        finally:
            self._running -= 1
            self._adapter_requests -= adapters
            if not self._running:
                self._idle.set()

    async def load(self, checkpoint: Checkpoint, folder: Path, track: Track | None = None) -> None:
        """Serve a verified checkpoint on a track, by default the first one, from the next token on.

        Raises:
            CheckpointRefusedError: the engine or the tokenizer cannot load it; what was served goes on.
        """
        if track is None or track == self.track:
            async with self._changing_base(checkpoint["version"]):
                await self._first.load(checkpoint, folder)
            metrics.VERSION.set(checkpoint["version"])
        elif self._canary is not None and self._canary.engine is not self._first.engine:
            await self._canary.load(checkpoint, folder)
        elif self._new_engine is not None:
            slot = Slot(self.model, self._new_engine())
            try:
                await slot.load(checkpoint, folder)
            except BaseException:
                await slot.retire()
                raise
            slot.engine.failed.add_done_callback(self._break_down)
            self._canary = slot
        else:
            raise CheckpointRefusedError(
                f"{self.model}@{checkpoint['version']}: this worker holds one set of weights and serves "
                f"{self.track} with it; run a worker with inference.tracks=canary"
            )

    async def load_adapter(self, checkpoint: Checkpoint, base: Path, adapter: Path, track: Track) -> None:
        """Serve verified adapters on a track from the next request on; running ones end on their version.

        Raises:
            CheckpointRefusedError: the engine cannot load them; what was served goes on.
        """
        engine = self._first.engine
        if track == self.track:
            async with self._changing_base(checkpoint["base_version"]):
                await self._first.load_adapter(checkpoint, base, adapter)
            metrics.VERSION.set(checkpoint["version"])
        else:
            if engine.version != checkpoint["base_version"]:
                raise CheckpointRefusedError(
                    f"{self.model}@{checkpoint['version']}: its base is version {checkpoint['base_version']}, this "
                    f"worker's is {engine.version}; run a worker with inference.tracks=canary"
                )
            slot = Slot(self.model, engine) if self._canary is None else self._canary
            await slot.load_adapter(checkpoint, base, adapter)
            self._canary = slot
        self._adapters = [version for version in self._adapters if version != checkpoint["version"]]
        self._adapters.append(checkpoint["version"])
        await self._unload_oldest()

    async def end_canary(self) -> None:
        """Answer later requests of the canary from the first slot; those in flight finish where they are."""
        if self._canary is not None and self._canary.engine is not self._first.engine:
            task = asyncio.create_task(self._canary.retire())
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
        self._canary = None

    async def close(self) -> None:
        """Close all engines; running requests fail."""
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        await self._first.engine.close()
        if self._canary is not None and self._canary.engine is not self._first.engine:
            await self._canary.engine.close()

    @asynccontextmanager
    async def _changing_base(self, version: int | None) -> AsyncIterator[None]:
        """End the running requests and hold new ones back while the weights below adapters change.

        The engine would continue requests of adapters on the new weights, under the adapters' version. A canary of
        adapters does not fit the new weights and ends, unless these are refused and the engine keeps its own.
        """
        engine, canary = self._first.engine, self._canary
        slots = [self._first] if canary is None else [self._first, canary]
        has_adapters = self._adapter_requests > 0 or any(slot.has_adapters for slot in slots)
        base = engine.version
        if not has_adapters or base == version:
            yield
            return
        self._open.clear()
        try:
            await self._idle.wait()
            if canary is not None and canary.engine is engine:
                await self.end_canary()
            try:
                yield
            except CheckpointRefusedError:
                if engine.version == base:
                    self._canary = canary
                raise
        finally:
            self._open.set()

    async def _unload_oldest(self) -> None:
        """Unload the adapters that no track has, the oldest first, beyond what the engine keeps."""
        held = set(self.tracks.values())
        for version in list(self._adapters):
            if len(self._adapters) > self._max_adapters and version not in held:
                await self._first.engine.unload_adapter(version)
                self._adapters.remove(version)

    def _break_down(self, failed: asyncio.Future[EngineError]) -> None:
        if not self.failed.done():
            self.failed.set_result(failed.result())
