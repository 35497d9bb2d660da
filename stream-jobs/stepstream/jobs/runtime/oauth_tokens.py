"""Get OAuth tokens for aiokafka, which has no client of its own for them, as librdkafka has."""

import asyncio
import base64
import time
import urllib.error
import urllib.request
from urllib.parse import quote, urlencode

import orjson
from aiokafka.abc import AbstractTokenProvider

from stepstream.config import KafkaSettings
from stepstream.core.tls import client_context

_TIMEOUT_S = 10.0
_RENEWAL = 0.8
"""Share of a token's life after which another one is fetched, as librdkafka does."""
_DEFAULT_LIFE_S = 60.0


class TokenRefused(Exception):
    """The token server did not give a token. The message names it and the settings to check."""


class OauthTokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """Fetches a token with the client's credentials, and again before it ends."""

    def __init__(self, kafka: KafkaSettings) -> None:
        """Read the settings; nothing is fetched yet.

        Raises:
            SettingsError: the file of the certificate authority cannot be read.
        """
        self._kafka = kafka
        is_https = kafka.oauth_token_url.lower().startswith("https:")
        self._context = client_context("kafka.oauth_", kafka.oauth_ca_location) if is_https else None
        self._token = ""
        self._renewal = 0.0

    async def token(self) -> str:
        """Return a valid token.

        Raises:
            TokenRefused: the server does not answer, or refuses.
        """
        if time.monotonic() >= self._renewal:
            self._token, life_s = await asyncio.to_thread(self._fetch)
            self._renewal = time.monotonic() + _RENEWAL * life_s
        return self._token

    def _fetch(self) -> tuple[str, float]:
        """Return a new token and its life in seconds."""
        kafka = self._kafka
        form = {"grant_type": "client_credentials"} | ({"scope": kafka.oauth_scope} if kafka.oauth_scope else {})
        user_info = f"{quote(kafka.oauth_client_id)}:{quote(kafka.oauth_client_secret.get_secret_value())}"
        request = urllib.request.Request(
            kafka.oauth_token_url,
            urlencode(form).encode(),
            {"Authorization": "Basic " + base64.b64encode(user_info.encode()).decode(), "Accept": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=self._context) as response:
                answer = orjson.loads(response.read())
            return str(answer["access_token"]), float(answer.get("expires_in", _DEFAULT_LIFE_S))
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = getattr(error, "reason", error)
            raise TokenRefused(
                f"{kafka.oauth_token_url} gave no token for client '{kafka.oauth_client_id}' ({reason}): check "
                "STEPSTREAM_KAFKA_OAUTH_TOKEN_URL, …_CLIENT_ID and …_CLIENT_SECRET"
            ) from None
