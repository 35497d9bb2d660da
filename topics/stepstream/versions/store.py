"""Read and write versions at any address that fsspec knows, as `file:///…` or `s3://bucket/prefix`.

Credentials and endpoints are those of fsspec: the cloud's own environment variables, or `FSSPEC_S3_ENDPOINT_URL` and
the like.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

_CHUNK = 8 << 20


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
        OSError: it cannot be read.
    """
    local = local_path(uri)
    if local is not None:
        with (local / path).open("rb") as stream:
            yield stream
        return
    system, root = _system_of(uri)
    with system.open(f"{root}/{path}", "rb", block_size=_CHUNK) as stream:
        yield stream


def upload(folder: Path, uri: str) -> None:
    """Copy a local folder to an address of a store. No event may name the address before this returns.

    Raises:
        OSError: the store does not accept a file.
    """
    system, root = _system_of(uri)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            target = f"{root}/{path.relative_to(folder).as_posix()}"
            system.makedirs(target.rpartition("/")[0], exist_ok=True)
            system.put_file(str(path), target)


def remove(uri: str, part: str = "") -> None:
    """Remove the folder at an address, or a part of it; what does not exist is removed already."""
    local = local_path(uri)
    if local is not None:
        target = local / part
        if target.exists():
            shutil.rmtree(target)
        return
    system, root = _system_of(uri)
    if system.exists(f"{root}/{part}".rstrip("/")):
        system.rm(f"{root}/{part}".rstrip("/"), recursive=True)


def _system_of(uri: str) -> tuple[Any, str]:
    import fsspec  # an extra: only versions outside of this machine need it

    try:
        system, root = fsspec.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise OSError(f"{uri}: no client for this kind of address ({error})") from error
    return system, root.rstrip("/")
