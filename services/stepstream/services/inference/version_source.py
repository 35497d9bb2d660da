"""Get the verified files of versions for an inference worker, from memory or files; bound its cache."""

import logging
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from stepstream.config import Settings
from stepstream.crypto.signatures import BadKey
from stepstream.services.inference import metrics
from stepstream.services.inference.engine import CheckpointRefusedError
from stepstream.topics.events import Checkpoint, Track
from stepstream.versions.cache import prune_cache, remove_partial
from stepstream.versions.fetch import Lookup, fetch_adapter, fetch_base, fetch_version
from stepstream.versions.layout import NotStored, VersionRejected, name_of
from stepstream.versions.shared_memory import NotShared, SharedVersionReader

_log = logging.getLogger(__name__)
_RECENT = 8


@dataclass(frozen=True, slots=True)
class VersionFiles:
    """Local folders of a version."""

    weights: Path
    """In Hugging Face form; the base's if `adapter` is set."""
    adapter: Path | None = None
    """Adapters in PEFT's form; None: `weights` are the version's own."""
    weights_event: str = field(default="", compare=False)
    """Id of the event that published `weights`."""
    adapter_event: str = field(default="", compare=False)
    """Id of the event that published `adapter`; empty: none did."""


class VersionSource:
    """Gets versions. Use it from one thread at a time; its calls block for downloads and digests."""

    def __init__(self, settings: Settings, lookup: Lookup, *, serves_adapters: bool) -> None:
        """Remove what killed workers left half written in the cache.

        Args:
            settings: of the worker.
            lookup: finds the version that a delta or adapters apply to.
            serves_adapters: fetch adapters apart from their base; else merge them into weights.
        """
        self._inference = settings.inference
        self._cache_folder = settings.paths.data.absolute() / "version-cache" / settings.inference.worker_id
        remove_partial(self._cache_folder)
        self._lookup = lookup
        self._serves_adapters = serves_adapters
        self._shared = SharedVersionReader(settings.paths.shared_memory)
        self._held: dict[Track, VersionFiles] = {}
        self._recent: deque[VersionFiles] = deque(maxlen=_RECENT)

    def fetch(self, checkpoint: Checkpoint) -> VersionFiles:
        """Return the verified files of a version, from the memory of a learner on this machine if it shares them.

        If they do not fit this machine's disk, the cache loses what is not in use, so that the next attempt has room.

        Raises:
            CheckpointRefusedError: a file is missing, differs, or is not in the event, or no trusted key signed it; or
                this machine cannot read or store the files now.
        """
        if held := self._held_adapters(checkpoint):
            return held
        self._free_memory()
        try:
            try:
                files = self._take_shared(checkpoint)
                metrics.FETCHES.labels("memory", "").inc()
            except NotShared as missing:
                if missing.reason in ("differs", "unsafe"):
                    _log.warning("%s: reading its files instead of memory: %s", name_of(checkpoint), missing)
                files = self._fetch_files(checkpoint)
                metrics.FETCHES.labels("files", missing.reason).inc()
        except (VersionRejected, BadKey) as error:
            if isinstance(error, NotStored):
                begun = (self._cache_folder / checkpoint["model"]).glob(f"{checkpoint['version']}-*")
                self._prune(0, [*_folders(self._in_use()), *begun])
            raise CheckpointRefusedError(str(error)) from error
        except OSError as error:
            raise CheckpointRefusedError(
                f"{name_of(checkpoint)}: this machine cannot read or store its files: {error}"
            ) from error
        self._recent.append(files)
        self._prune(self._inference.version_cache_bytes, _folders([*self._held.values(), *self._recent]))
        return files

    def hold(self, track: Track, files: VersionFiles) -> None:
        """Keep the files of the version that a track serves: an engine may read them again."""
        self._held[track] = files
        self._free_memory()

    def close(self) -> None:
        """Free the memory of all versions; no engine loads any more."""
        self._shared.close()

    def _take_shared(self, checkpoint: Checkpoint) -> VersionFiles:
        if not self._held:
            # An engine may read the folder that it started with at any time, and a start is slow anyway.
            raise NotShared("start")
        keys = self._inference.trusted_keys
        if checkpoint["format"] != "lora":
            return VersionFiles(self._shared.take(checkpoint, keys), None, checkpoint["event_id"])
        if not self._serves_adapters:
            raise NotShared("merged")
        adapter = self._shared.take(checkpoint, keys) / "adapter"
        known, event = self._base(checkpoint)
        weights = known or fetch_base(checkpoint, self._lookup, self._cache_folder, keys)
        return VersionFiles(weights, adapter, event, checkpoint["event_id"])

    def _fetch_files(self, checkpoint: Checkpoint) -> VersionFiles:
        keys, cache = self._inference.trusted_keys, self._cache_folder
        if checkpoint["format"] != "lora" or not self._serves_adapters:
            weights = fetch_version(checkpoint, self._lookup, cache, trusted_keys=keys)
            return VersionFiles(weights, None, checkpoint["event_id"])
        known, event = self._base(checkpoint)
        weights, adapter = fetch_adapter(checkpoint, self._lookup, cache, trusted_keys=keys, base=known)
        return VersionFiles(weights, adapter, event, checkpoint["event_id"])

    def _base(self, checkpoint: Checkpoint) -> tuple[Path | None, str]:
        """Return the folder of the weights below adapters if a track serves them, so were verified; and their event."""
        base = self._lookup(checkpoint["model"], checkpoint["base_version"] or 0)
        event = "" if base is None else base["event_id"]
        in_use = (files.weights for files in self._held.values() if event and files.weights_event == event)
        return next(in_use, None), event

    def _held_adapters(self, checkpoint: Checkpoint) -> VersionFiles | None:
        """Return the files of adapters that a track serves: an engine would load those of another folder anew."""
        _, base_event = self._base(checkpoint)
        events = base_event, checkpoint["event_id"]
        held = (files for files in self._held.values() if (files.weights_event, files.adapter_event) == events)
        return next(held, None)

    def _in_use(self) -> list[VersionFiles]:
        """Return what the tracks serve, and recent adapters, which vLLM may read again."""
        return [*self._held.values(), *(files for files in self._recent if files.adapter is not None)]

    def _free_memory(self) -> None:
        self._shared.keep(_folders(self._in_use()))

    def _prune(self, limit_bytes: int, keep: Collection[Path]) -> None:
        try:
            prune_cache(self._cache_folder, limit_bytes, keep)
        except OSError as error:
            _log.warning("the cache %s may exceed its limit: %s", self._cache_folder, error)


def _folders(kept: Collection[VersionFiles]) -> list[Path]:
    return [folder for one in kept for folder in (one.weights, one.adapter) if folder is not None]
