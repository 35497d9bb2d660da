"""Describe snapshots of a partition's state, and decide which ones to restore and to remove. Pure.

A manifest names the log, the job and the input positions of a snapshot, and its files by content. It is written after
its files, so a snapshot without a manifest does not exist.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import StringConstraints, TypeAdapter

from stepstream.jobs.runtime.log_reader import Committed

FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")]
"""A name without folders."""


class SnapshotRefused(Exception):
    """A snapshot cannot be used; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """One file of a snapshot."""

    name: FileName
    """Name in RocksDB's folder. Two stores may use one name for different content."""
    object_name: FileName
    """Name in the snapshot store: the content's digest and the time of the upload."""
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One snapshot of one (job, partition)."""

    log: str
    """Identity of the log, as `LogReader.identity`."""
    job: str
    version: str
    partition: int
    position: Mapping[str, int]
    """Next offset to fold, by input topic."""
    ticks: int
    written_ms: int
    """Time of the state's last write: the age of its content."""
    uploaded_ms: int
    files: Sequence[SnapshotFile]
    format: Literal[1] = 1

    @property
    def name(self) -> str:
        """Name of the manifest's file: time, ticks, and offsets in the order of the topics' names."""
        offsets = "-".join(str(offset) for _, offset in sorted(self.position.items()))
        return f"{self.written_ms:015}_{self.ticks}_{offsets}.json"

    def encode(self) -> bytes:
        """Return the content of the manifest's file."""
        return _MANIFEST.dump_json(self)

    def records_after(self, position: Mapping[str, int]) -> int:
        """Return how many offsets this snapshot is ahead of a position."""
        return sum(max(0, offset - position.get(topic, 0)) for topic, offset in self.position.items())


_MANIFEST = TypeAdapter(Manifest)


def decode_manifest(encoded: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        SnapshotRefused: it is damaged, or of a later release.
    """
    try:
        return _MANIFEST.validate_json(encoded)
    except ValueError as error:
        raise SnapshotRefused(f"its manifest is damaged, or of a later release ({error})") from None


def check_usable(
    manifest: Manifest,
    log: str,
    job: str,
    version: str,
    partition: int,
    committed: Mapping[str, Committed],
    ticks: int | None,
) -> None:
    """Check that a snapshot is of this log and job, and not ahead of the committed offsets and ticks (None: unknown).

    Raises:
        SnapshotRefused: it is not.
    """
    found = (manifest.log, manifest.job, manifest.version, manifest.partition)
    if found != (log, job, version, partition):
        raise SnapshotRefused("it is of log {}, {}@{}, partition {}".format(*found))
    for topic, offset in manifest.position.items():
        entry = committed.get(topic)
        if entry is not None and offset > entry.offset:
            raise SnapshotRefused(f"it is ahead of the committed offset {entry.offset} of {topic}: {offset}")
    if ticks is not None and manifest.ticks > ticks:
        raise SnapshotRefused(f"it is ahead of the {ticks} committed ticks: {manifest.ticks}")


def newest_first(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Sort manifests by the age of their content."""
    return sorted(manifests, key=lambda one: (one.written_ms, one.ticks, sum(one.position.values())), reverse=True)


def removable(manifests: Iterable[Manifest], keep: int, before_ms: int) -> list[Manifest]:
    """Return the snapshots that have `keep` newer ones which were complete before `before_ms`.

    An upload that began after `before_ms` may share files with the newest `keep` of its time: those stay.
    """
    found, complete = [], 0
    for manifest in newest_first(manifests):
        if complete >= keep:
            found.append(manifest)
        complete += manifest.uploaded_ms < before_ms
    return found
