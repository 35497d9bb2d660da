"""Asks the next-state judge with bounded patience: what it does not score is skipped, and the log goes on."""

import logging
import time
from collections.abc import Callable

from stepstream.config.sections import Judge
from stepstream.jobs.judge_api import JudgeApi, JudgeAway
from stepstream.jobs.judging import Unusable, request, score_of

log = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 20.0


class JudgeClient:
    """Use from one thread."""

    def __init__(self, settings: Judge, abandoned: Callable[[], bool]) -> None:
        """`abandoned` tells whether to give up waiting; then `Abandoned` is raised."""
        self._settings = settings
        self._api = JudgeApi(settings, abandoned)
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
            try:
                score = score_of(self._api.complete(request(self._settings.model, asked)))
            except Unusable as error:
                # At temperature 0 the same question gives the same answer: it is not asked again.
                log.warning("%s: the step is skipped", error)
                self._away = False
                return None
            except JudgeAway as error:
                if time.monotonic() + wait_s > until:
                    if not self._away:
                        log.error(
                            "the judge at %s does not answer (%s): steps are skipped until it does",
                            self._api.url,
                            error,
                        )
                    self._away = True
                    return None
                self._api.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                continue
            self._away = False
            return score
