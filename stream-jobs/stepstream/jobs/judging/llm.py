"""A model that judges, behind an OpenAI-compatible API: one call, and no more calls than allowed in a minute.

Asks the next-state judge with bounded patience: what it does not score is skipped, and the log goes on.
"""

import http.client
import logging
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import orjson

from stepstream.config import JudgeSettings
from stepstream.jobs.judging.next_state import request, score_of
from stepstream.jobs.runtime.retry import BoundedRetry, RetriesExhausted, nap
from stepstream.jobs.verifiers.base import Unanswered

_MOST_BYTES = 1 << 20


class JudgeAway(Exception):
    """The API does not answer, or not with success."""


class JudgeApi:
    """Safe to use from several threads; they share the calls of a minute."""

    def __init__(self, settings: JudgeSettings, cancelled: Callable[[], bool]) -> None:
        """`cancelled` tells whether to give up waiting; then `Cancelled` is raised."""
        self._settings, self._cancelled = settings, cancelled
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
        nap(turn - time.monotonic(), self._cancelled)
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


log = logging.getLogger(__name__)


class JudgeClient:
    """Use from one thread."""

    def __init__(self, settings: JudgeSettings, cancelled: Callable[[], bool]) -> None:
        """`cancelled` tells whether to give up waiting; then `Cancelled` is raised."""
        self._model = settings.model
        self._api = JudgeApi(settings, cancelled)
        self._patience = BoundedRetry(settings.patience_s, cancelled)

    def score(self, asked: str) -> float | None:
        """The judge's score of a question; None where it does not answer, or not with a score.

        Blocks for the rate limit, and for `judge.patience_s` while the judge fails. Once that has passed, it is asked
        only once a question until it answers again: what it cannot score is skipped, and the log goes on.

        Raises:
            Abandoned: asked to give up while waiting.
        """
        try:
            return self._patience.ask(self._api.url, lambda: self._read(asked), JudgeAway)
        except RetriesExhausted as error:
            if error.news:
                log.error("the judge at %s does not answer (%s): steps are skipped until it does", self._api.url, error)
            return None

    def _read(self, asked: str) -> float | None:
        try:
            return score_of(self._api.complete(request(self._model, asked)))
        except Unanswered as error:
            # At temperature 0 the same question gives the same answer: it is not asked again.
            log.warning("%s: the step is skipped", error)
            return None
