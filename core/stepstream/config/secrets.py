"""Secrets that an installation makes once and keeps with its local data.

The secrets behind the pseudonyms.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from stepstream.config import Settings

_BYTES = 32


def kept(file: Path) -> bytes:
    """The secret in a file that only this user can read; a random one is made where there is none.

    Several processes may ask at once: the first one's secret is everybody's.
    """
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = file.with_suffix(f".{os.getpid()}.{secrets.token_hex(4)}")
        with open(made, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
            out.write(secrets.token_bytes(_BYTES))
        with suppress(FileExistsError):
            os.link(made, file)
        made.unlink()
    return file.read_bytes()


def pseudonym_key(settings: Settings) -> bytes:
    """`govern.pseudonym_key`; where it is not set, a random one that is made once and kept with the local data.

    Workers on several machines need the setting: with a key each, one value would get several pseudonyms.
    """
    declared = settings.govern.pseudonym_key.get_secret_value()
    return declared.encode() if declared else kept(settings.paths.data / "secrets" / "pseudonym.key")
