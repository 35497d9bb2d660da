"""Asks the next-state judge with bounded patience: what it does not score is skipped, and the log goes on."""

import logging
from collections.abc import Callable

from stepstream.config import Judge
from stepstream.jobs.judging.api import JudgeApi, JudgeAway
from stepstream.jobs.judging.next_state import request, score_of
from stepstream.jobs.runtime.retry import OutOfPatience, Patience
from stepstream.jobs.verifiers.base import Unanswered

log = logging.getLogger(__name__)


class JudgeClient:
    """Use from one thread."""

    def __init__(self, settings: Judge, abandoned: Callable[[], bool]) -> None:
        """`abandoned` tells whether to give up waiting; then `Abandoned` is raised."""
        self._model = settings.model
        self._api = JudgeApi(settings, abandoned)
        self._patience = Patience(settings.patience_s, abandoned)

    def score(self, asked: str) -> float | None:
        """The judge's score of a question; None where it does not answer, or not with a score.

        Blocks for the rate limit, and for `judge.patience_s` while the judge fails. Once that has passed, it is asked
        only once a question until it answers again: what it cannot score is skipped, and the log goes on.

        Raises:
            Abandoned: asked to give up while waiting.
        """
        try:
            return self._patience.ask(self._api.url, lambda: self._read(asked), JudgeAway)
        except OutOfPatience as error:
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
