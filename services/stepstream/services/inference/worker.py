"""Serve one model by one engine, at the newest version that passed its checks."""

import logging
import time
from pathlib import Path

from stepstream.services.inference import metrics
from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.engine import CheckpointRefusedError, Engine
from stepstream.topics.events import Checkpoint
from stepstream.versions.fetch import fetch_version
from stepstream.versions.layout import VersionRejected, role_of

_log = logging.getLogger(__name__)


class Worker:
    """The engine and the tokenizer of its weights."""

    def __init__(self, model: str, engine: Engine, max_length: int) -> None:
        self.model = model
        self.engine = engine
        self.max_length = max_length
        """Limit of prompt and response tokens together."""
        self.tokenizer: ChatTokenizer | None = None
        self.in_flight = 0
        self._tokenizer_files: frozenset[tuple[str, str]] = frozenset()

    @property
    def version(self) -> int | None:
        """Version that answers the next request; None before the first checkpoint."""
        return self.engine.version if self.tokenizer is not None else None

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
        self.tokenizer, self._tokenizer_files = tokenizer, files
        seconds = time.perf_counter() - started
        metrics.SWAP_SECONDS.observe(seconds)
        metrics.VERSION.set(checkpoint["version"])
        _log.info("serving %s@%d (swapped in %.3f s)", self.model, checkpoint["version"], seconds)


def verified_folder(checkpoint: Checkpoint, cache_folder: Path) -> Path:
    """Return a local folder in Hugging Face form with the checkpoint's verified files; see `fetch_version`.

    Raises:
        CheckpointRefusedError: a file is missing, differs, or is not in the event.
    """
    try:
        return fetch_version(checkpoint, cache_folder)
    except VersionRejected as error:
        raise CheckpointRefusedError(str(error)) from error
