"""Call a model that judges, behind an OpenAI-compatible API, within a limit of calls per minute.

`JudgeApi` makes one call. `JudgeClient` retries for the next-state judge, for a limited time.
"""

import http.client
import logging
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from stepstream.config import JudgeSettings
from stepstream.core.no_redirects import open_request
from stepstream.jobs.judging.next_state import request, score_of
from stepstream.jobs.runtime.retry import BoundedRetry, RetriesExhausted, interruptible_sleep
from stepstream.jobs.verifiers.base import NoVerdict

log = logging.getLogger(__name__)

_MAX_BYTES = 1 << 20


class JudgeUnavailable(Exception):
    """The API does not answer, or answers with an error."""


class JudgeClient:
    """Scores questions for the next-state judge, `judge.parallel` at a time. Use it from one thread; close it."""

    def __init__(self, settings: JudgeSettings, cancelled: Callable[[], bool]) -> None:
        """Create the client; waits raise `Cancelled` once `cancelled` returns True."""
        self._model = settings.model
        self._api = JudgeApi(settings, cancelled)
        self._retry = BoundedRetry(settings.patience_s, cancelled)
        self._threads = ThreadPoolExecutor(settings.parallel, thread_name_prefix="judge")

    def close(self) -> None:
        """Stop the threads; blocks until running calls are done."""
        self._threads.shutdown(cancel_futures=True)

    def score_all(self, questions: Sequence[str]) -> list[float | None]:
        """Return the score of each question, in order; None: the judge is unavailable, or its answer has no score.

        Blocks for the rate limit, and retries for `judge.patience_s`. After that each question gets one call until the
        judge answers again: questions without an answer are skipped, and the log goes on.

        Raises:
            Cancelled: `cancelled` returned True during the wait.
        """
        pending = [self._threads.submit(self._score, question) for question in questions]
        try:
            return [one.result() for one in pending]
        finally:
            for one in pending:
                one.cancel()

    def _score(self, question: str) -> float | None:
        try:
            return self._retry.call(self._api.url, lambda: self._read(question), JudgeUnavailable)
        except RetriesExhausted as error:
            if error.is_first:
                log.error("skipping steps until the judge at %s answers: %s", self._api.url, error)
            return None

    def _read(self, question: str) -> float | None:
        try:
            return score_of(self._api.complete(request(self._model, question)))
        except NoVerdict as error:
            # At temperature 0 the same question gives the same answer: do not retry.
            log.warning("skipped a step: %s", error)
            return None


class JudgeApi:
    """Client of the API. Safe to use from several threads; they share the calls of a minute."""

    def __init__(self, settings: JudgeSettings, cancelled: Callable[[], bool]) -> None:
        """Create the client; waits raise `Cancelled` once `cancelled` returns True."""
        self._settings, self._cancelled = settings, cancelled
        self.url = settings.url.rstrip("/") + "/chat/completions"
        self._lock = threading.Lock()
        self._next = 0.0

    def complete(self, body: dict[str, Any]) -> bytes:
        """Return the reply to a request in the form of chat completions. Blocks for the rate limit and for the answer.

        Raises:
            JudgeUnavailable: the call failed; it is not retried.
            Cancelled: `cancelled` returned True during the wait.
        """
        with self._lock:
            turn = max(self._next, time.monotonic())
            self._next = turn + 60.0 / self._settings.per_minute
        interruptible_sleep(turn - time.monotonic(), self._cancelled)
        headers = {"content-type": "application/json"}
        if key := self._settings.api_key.get_secret_value():
            headers["authorization"] = f"Bearer {key}"
        call = urllib.request.Request(self.url, orjson.dumps(body), headers)
        try:
            with open_request(call, self._settings.timeout_s) as reply:
                answer: bytes = reply.read(_MAX_BYTES)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            raise JudgeUnavailable(str(error)) from error
        return answer
