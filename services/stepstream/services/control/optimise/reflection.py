"""Call the reflection model, behind an OpenAI-compatible API."""

import httpx2

from stepstream.config import OptimiseSettings
from stepstream.services.control.optimise.records import CannotSearch, Meter
from stepstream.services.control.optimise.shadow import ReplayUnavailable, post_chat, tokens_of


class ReflectionModel:
    """Answers questions. Close it, or use it as a context manager."""

    def __init__(self, settings: OptimiseSettings) -> None:
        """Check the settings.

        Raises:
            CannotSearch: no reflection model is set.
        """
        if not settings.reflection_url or not settings.reflection_model:
            raise CannotSearch("no reflection model: set optimise.reflection_url and optimise.reflection_model")
        self._settings = settings
        self._http = httpx2.Client(timeout=settings.timeout_s)

    def __enter__(self) -> "ReflectionModel":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def __call__(self, prompt: str, meter: Meter) -> str:
        """Return the model's answer; blocks.

        Raises:
            BudgetSpent: the meter does not cover the call.
            ReplayUnavailable: the model does not answer.
        """
        meter.take(1)
        key = self._settings.reflection_key.get_secret_value()
        request = {"model": self._settings.reflection_model, "messages": [{"role": "user", "content": prompt}]}
        url, headers = self._settings.reflection_url, {"authorization": f"Bearer {key}"} if key else {}
        reply = post_chat(self._http, url, request, headers, self._settings.timeout_s)
        if reply is None:
            raise ReplayUnavailable(f"{url} rejects the question of {len(prompt)} characters")
        meter.tokens += tokens_of(reply)
        return str(reply["choices"][0]["message"]["content"] or "")
