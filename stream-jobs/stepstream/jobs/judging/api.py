"""A model that judges, behind an OpenAI-compatible API: one call, and no more calls than allowed in a minute."""

import http.client
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import orjson

from stepstream.config import Judge
from stepstream.jobs.runtime.retry import nap

_MOST_BYTES = 1 << 20


class JudgeAway(Exception):
    """The API does not answer, or not with success."""


class JudgeApi:
    """Safe to use from several threads; they share the calls of a minute."""

    def __init__(self, settings: Judge, abandoned: Callable[[], bool]) -> None:
        """`abandoned` tells whether to give up waiting; then `Abandoned` is raised."""
        self._settings, self._abandoned = settings, abandoned
        self.url = settings.url.rstrip("/") + "/chat/completions"
        self._lock = threading.Lock()
        self._next = 0.0

    def complete(self, body: dict[str, Any]) -> bytes:
        """The reply to a request in the form of chat completions; blocks for its turn, and for the answer.

        Raises:
            JudgeAway: it failed; nothing is tried again here.
            Abandoned: asked to give up while waiting.
        """
        with self._lock:
            turn = max(self._next, time.monotonic())
            self._next = turn + 60.0 / self._settings.per_minute
        nap(turn - time.monotonic(), self._abandoned)
        headers = {"content-type": "application/json"}
        if key := self._settings.api_key.get_secret_value():
            headers["authorization"] = f"Bearer {key}"
        call = urllib.request.Request(self.url, orjson.dumps(body), headers)
        try:
            with urllib.request.urlopen(call, timeout=self._settings.timeout_s) as reply:
                answer: bytes = reply.read(_MOST_BYTES)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            raise JudgeAway(str(error)) from error
        return answer
