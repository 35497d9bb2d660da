"""Get OAuth tokens for aiokafka, which has no client of its own for them, as librdkafka has."""

import asyncio

from aiokafka.abc import AbstractTokenProvider

from stepstream.config import KafkaSettings
from stepstream.core.oauth import TokenSource


class OauthTokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """Gives aiokafka the token of a `TokenSource`."""

    def __init__(self, kafka: KafkaSettings) -> None:
        """Read the settings; nothing is fetched yet.

        Raises:
            SettingsError: as of `TokenSource`.
        """
        self._source = TokenSource("kafka", kafka)

    async def token(self) -> str:
        """Return a valid token.

        Raises:
            TokenRefused: the server does not answer, or refuses.
        """
        return await asyncio.to_thread(self._source.token)
