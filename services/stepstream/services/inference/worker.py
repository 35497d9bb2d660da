"""What a worker serves: one model, by one engine, at the newest version that passed its checks."""

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
    """The engine with the tokenizer that goes with its weights."""

    def __init__(self, model: str, engine: Engine, max_length: int) -> None:
        self.model = model
        self.engine = engine
        self.max_length = max_length
        """Most tokens of prompt and response together."""
        self.tokenizer: ChatTokenizer | None = None
        self.in_flight = 0
        self._tokenizer_files: frozenset[tuple[str, str]] = frozenset()

    @property
    def version(self) -> int | None:
        """The version that answers the next request; none before the first checkpoint."""
        return self.engine.version if self.tokenizer is not None else None

    async def load(self, checkpoint: Checkpoint, folder: Path) -> None:
        """Serve this checkpoint, whose files were verified, from the next token on.

        Raises:
            CheckpointRefusedError: the engine or the tokenizer cannot use it.
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
    """The checkpoint's local folder, after every file's digest was checked against the event.

    Raises:
        CheckpointRefusedError: a file is missing, differs, or is not named by the event.
    """
    name = f"{checkpoint['model']}@{checkpoint['version']}"
    address = urlsplit(checkpoint["uri"])
    if address.scheme != "file":
        raise CheckpointRefusedError(f"{name}: only file:// addresses can be loaded, not {checkpoint['uri']}")
    folder = Path(unquote(address.path))
    named = {file["path"]: file["sha256"] for file in checkpoint["files"]}
    for path, sha256 in named.items():
        try:
            with (folder / path).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise CheckpointRefusedError(f"{name}: {folder / path} cannot be read: {error.strerror}") from error
        if found != sha256:
            raise CheckpointRefusedError(f"{name}: {path} has sha256 {found}, its event says {sha256}")
    unnamed = {file.name for file in folder.iterdir() if file.is_file()} - set(named)
    if unnamed:
        raise CheckpointRefusedError(f"{name}: its event does not name {', '.join(sorted(unnamed))}")
    return folder
