"""Call a Confluent-compatible schema registry over HTTP.

It replaces the client of confluent-kafka, which loads an OAuth library, two HTTP clients and a certificate bundle at
the start of every process that reads or writes records. See docs/decisions/registry-client.md.
"""

import base64
import contextlib
import json
import random
import ssl
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit

from stepstream.config import SchemaRegistrySettings, SettingsError

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
TRANSIENT = {408, 429, 500, 502, 503, 504}
"""HTTP statuses for which a retry may succeed."""
ATTEMPTS = 4
"""Attempts at one address before the client tries the next one."""
FIRST_WAIT_S = 1.0
"""Bound of the first pause, which doubles with each failure. A pause lasts a random part of the bound."""


class RegistryRefused(Exception):
    """The registry answered with an error: HTTP status, its error code (-1: none) and its message."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(f"{message} (HTTP status {status}, registry's error {code})")
        self.status = status
        self.code = code


class NotAvro(Exception):
    """The registry has the schema, but it is not self-contained Avro."""


class RegistryClient:
    """Client of a registry. Commas in `url` separate its instances, which are called in turn. Thread-safe.

    It caches nothing and keeps no connection: callers ask once for each schema. Proxies, and certificates other than
    the system's (SSL_CERT_FILE, SSL_CERT_DIR), come from the environment.

    Every call blocks, and retries each address `attempts` times. Then it raises `RegistryRefused` or the connection's
    error (`OSError`, `HTTPException`). A status outside `TRANSIENT` raises at once.
    """

    def __init__(
        self, registry: SchemaRegistrySettings, wait: Callable[[float], None] = time.sleep, attempts: int = ATTEMPTS
    ) -> None:
        """Create a client; nothing is sent yet.

        Args:
            registry: address, credentials (also as `https://user:password@host`) and timeout of a call.
            wait: sleeps that many seconds.
            attempts: attempts at each address.

        Raises:
            SettingsError: the credentials are not `user:password`.
        """
        self._timeout_s = registry.timeout_s
        self._wait = wait
        self._attempts = attempts
        addresses = [address.strip().rstrip("/") for address in registry.url.split(",")]
        credentials = registry.user_info.get_secret_value() or _user_info(addresses[0])
        if credentials and ":" not in credentials:
            raise SettingsError("schema_registry.user_info is not of the form user:password")
        self._addresses = [_without_user_info(address) for address in addresses]
        self._headers = {"accept": f"{MEDIA_TYPE}, application/json", "content-type": MEDIA_TYPE}
        if credentials:
            self._headers["authorization"] = "Basic " + base64.b64encode(credentials.encode()).decode()
        # Reading the certificates is slow, and most registries are near, without TLS.
        has_tls = any(address.startswith("https") for address in addresses)
        context = ssl.create_default_context() if has_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))

    def subjects(self) -> list[str]:
        """Return all subjects."""
        return list(self._call("GET", "/subjects"))

    def look_up(self, subject: str, schema: str) -> int:
        """Return the id of a schema of a subject; status 404: the subject does not have it."""
        return int(self._call("POST", f"/subjects/{quote(subject, safe='')}", {"schema": schema})["id"])

    def schema(self, schema_id: int) -> str:
        """Return the Avro schema of an id; status 404: unknown.

        Raises:
            NotAvro: the id belongs to a schema of another kind, or to one that refers to other schemas.
        """
        answer = self._call("GET", f"/schemas/ids/{schema_id}")
        kind = answer.get("schemaType") or "AVRO"
        if kind != "AVRO" or answer.get("references"):
            raise NotAvro(f"it is {kind}{' with references' if answer.get('references') else ''}, and not Avro alone")
        return str(answer["schema"])

    def register(self, subject: str, schema: str) -> int:
        """Register a schema as a subject's newest version; return its id. Status 409: incompatible."""
        return int(self._call("POST", f"/subjects/{quote(subject, safe='')}/versions", {"schema": schema})["id"])

    def set_compatibility(self, subject: str, level: str) -> None:
        """Set the compatibility level of a subject's next schemas, as `FULL_TRANSITIVE`."""
        self._call("PUT", f"/config/{quote(subject, safe='')}", {"compatibility": level})

    def _call(self, method: str, path: str, body: dict[str, str] | None = None) -> Any:
        """Return the answer of the first address that gives one."""
        fault: Exception
        for address in self._addresses:
            for attempt in range(self._attempts):
                if attempt:
                    self._wait(random.random() * FIRST_WAIT_S * 2 ** (attempt - 1))
                try:
                    return self._once(method, address + path, body)
                except RegistryRefused as error:
                    if error.status not in TRANSIENT:
                        raise
                    fault = error
                except (OSError, HTTPException) as error:
                    fault = error
        raise fault

    def _once(self, method: str, url: str, body: dict[str, str] | None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, content, self._headers, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as reply:
                return json.load(reply)
        except HTTPError as error:
            with error:
                raise _refused(error.code, error.read()) from None


def _refused(status: int, body: bytes) -> RegistryRefused:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        fault = json.loads(body)
        return RegistryRefused(status, int(fault["error_code"]), str(fault["message"]))
    return RegistryRefused(status, -1, body[:200].decode(errors="replace"))


def _user_info(address: str) -> str:
    parts = urlsplit(address)
    return f"{unquote(parts.username)}:{unquote(parts.password)}" if parts.username and parts.password else ""


def _without_user_info(address: str) -> str:
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
