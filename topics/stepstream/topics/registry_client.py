"""Call a Confluent-compatible schema registry through confluent-kafka's client.

It is imported at the first call: it loads an OAuth library and two HTTP clients, and many programs that import this
module never call a registry. See docs/decisions/registry-client.md.
"""

from __future__ import annotations

import ssl
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

from stepstream.config import SchemaRegistrySettings, SettingsError
from stepstream.core.oauth import TokenRefused, TokenSource

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

ATTEMPTS = 4
"""Attempts at one address before the client tries the next one."""
FIRST_WAIT_S = 1.0
"""Bound of the first pause, which doubles with each failure. A pause lasts a random part of the bound."""

T = TypeVar("T")


class RegistryRefused(Exception):
    """The registry answered with an error: HTTP status, its error code (-1: none) and its message."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(f"{message} (HTTP status {status}, registry's error {code})")
        self.status = status
        self.code = code


class RegistryUnreachable(OSError):
    """No instance of the registry gave an answer."""


class NotAvro(Exception):
    """The registry has the schema, but it is not self-contained Avro."""


class RegistryClient:
    """Client of a registry. Commas in `url` separate its instances, which are called in turn. Thread-safe.

    Proxies come from the environment. A redirect is an error: it is never followed, so that no other host gets the
    credentials.

    Every call blocks. After a lost connection or status 408, 429, 500, 502, 503 or 504 it tries again, each address
    `attempts` times. Then it raises `RegistryRefused` or `RegistryUnreachable`, or `ValueError` for an unreadable
    answer. Any other status raises at once.
    """

    def __init__(
        self, registry: SchemaRegistrySettings, attempts: int = ATTEMPTS, first_wait_s: float = FIRST_WAIT_S
    ) -> None:
        """Create a client; nothing is sent yet.

        Args:
            registry: addresses, credentials (also as `https://user:password@host`) and timeout of a call.
            attempts: attempts at each address.
            first_wait_s: bound of the first pause.

        Raises:
            SettingsError: the credentials contradict each other or are not `user:password`, or a certificate or key
                cannot be read.
        """
        _check_certificates(registry)
        self._configuration = _configuration(registry) | {
            "max.retries": attempts - 1,
            "retries.wait.ms": round(1000 * first_wait_s),
        }
        self._client: SchemaRegistryClient | None = None
        self._lock = threading.Lock()

    def subjects(self) -> list[str]:
        """Return all subjects."""
        return _present(self._call(lambda client: client.get_subjects()))

    def look_up(self, subject: str, schema: str) -> int:
        """Return the id of a schema of a subject; status 404: the subject does not have it."""
        return _present(self._call(lambda client: client.lookup_schema(subject, _avro(schema)).schema_id))

    def schema(self, schema_id: int) -> str:
        """Return the Avro schema of an id; status 404: unknown.

        Raises:
            NotAvro: the id belongs to a schema of another kind, or to one that refers to other schemas.
        """
        schema = self._call(lambda client: client.get_schema(schema_id))
        kind = schema.schema_type or "AVRO"
        if kind != "AVRO" or schema.references:
            raise NotAvro(f"it is {kind}{' with references' if schema.references else ''}, and not Avro alone")
        return _present(schema.schema_str)

    def latest(self, subject: str) -> str:
        """Return the newest schema of a subject; status 404: it has none."""
        return _present(self._call(lambda client: client.get_latest_version(subject).schema.schema_str))

    def register(self, subject: str, schema: str) -> int:
        """Register a schema as a subject's newest version; return its id. Status 409: incompatible."""
        return _present(self._call(lambda client: client.register_schema(subject, _avro(schema))))

    def set_compatibility(self, subject: str, level: str) -> None:
        """Set the compatibility level of a subject's next schemas, as `FULL_TRANSITIVE`."""
        self._call(lambda client: client.set_compatibility(subject, level))

    def _call(self, call: Callable[[SchemaRegistryClient], T]) -> T:
        from confluent_kafka.schema_registry.error import SchemaRegistryError
        from httpx2 import RequestError

        try:
            return call(self._connect())
        except SchemaRegistryError as error:
            message = str(error.error_message or "no message")[:300]
            raise RegistryRefused(error.http_status_code, error.error_code or -1, message) from None
        except (RequestError, TokenRefused) as error:
            raise RegistryUnreachable(str(error) or type(error).__name__) from None
        except (AttributeError, KeyError, TypeError) as error:  # confluent-kafka expects fields that are not there
            raise ValueError(f"the registry's answer is unreadable: {error!r}") from error

    def _connect(self) -> SchemaRegistryClient:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        with self._lock:
            if self._client is None:
                self._client = SchemaRegistryClient(self._configuration)
                weakref.finalize(self, self._client.close)
            return self._client


def _avro(schema: str) -> Schema:
    from confluent_kafka.schema_registry import Schema

    return Schema(schema, "AVRO")


def _present(value: T | None) -> T:
    if value is None:
        raise ValueError("the registry's answer is incomplete")
    return value


def _check_certificates(registry: SchemaRegistrySettings) -> None:
    """Load the configured files: a wrong one stops the process at its start, not at its first call.

    Raises:
        SettingsError: a file cannot be read, or there is a key without a certificate.
    """
    authority, certificate, key = registry.ca_location, registry.certificate_location, registry.key_location
    password = registry.key_password.get_secret_value()
    if (key or password) and not certificate:
        raise SettingsError("schema_registry.key_location needs schema_registry.certificate_location: set both")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if authority and Path(authority).is_dir():
            context.load_verify_locations(capath=authority)
        elif authority:
            context.load_verify_locations(cafile=authority)
    except OSError as error:
        raise SettingsError(f"schema_registry.ca_location {authority} cannot be read: {error}") from None
    try:
        if certificate:
            context.load_cert_chain(certificate, key or None, password)
    except OSError as error:
        raise SettingsError(
            f"schema_registry.certificate_location {certificate}, key {key or 'in it'}: cannot be read: {error}"
        ) from None


def _user_info(address: str) -> str:
    parts = urlsplit(address)
    return f"{unquote(parts.username)}:{unquote(parts.password)}" if parts.username and parts.password else ""


def _without_user_info(address: str) -> str:
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _configuration(registry: SchemaRegistrySettings) -> dict[str, object]:
    """Return the configuration of confluent-kafka's client.

    Raises:
        SettingsError: as of `RegistryClient`.
    """
    addresses = [address.strip() for address in registry.url.split(",")]
    user_info = registry.user_info.get_secret_value() or _user_info(addresses[0])
    token = registry.bearer_token.get_secret_value()
    if user_info and token:
        raise SettingsError("schema_registry.bearer_token and a user and password exclude each other: unset one")
    if user_info and ":" not in user_info:
        raise SettingsError("schema_registry.user_info is not of the form user:password")
    # httpx logs the addresses that it calls.
    bare = ",".join(_without_user_info(address) for address in addresses)
    values: dict[str, object] = {"url": bare, "timeout": registry.timeout_s}
    texts = {
        "basic.auth.user.info": user_info,
        "ssl.ca.location": registry.ca_location,
        "ssl.certificate.location": registry.certificate_location,
        "ssl.key.location": registry.key_location,
        "ssl.key.password": registry.key_password.get_secret_value(),
    }
    values |= {name: text for name, text in texts.items() if text}
    if registry.oauth_token_url:
        if user_info or token:
            raise SettingsError(
                "schema_registry.oauth_token_url excludes a user and password and `bearer_token`: unset one"
            )
        source = TokenSource("schema_registry", registry)
        cluster = registry.logical_cluster

        def fields(_: dict[str, object]) -> dict[str, str]:
            return {"bearer.auth.token": source.token(), "bearer.auth.logical.cluster": cluster}

        values |= {
            "bearer.auth.credentials.source": "CUSTOM",
            "bearer.auth.custom.provider.function": fields,
            "bearer.auth.custom.provider.config": {},
        }
    elif token:
        values |= {
            "bearer.auth.credentials.source": "STATIC_TOKEN",
            "bearer.auth.token": token,
            "bearer.auth.logical.cluster": registry.logical_cluster,
        }
    return values
