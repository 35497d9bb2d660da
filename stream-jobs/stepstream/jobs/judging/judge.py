"""`judge`: a language model judges, and counts only once its agreement with people was measured.

`score`: how likely the response is right, from 0 to 1, with the task's `reference` beside it where there is one.
`pair`: whether the response is better than the task's `reference`, asked in both orders: 1 better, 0 worse, 0.5 where
neither is or the two answers contradict each other. The rubric is frozen by its digest: with another rubric, model or
parameter it is another judge, and that one has to be calibrated anew.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from stepstream.jobs.judging import judge_prompts as prompts
from stepstream.jobs.judging.calibration import DEFAULT_GATE, Gate, Mode, refusal, scaling_of
from stepstream.jobs.judging.llm import JudgeApi, JudgeAway
from stepstream.jobs.verifiers.base import Case, Source, Unanswered, Unavailable, Unusable, Verdict
from stepstream.jobs.verifiers.options import BadOptions, Calibrations, Options, Surroundings, read

_ATTEMPTS = 2
"""How often an answer that cannot be read is asked for again: not every server repeats itself at temperature 0."""
_BUILT_IN = Path(__file__).with_name("judge_rubric.txt")

T = TypeVar("T")


class JudgeOptions(Options):
    """Options of `judge`."""

    mode: prompts.Mode = "score"
    model: str = ""
    """Model that judges; empty: `judge.model`."""
    rubric: str = ""
    """File of the rubric, beside the verification file; empty: the built-in one."""
    seed: int | None = None
    """Seed of the call, for servers that take one."""
    min_items: int = Field(DEFAULT_GATE.items, ge=1)
    """Fewest labelled cases that a calibration must rest on."""
    min_agreement: float = Field(DEFAULT_GATE.agreement, ge=0, le=1)
    """Smallest share of them on which the judge agrees."""
    min_kappa: float = Field(DEFAULT_GATE.kappa, ge=-1, le=1)
    """Smallest lower bound (one-sided 95 %) of Cohen's kappa."""
    min_order_consistency: float = Field(DEFAULT_GATE.order_consistency, ge=0, le=1)
    """Smallest share of pairs on which the judge's answers in both orders agree."""


class Judge:
    """Asks a model. Without a calibration that passes its gate, its verdicts are shadows."""

    source: Source = "judge"
    reads_trajectory = False

    def __init__(self, options: JudgeOptions, model: str, rubric: str, api: JudgeApi, known: Calibrations) -> None:
        """`known`: calibrations by judge's digest, read anew for each case."""
        self.options, self.model, self.rubric = options, model, rubric
        self._api, self._known = api, known
        self.mode: Mode = options.mode
        self.digest = prompts.digest(model, rubric, options.mode, options.seed)
        self.gate = Gate(options.min_items, options.min_agreement, options.min_kappa, options.min_order_consistency)

    @property
    def rubric_digest(self) -> str:
        """SHA-256 of the rubric."""
        return hashlib.sha256(self.rubric.encode()).hexdigest()

    def verify(self, case: Case) -> Sequence[Verdict]:
        """What the judge says, scaled by its calibration; a shadow where it has none, or one that is too weak."""
        record = self._known.get(self.digest)
        lacks = refusal(record, self.gate)
        if self.options.mode == "pair":
            value, word = self.compare(case)
        else:
            raw = self.score(case)
            scaling = None if record is None else scaling_of(record)
            value, word = raw if scaling is None else scaling.apply(raw), "scored"
        told = f"judge {self.digest}" + (f": {lacks}" if lacks else "")
        return [Verdict(value, word, told, shadow=lacks is not None)]

    def answer(self, case: Case) -> tuple[float, bool]:
        """What it says of a labelled case, unscaled, and whether it contradicts itself."""
        if self.options.mode == "score":
            return self.score(case), False
        value, word = self.compare(case)
        return value, word == "flip"

    def score(self, case: Case) -> float:
        """The score as the model gave it."""
        reference = case.expected.get("reference")
        asked = prompts.score_question(_task(case), case.observed, reference if isinstance(reference, str) else None)
        return self._ask(asked, prompts.score_of)

    def compare(self, case: Case) -> tuple[float, str]:
        """1, 0 or 0.5, and why: `better`, `worse`, `neither`, or `flip` where the order decided."""
        reference = case.expected.get("reference")
        if not isinstance(reference, str):
            raise Unusable("the task's expected values need 'reference' to compare with")
        one = self._ask(prompts.pair_question(_task(case), case.observed, reference), prompts.better_of)
        other = self._ask(prompts.pair_question(_task(case), reference, case.observed), prompts.better_of)
        if (one, other) == ("first", "second"):
            return 1.0, "better"
        if (one, other) == ("second", "first"):
            return 0.0, "worse"
        return 0.5, "neither" if one == other == "neither" else "flip"

    def _ask(self, asked: str, read_answer: Callable[[bytes], T]) -> T:
        body = prompts.request(self.model, self.rubric, self.options.mode, asked, self.options.seed)
        for left in range(_ATTEMPTS - 1, -1, -1):
            try:
                return read_answer(self._api.complete(body))
            except JudgeAway as error:
                raise Unavailable(f"the judge at {self._api.url} does not answer: {error}") from error
            except Unanswered:
                if not left:
                    raise
        raise AssertionError("unreachable")


def _task(case: Case) -> str:
    told = case.expected.get("task")
    return told if isinstance(told, str) else case.asked


def make(options: Mapping[str, Any], surroundings: Surroundings) -> Judge:
    """From options; reads the rubric."""
    chosen = read(JudgeOptions, options)
    settings = surroundings.settings.judge
    model = chosen.model or settings.model
    if not settings.url or not model:
        raise BadOptions("there is no judge to ask: set judge.url and judge.model")
    file = surroundings.folder / chosen.rubric if chosen.rubric else _BUILT_IN
    try:
        rubric = file.read_text(encoding="utf-8")
    except OSError as error:
        raise BadOptions(f"rubric: {file} cannot be read: {error.strerror}") from None
    return Judge(chosen, model, rubric, JudgeApi(settings, surroundings.cancelled), surroundings.calibrations)
