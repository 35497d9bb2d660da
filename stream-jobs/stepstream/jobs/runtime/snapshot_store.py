"""Keep snapshots of partitions' state at any address that versions may have, and read them back.

Below the address, `JOB/LOG/PARTITION/files` has the files and `JOB/LOG/PARTITION/manifests` one manifest for each
snapshot, which is written last. LOG is the identity of the input topics, so two clusters never meet.

A file is uploaded once: a snapshot names the objects of the snapshots before it where the content is the same. No
object is ever overwritten. `prune` removes an object that no manifest names once it is older than `GRACE_MS`; an upload
gives up after half of that. So several workers may upload and prune one partition: a previous owner, which wakes from a
pause, adds a snapshot of earlier offsets, which is as true as any.
"""

import hashlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from stepstream.core.object_store import list_names, open_file, remove, write_file
from stepstream.jobs.runtime.log_reader import Committed
from stepstream.jobs.runtime.retry import Cancelled
from stepstream.jobs.runtime.snapshot_manifest import (
    Manifest,
    SnapshotFile,
    SnapshotRefused,
    check_usable,
    decode_manifest,
    newest_first,
    removable,
)

GRACE_MS = 3_600_000
"""Milliseconds for which an upload may use what it saw at its beginning."""
_CHUNK = 4 << 20


class SnapshotStore:
    """The snapshots of one job. Safe to use from several threads."""

    def __init__(
        self,
        address: str,
        job: str,
        version: str,
        keep: int,
        cancelled: Callable[[], bool],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Use the snapshots below `address`.

        Args:
            address: `file:///…` or any fsspec address.
            job: name of the job.
            version: version of the job; snapshots of others are refused.
            keep: newest snapshots of a partition that `prune` keeps.
            cancelled: true once the process must end.
            now_ms: the clock.
        """
        self._address, self._job, self._version = address.rstrip("/"), job, version
        self._keep, self._cancelled, self._now_ms = keep, cancelled, now_ms
        self._digests: dict[int, dict[tuple[int, int, int], str]] = {}
        """Digests of the newest checkpoint's tables: by partition, then by inode, time and size."""

    def write(
        self, folder: Path, log: str, partition: int, position: Mapping[str, int], ticks: int, written_ms: int
    ) -> Manifest:
        """Upload a checkpoint of a state; arguments as in `Manifest`.

        Raises:
            OSError: the store does not accept it, or not in time.
            Cancelled: the process must end.
        """
        began_ms = self._now_ms()
        address = self._address_of(log, partition)
        stored = {
            (file.sha256, file.size_bytes): file.object_name
            for manifest in newest_first(self._manifests(log, partition).values())[: self._keep]
            for file in manifest.files
        }
        files = []
        digests = self._digests[partition] = self._digest(folder, self._digests.get(partition, {}))
        for path in sorted(folder.iterdir()):
            stat = path.stat()
            digest, size = digests[stat.st_ino, stat.st_mtime_ns, stat.st_size], stat.st_size
            object_name = stored.get((digest, size))
            if object_name is None:
                object_name = stored[digest, size] = f"{digest}-{began_ms}"
                write_file(address, f"files/{object_name}", path)
            files.append(SnapshotFile(path.name, object_name, digest, size))
        ended_ms = self._now_ms()
        if ended_ms - began_ms > GRACE_MS // 2:
            raise OSError(f"the upload took {(ended_ms - began_ms) / 1000:.0f} s: files that it names may be gone")
        manifest = Manifest(
            log, self._job, self._version, partition, dict(position), ticks, written_ms, ended_ms, files
        )
        write_file(address, f"manifests/{manifest.name}", manifest.encode())
        return manifest

    def usable(
        self, log: str, partition: int, committed: Mapping[str, Committed], ticks: int | None
    ) -> tuple[list[Manifest], list[str]]:
        """Return the snapshots that may be restored, newest first, and why others are refused.

        Raises:
            OSError: the store cannot be read.
        """
        found, refused = [], []
        for name, manifest in self._read_manifests(log, partition).items():
            try:
                if isinstance(manifest, SnapshotRefused):
                    raise manifest
                check_usable(manifest, log, self._job, self._version, partition, committed, ticks)
                found.append(manifest)
            except SnapshotRefused as error:
                refused.append(f"{name}: {error}")
        return newest_first(found), refused

    def fetch(self, manifest: Manifest, folder: Path) -> None:
        """Download a snapshot into an empty folder.

        Raises:
            SnapshotRefused: a file is missing, or has another content than the manifest says.
            OSError: the store cannot be read.
            Cancelled: the process must end.
        """
        address = self._address_of(manifest.log, manifest.partition)
        for file in manifest.files:
            hashed, size = hashlib.sha256(), 0
            try:
                with open_file(address, f"files/{file.object_name}") as source, (folder / file.name).open("wb") as out:
                    while chunk := source.read(_CHUNK):
                        self._check_cancelled()
                        hashed.update(chunk)
                        size += len(chunk)
                        out.write(chunk)
            except FileNotFoundError:
                raise SnapshotRefused(f"its file {file.object_name} is missing") from None
            if (hashed.hexdigest(), size) != (file.sha256, file.size_bytes):
                raise SnapshotRefused(
                    f"its file {file.object_name} has {size} bytes and digest {hashed.hexdigest()}, "
                    f"not {file.size_bytes} bytes and {file.sha256}"
                )

    def discard(self, manifest: Manifest) -> None:
        """Remove a manifest whose files are damaged, so that no later snapshot names them.

        Raises:
            OSError: the store does not remove it.
        """
        remove(self._address_of(manifest.log, manifest.partition), f"manifests/{manifest.name}")

    def prune(self, log: str, partition: int) -> None:
        """Remove snapshots beyond the newest ones, and the files that none needs.

        Raises:
            OSError: the store cannot be read, or does not remove a file.
        """
        address, before_ms = self._address_of(log, partition), self._now_ms() - GRACE_MS
        manifests = self._read_manifests(log, partition)
        readable = {name: one for name, one in manifests.items() if isinstance(one, Manifest)}
        gone = {one.name for one in removable(readable.values(), self._keep, before_ms)}
        gone |= {name for name in manifests.keys() - readable.keys() if _written_ms(name) < before_ms}
        for name in sorted(gone):
            remove(address, f"manifests/{name}")
        if manifests.keys() - readable.keys() - gone:
            return  # it is not known which files they name
        needed = {file.object_name for name, one in readable.items() if name not in gone for file in one.files}
        for name in list_names(f"{address}/files"):
            if name not in needed and _uploaded_ms(name) < before_ms:
                remove(address, f"files/{name}")

    def _manifests(self, log: str, partition: int) -> dict[str, Manifest]:
        manifests = self._read_manifests(log, partition)
        return {name: one for name, one in manifests.items() if isinstance(one, Manifest)}

    def _read_manifests(self, log: str, partition: int) -> dict[str, Manifest | SnapshotRefused]:
        address = self._address_of(log, partition)
        manifests: dict[str, Manifest | SnapshotRefused] = {}
        for name in list_names(f"{address}/manifests"):
            self._check_cancelled()
            if not name.endswith(".json"):
                continue
            try:
                with open_file(address, f"manifests/{name}") as source:
                    manifests[name] = decode_manifest(source.read())
            except FileNotFoundError:
                continue  # another worker has removed it
            except SnapshotRefused as error:
                manifests[name] = error
        return manifests

    def _digest(self, folder: Path, known: Mapping[tuple[int, int, int], str]) -> dict[tuple[int, int, int], str]:
        """Return the SHA-256 of the files of a checkpoint. RocksDB's tables do not change, and are hashed once."""
        digests = {}
        for path in folder.iterdir():
            stat = path.stat()
            key = stat.st_ino, stat.st_mtime_ns, stat.st_size
            if path.suffix == ".sst" and key in known:
                digests[key] = known[key]
                continue
            hashed = hashlib.sha256()
            with path.open("rb") as source:
                while chunk := source.read(_CHUNK):
                    self._check_cancelled()
                    hashed.update(chunk)
            digests[key] = hashed.hexdigest()
        return digests

    def _address_of(self, log: str, partition: int) -> str:
        return f"{self._address}/{self._job}/{log}/{partition}"

    def _check_cancelled(self) -> None:
        if self._cancelled():
            raise Cancelled


def _written_ms(manifest_name: str) -> int:
    digits = manifest_name.partition("_")[0]
    return int(digits) if digits.isdecimal() else 0


def _uploaded_ms(object_name: str) -> int:
    digits = object_name.partition("-")[2].partition(".")[0]  # a process that was killed leaves `DIGEST-TIME.PID`
    return int(digits) if digits.isdecimal() else 0
