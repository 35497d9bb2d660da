"""Read secrets that an installation sets, or creates once in its data folder."""

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stepstream.config.settings import Settings

_BYTES = 32


def pseudonym_key(settings: Settings) -> bytes:
    """Return `govern.pseudonym_key`; if it is empty, the random secret of this data folder.

    Workers on several machines need the setting: with different keys, one value would get several pseudonyms.
    """
    declared = settings.govern.pseudonym_key.get_secret_value()
    return declared.encode() if declared else read_or_create_secret(settings.paths.data / "secrets" / "pseudonym.key")


def read_or_create_secret(file: Path, make: Callable[[], bytes] = lambda: secrets.token_bytes(_BYTES)) -> bytes:
    """Return the secret in a file; create the file with a new secret, readable by this user only, if missing.

    If several processes create it at the same time, all return the secret of the first.
    """
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = _write_temporary(file, make())
        with suppress(FileExistsError):
            os.link(temporary, file)
        temporary.unlink()
    return file.read_bytes()


def replace_secret(file: Path, secret: bytes) -> None:
    """Replace the secret in a file, atomically."""
    _write_temporary(file, secret).replace(file)


def _write_temporary(file: Path, secret: bytes) -> Path:
    temporary = file.with_suffix(f".{os.getpid()}.{secrets.token_hex(4)}")
    with open(temporary, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
        out.write(secret)
    return temporary
