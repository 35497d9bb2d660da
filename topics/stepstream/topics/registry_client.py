"""What the codec and the catalogue ask of a Confluent-compatible schema registry.

A client of our own: confluent-kafka's loads an OAuth library, two HTTP clients and a bundle of certificates at the
start of every process that reads or writes one record. See docs/decisions/registry-client.md.
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
"""Statuses that may be gone at the next attempt."""
ATTEMPTS = 4
"""Calls of one address before the next one is asked."""
FIRST_WAIT_S = 1.0
"""The longest wait after a first failure; it doubles with each further one, and lasts a random part of that."""


class RegistryRefused(Exception):
    """The registry answered with an error: its HTTP status, its error code (-1: it gave none) and its message."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(f"{message} (HTTP status {status}, registry's error {code})")
        self.status = status
        self.code = code


class RegistryClient:
    """Calls a registry; `url` may name several instances of it, with commas between, which are asked in turn.

    Nothing is cached and no connection is kept: callers ask once for each schema. Proxies are taken from the
    environment, and so is the bundle of certificates (SSL_CERT_FILE, SSL_CERT_DIR) where it is not the system's.
    Safe to share between threads.

    Every call raises `RegistryRefused`, or what the connection died of (`OSError`, `HTTPException`), after each address
    was tried `attempts` times; refusals that another attempt would meet again are raised at once.
    """

    def __init__(
        self, registry: SchemaRegistrySettings, wait: Callable[[float], None] = time.sleep, attempts: int = ATTEMPTS
    ) -> None:
        """Speaks to the registry of these settings.

        Args:
            registry: its address, credentials (which an address may carry too: `https://user:password@host`) and the
                seconds allowed for a call.
            wait: waits that many seconds.
            attempts: how often each address is tried.

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
        # Reading the certificates takes longer than all else here, and most registries are near, without TLS.
        secure = any(address.startswith("https") for address in addresses)
        context = ssl.create_default_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))

    def subjects(self) -> list[str]:
        """All subjects."""
        return list(self._call("GET", "/subjects"))

    def look_up(self, subject: str, schema: str) -> int:
        """The id of a schema that the subject has; status 404 where it has not."""
        return int(self._call("POST", f"/subjects/{quote(subject, safe='')}", {"schema": schema})["id"])

    def schema(self, schema_id: int) -> str:
        """The schema of an id; status 404 where there is none."""
        return str(self._call("GET", f"/schemas/ids/{schema_id}")["schema"])

    def register(self, subject: str, schema: str) -> int:
        """Makes a schema the subject's newest version, unless it has it; its id. Status 409: not compatible."""
        return int(self._call("POST", f"/subjects/{quote(subject, safe='')}/versions", {"schema": schema})["id"])

    def set_compatibility(self, subject: str, level: str) -> None:
        """What a subject's next schema must be compatible with, as `FULL_TRANSITIVE`."""
        self._call("PUT", f"/config/{quote(subject, safe='')}", {"compatibility": level})

    def _call(self, method: str, path: str, body: dict[str, str] | None = None) -> Any:
        """The answer, from the first address that gives one."""
        fault: Exception
        for address in self._addresses:
            for attempt in range(self._attempts):
                if attempt:
                    self._wait(random.random() * FIRST_WAIT_S * 2 ** (attempt - 1))
                try:
                    return self._once(method, address + path, body)
                except RegistryRefused as refusal:
                    if refusal.status not in TRANSIENT:
                        raise
                    fault = refusal
                except (OSError, HTTPException) as error:
                    fault = error
        raise fault

    def _once(self, method: str, url: str, body: dict[str, str] | None) -> Any:
        sent = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, sent, self._headers, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as reply:
                return json.load(reply)
        except HTTPError as error:
            with error:
                raise _refusal(error.code, error.read()) from None


def _refusal(status: int, body: bytes) -> RegistryRefused:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        told = json.loads(body)
        return RegistryRefused(status, int(told["error_code"]), str(told["message"]))
    return RegistryRefused(status, -1, body[:200].decode(errors="replace"))


def _user_info(address: str) -> str:
    parts = urlsplit(address)
    return f"{unquote(parts.username)}:{unquote(parts.password)}" if parts.username and parts.password else ""


def _without_user_info(address: str) -> str:
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
