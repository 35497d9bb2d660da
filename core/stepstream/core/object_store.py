"""Read and write files and objects at any address that fsspec knows, as `file:///…` or `s3://bucket/prefix`.

Credentials and endpoints are those of the store's client, which takes them from the environment: the cloud's own
variables, or fsspec's, as `FSSPEC_S3_ANON`.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from stepstream.config import Settings

_CHUNK = 8 << 20
_WITHOUT_FOLDERS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})
"""Stores whose client takes the request for a folder as one for a bucket, and creates that of a mistyped address."""


def address_of(settings: Settings, configured: str, folder: str) -> str:
    """Return the URI of a store.

    Args:
        settings: settings of the data folder and the versions' address.
        configured: the store's own setting, a folder or an address; empty: `folder` below `learner.checkpoints` if that
            is an address, else below the data folder.
        folder: name of its folder.
    """
    if configured:
        address = configured
    elif is_remote(settings.learner.checkpoints):
        address = f"{settings.learner.checkpoints.rstrip('/')}/{folder}"
    else:
        address = str(settings.paths.data / folder)
    return address if "://" in address else Path(address).absolute().as_uri()


def local_path(uri: str) -> Path | None:
    """Return the folder that a `file://` address names; None for other addresses."""
    address = urlsplit(uri)
    return Path(unquote(address.path)) if address.scheme == "file" else None


def is_remote(address: str) -> bool:
    """Return True if an address names a store that is not this machine's file system."""
    return "://" in address and not address.startswith("file://")


@contextmanager
def open_file(uri: str, path: str) -> Iterator[BinaryIO]:
    """Open a file below an address for reading.

    Raises:
        OSError: it cannot be read; within the block too, if the store's client fails.
    """
    local = local_path(uri)
    if local is not None:
        with (local / path).open("rb") as stream:
            yield stream
        return
    system, root = _system_of(uri)
    with _client_errors(), system.open(f"{root}/{path}", "rb", block_size=_CHUNK) as stream:
        yield stream


def upload(folder: Path, uri: str) -> None:
    """Copy a local folder to an address of a store. No event may name the address before this returns.

    Raises:
        OSError: the store does not accept a file.
    """
    system, root = _system_of(uri)
    has_folders = urlsplit(uri).scheme not in _WITHOUT_FOLDERS
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            target = f"{root}/{path.relative_to(folder).as_posix()}"
            with _client_errors():
                if has_folders:
                    system.makedirs(target.rpartition("/")[0], exist_ok=True)
                system.put_file(str(path), target)


def write_object(uri: str, name: str, content: bytes) -> None:
    """Write a small object of a store.

    Raises:
        OSError: the store does not accept it.
    """
    system, root = _system_of(uri)
    with _client_errors():
        if urlsplit(uri).scheme not in _WITHOUT_FOLDERS:
            system.makedirs(root, exist_ok=True)
        system.pipe_file(f"{root}/{name}", content)


def read_objects(uri: str) -> list[tuple[str, bytes]]:
    """Return the small objects directly below an address of a store, by name.

    Raises:
        OSError: the store cannot be read.
    """
    system, root = _system_of(uri)
    with _client_errors():
        system.invalidate_cache()
        if not system.exists(root):
            return []
        paths = sorted(system.ls(root, detail=False))
        return [(path.rpartition("/")[2], system.cat_file(path)) for path in paths if not path.endswith("/")]


def write_file(uri: str, path: str, content: Path | bytes) -> None:
    """Write one file below an address: readers see all of it, or nothing. It is durable on return.

    Args:
        uri: address of a folder, which need not exist.
        path: name below the address; may contain `/`.
        content: the bytes, or the local file to copy.

    Raises:
        OSError: the store does not accept it.
    """
    local = local_path(uri)
    if local is not None:
        _write_local(local / path, content)
        return
    system, root = _system_of(uri)
    target = f"{root}/{path}"
    with _client_errors():
        if urlsplit(uri).scheme not in _WITHOUT_FOLDERS:
            system.makedirs(target.rpartition("/")[0], exist_ok=True)
        if isinstance(content, bytes):
            system.pipe_file(target, content)
        else:
            system.put_file(str(content), target)


def list_names(uri: str) -> list[str]:
    """Return the sorted names directly below an address; empty if there is nothing.

    Raises:
        OSError: the store cannot be read.
    """
    local = local_path(uri)
    if local is not None:
        return sorted(entry.name for entry in local.iterdir()) if local.exists() else []
    system, root = _system_of(uri)
    with _client_errors():
        system.invalidate_cache()
        if not system.exists(root):
            return []
        return sorted(path.rstrip("/").rpartition("/")[2] for path in system.ls(root, detail=False))


def remove(uri: str, part: str = "") -> None:
    """Remove the folder at an address, or a folder or file of it; what does not exist is removed already.

    Raises:
        OSError: the store does not remove a file.
    """
    local = local_path(uri)
    if local is not None:
        target = local / part
        if target.is_file():
            target.unlink(missing_ok=True)
        elif target.exists():
            shutil.rmtree(target)
        return
    system, root = _system_of(uri)
    with _client_errors():
        if system.exists(f"{root}/{part}".rstrip("/")):
            system.rm(f"{root}/{part}".rstrip("/"), recursive=True)


def _write_local(target: Path, content: Path | bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        with partial.open("wb") as out:
            if isinstance(content, bytes):
                out.write(content)
            else:
                with content.open("rb") as source:
                    shutil.copyfileobj(source, out, _CHUNK)
            out.flush()
            os.fsync(out.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _client_errors() -> Iterator[None]:
    """Raise every error of a store's client as an OSError: some pass on those of their HTTP library."""
    try:
        yield
    except PermissionError as error:
        raise PermissionError(
            f"{error}: the store rejects this process's credentials, or they do not allow this: set others in its "
            "environment and restart it (docs/versions.md, Stores)"
        ) from error
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{error} ({type(error).__name__})") from error


def _system_of(uri: str) -> tuple[Any, str]:
    try:
        import fsspec  # an extra: only stores outside of this machine need it

        system, root = fsspec.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise OSError(f"{uri}: no client for this kind of address ({error})") from error
    return system, root.rstrip("/")
