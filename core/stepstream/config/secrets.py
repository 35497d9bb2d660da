"""Read secrets that an installation sets, or creates once in its data folder."""

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from stepstream.config.settings import Settings

_BYTES = 32


def pseudonym_key(settings: Settings) -> bytes:
    """Return `govern.pseudonym_key`; if it is empty, the random secret of this data folder.

    Workers on several machines need the setting: with different keys, one value would get several pseudonyms.
    """
    declared = settings.govern.pseudonym_key.get_secret_value()
    return declared.encode() if declared else read_or_create_secret(settings.paths.data / "secrets" / "pseudonym.key")


def store_credentials(settings: Settings, *, reads_only: bool = False) -> tuple[str, str]:
    """Return user and password for ClickHouse: the declared ones, or those of the embedded store on this machine.

    Args:
        settings: all settings.
        reads_only: return the account that only reads; of a ClickHouse elsewhere without one, the account that writes.
    """
    clickhouse, folder = settings.clickhouse, settings.paths.data / "secrets"
    embedded = _is_embedded_store(settings)
    if reads_only and (clickhouse.reader_user or embedded):
        user, declared, name = clickhouse.reader_user or "reader", clickhouse.reader_password, "clickhouse-reader"
    else:
        user, declared, name = clickhouse.user, clickhouse.password, "clickhouse"
    password = declared.get_secret_value()
    if not password and embedded:
        password = read_or_create_secret(folder / f"{name}.password", _text_secret).decode()
    return user, password


def console_session_key(settings: Settings) -> bytes:
    """Return `console.session_key`; if it is empty, the random secret of this data folder."""
    declared = settings.console.session_key.get_secret_value()
    return declared.encode() if declared else read_or_create_secret(settings.paths.data / "secrets" / "console.key")


def _is_embedded_store(settings: Settings) -> bool:
    address = urlsplit(settings.clickhouse.url)
    local = address.hostname in {"127.0.0.1", "localhost", "::1", settings.store.host}
    return local and address.port == settings.store.port and "store" not in settings.stack.external


def _text_secret() -> bytes:
    return secrets.token_urlsafe(_BYTES).encode()


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
