"""Hash files, several at once."""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_THREADS = max(1, min(4, (os.cpu_count() or 1) // 2))
"""Files hashed side by side: a thread hashes 0.5 to 2 GB a second, far less than memory gives."""


def file_digests(files: Sequence[Path]) -> list[str]:
    """Return the SHA-256 of each file, in hexadecimal digits.

    Raises:
        OSError: a file cannot be read.
    """
    if len(files) == 1 or _THREADS == 1:
        return [_digest(file) for file in files]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(_digest, files))


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
