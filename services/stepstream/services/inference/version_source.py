"""Fetch the verified files of versions for an inference worker, and keep its cache within its limit."""

from collections import deque
from dataclasses import dataclass
from pathlib import Path

from stepstream.config import Settings
from stepstream.services.inference.engine import CheckpointRefusedError
from stepstream.topics.events import Checkpoint, Track
from stepstream.versions.fetch import Lookup, fetch_adapter, fetch_version, prune_cache
from stepstream.versions.layout import VersionRejected
from stepstream.versions.signing import BadKey

_RECENT = 8


@dataclass(frozen=True, slots=True)
class VersionFiles:
    """Local folders of a version."""

    weights: Path
    """In Hugging Face form; the base's if `adapter` is set."""
    adapter: Path | None = None
    """Adapters in PEFT's form; None: `weights` are the version's own."""


class VersionSource:
    """Fetches versions. Use it from one thread; its calls block for downloads and digests."""

    def __init__(self, settings: Settings, lookup: Lookup, *, serves_adapters: bool) -> None:
        """Look for files.

        Args:
            settings: of the worker.
            lookup: finds the version that a delta or adapters apply to.
            serves_adapters: fetch adapters apart from their base; else merge them into weights.
        """
        self._inference = settings.inference
        self._cache_folder = settings.paths.data.absolute() / "version-cache" / settings.inference.worker_id
        self._lookup = lookup
        self._serves_adapters = serves_adapters
        self._held: dict[Track, VersionFiles] = {}
        self._recent: deque[VersionFiles] = deque(maxlen=_RECENT)

    def fetch(self, checkpoint: Checkpoint) -> VersionFiles:
        """Return the verified files of a version.

        Raises:
            CheckpointRefusedError: a file is missing, differs, or is not in the event, or no trusted key signed it.
        """
        keys = self._inference.trusted_keys
        try:
            if checkpoint["format"] == "lora" and self._serves_adapters:
                files = VersionFiles(*fetch_adapter(checkpoint, self._lookup, self._cache_folder, trusted_keys=keys))
            else:
                files = VersionFiles(fetch_version(checkpoint, self._lookup, self._cache_folder, trusted_keys=keys))
        except (VersionRejected, BadKey) as error:
            raise CheckpointRefusedError(str(error)) from error
        self._recent.append(files)
        kept = [*self._held.values(), *self._recent]
        folders = [folder for one in kept for folder in (one.weights, one.adapter) if folder is not None]
        prune_cache(self._cache_folder, self._inference.version_cache_bytes, folders)
        return files

    def hold(self, track: Track, files: VersionFiles) -> None:
        """Keep the files of the version that a track serves: an engine may read them again."""
        self._held[track] = files
