"""Serve one model by one engine, at the newest version that passed its checks."""

import hashlib
import logging
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

from stepstream.services.inference import metrics
from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.engine import CheckpointRefusedError, Engine
from stepstream.topics.events import Checkpoint

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
            (file["path"], file["sha256"])
            for file in checkpoint["files"]
            if "token" in file["path"] or "template" in file["path"]
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


def verified_folder(checkpoint: Checkpoint) -> Path:
    """Check every file's digest against the event, and return the checkpoint's local folder.

    Raises:
        CheckpointRefusedError: a file is missing, differs, or is not in the event.
    """
    name = f"{checkpoint['model']}@{checkpoint['version']}"
    address = urlsplit(checkpoint["uri"])
    if address.scheme != "file":
        raise CheckpointRefusedError(f"{name}: this worker loads file:// addresses only, not {checkpoint['uri']}")
    folder = Path(unquote(address.path))
    listed = {file["path"]: file["sha256"] for file in checkpoint["files"]}
    for path, sha256 in listed.items():
        try:
            with (folder / path).open("rb") as file:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise CheckpointRefusedError(f"{name}: {folder / path} cannot be read: {error.strerror}") from error
        if actual != sha256:
            raise CheckpointRefusedError(f"{name}: {path} has sha256 {actual}, its event has {sha256}")
    unlisted = {file.name for file in folder.iterdir() if file.is_file()} - set(listed)
    if unlisted:
        raise CheckpointRefusedError(f"{name}: its event does not list {', '.join(sorted(unlisted))}")
    return folder
