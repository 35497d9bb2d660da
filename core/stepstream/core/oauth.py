"""Get OAuth tokens with a client's credentials (OAuth 2.0, RFC 6749, 4.4), and again before they end."""

import base64
import threading
import time
import urllib.request
from http.client import HTTPException
from typing import Protocol
from urllib.parse import quote, urlencode

import orjson
from pydantic import SecretStr

from stepstream.config import SettingsError, variable
from stepstream.core.no_redirects import open_request
from stepstream.core.tls import client_context

_TIMEOUT_S = 10.0
_RENEWAL = 0.8
"""Share of a token's life after which another one is fetched, as librdkafka does."""
_DEFAULT_LIFE_S = 60.0


class TokenRefused(Exception):
    """The token server did not give a token. The message names it and the settings to check."""


class OauthSettings(Protocol):
    """The settings of a section whose connections use tokens."""

    @property
    def oauth_token_url(self) -> str:
        """Address of the token server."""
        ...

    @property
    def oauth_client_id(self) -> str:
        """Client id."""
        ...

    @property
    def oauth_client_secret(self) -> SecretStr:
        """Client secret."""
        ...

    @property
    def oauth_scope(self) -> str:
        """Scope of the token; empty: the server's default."""
        ...

    @property
    def oauth_ca_location(self) -> str:
        """File of the token server's certificate authority; empty: the system's."""
        ...


class TokenSource:
    """Holds one token and fetches the next one. Any thread may use it."""

    def __init__(self, section: str, config: OauthSettings) -> None:
        """Read the settings; nothing is fetched yet.

        Args:
            section: section of the settings, for errors, as `kafka`.
            config: the section.

        Raises:
            SettingsError: the client has no id, or the file of the certificate authority cannot be read.
        """
        if not config.oauth_client_id:
            raise SettingsError(f"{section}.oauth_token_url needs {section}.oauth_client_id: set both")
        self._section = section
        self._config = config
        is_https = config.oauth_token_url.lower().startswith("https:")
        self._context = client_context(f"{section}.oauth_", config.oauth_ca_location) if is_https else None
        self._lock = threading.Lock()
        self._token = ""
        self._renewal = 0.0

    def token(self) -> str:
        """Return a valid token; blocks while one is fetched.

        Raises:
            TokenRefused: the server does not answer, or refuses.
        """
        with self._lock:
            if time.monotonic() >= self._renewal:
                self._token, life_s = self._fetch()
                self._renewal = time.monotonic() + _RENEWAL * life_s
            return self._token

    def _fetch(self) -> tuple[str, float]:
        """Return a new token and its life in seconds."""
        config = self._config
        form = {"grant_type": "client_credentials"} | ({"scope": config.oauth_scope} if config.oauth_scope else {})
        user_info = f"{quote(config.oauth_client_id)}:{quote(config.oauth_client_secret.get_secret_value())}"
        request = urllib.request.Request(
            config.oauth_token_url,
            urlencode(form).encode(),
            {"Authorization": "Basic " + base64.b64encode(user_info.encode()).decode(), "Accept": "application/json"},
        )
        try:
            with open_request(request, _TIMEOUT_S, self._context) as response:
                answer = orjson.loads(response.read())
            return str(answer["access_token"]), float(answer.get("expires_in", _DEFAULT_LIFE_S))
        except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
            reason = getattr(error, "reason", error)
            raise TokenRefused(
                f"{config.oauth_token_url} gave no token for client '{config.oauth_client_id}' ({reason}): check "
                f"{variable(self._section, 'oauth_token_url')}, …_CLIENT_ID and …_CLIENT_SECRET"
            ) from None
