"""Asks the judge: an OpenAI-compatible API, a limited number of times a minute, with bounded patience."""

import http.client
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable

import orjson

from stepstream.config.sections import Judge
from stepstream.jobs.judging import Unusable, request, score_of
from stepstream.jobs.waiting import Abandoned

log = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 20.0
_NAP_S = 0.1
_MOST_BYTES = 1 << 20


class JudgeClient:
    """Use from one thread."""

    def __init__(self, settings: Judge, abandoned: Callable[[], bool]) -> None:
        """`abandoned` tells whether to give up waiting; then `Abandoned` is raised."""
        self._settings, self._abandoned = settings, abandoned
        self._url = settings.url.rstrip("/") + "/chat/completions"
        self._next = 0.0
        self._away = False

    def score(self, asked: str) -> float | None:
        """The judge's score of a question; None where it does not answer, or not with a score.

        Blocks for the rate limit, and for `judge.patience_s` while the judge fails. Once that has passed, it is asked
        only once a question until it answers again: what it cannot score is skipped, and the log goes on.

        Raises:
            Abandoned: asked to give up while waiting.
        """
        until = time.monotonic() + (0.0 if self._away else self._settings.patience_s)
        wait_s = _FIRST_WAIT_S
        while True:
            self._sleep(self._next - time.monotonic())
            self._next = time.monotonic() + 60.0 / self._settings.per_minute
            try:
                score = score_of(self._ask(asked))
            except Unusable as error:
                # At temperature 0 the same question gives the same answer: it is not asked again.
                log.warning("%s: the step is skipped", error)
                self._away = False
                return None
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, urllib.error.HTTPError):
                    error.close()
                if time.monotonic() + wait_s > until:
                    if not self._away:
                        log.error(
                            "the judge at %s does not answer (%s): steps are skipped until it does", self._url, error
                        )
                    self._away = True
                    return None
                self._sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                continue
            self._away = False
            return score

    def _ask(self, asked: str) -> bytes:
        headers = {"content-type": "application/json"}
        if key := self._settings.api_key.get_secret_value():
            headers["authorization"] = f"Bearer {key}"
        call = urllib.request.Request(self._url, orjson.dumps(request(self._settings.model, asked)), headers)
        with urllib.request.urlopen(call, timeout=self._settings.timeout_s) as reply:
            answer: bytes = reply.read(_MOST_BYTES)
        return answer

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._abandoned():
                raise Abandoned
            time.sleep(min(left, _NAP_S))
