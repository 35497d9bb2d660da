"""The verifier `judge`: a language model. Its verdicts count only after its agreement with people was measured.

`score`: the probability that the response is right, from 0 to 1, given the task's `reference` if there is one. `pair`:
compare the response with the task's `reference`, in both orders; 1 better, 0 worse, 0.5 if neither is or if the two
answers contradict each other. The rubric is identified by its digest: another rubric, model or parameter makes another
judge, which needs its own calibration.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, TypeVar

from pydantic import Field

from stepstream.jobs.judging import judge_prompts as prompts
from stepstream.jobs.judging.calibration import DEFAULT_GATE, Gate, Mode, rejection_of, scaling_of
from stepstream.jobs.judging.llm import JudgeApi, JudgeUnavailable
from stepstream.jobs.verifiers.base import Case, NoVerdict, Source, Unavailable, UnverifiableCase, Verdict
from stepstream.jobs.verifiers.options import Calibrations, InvalidOptions, Options, VerifierContext, parse_options

_ATTEMPTS = 2
"""Attempts at an answer that can be parsed: some servers do not repeat themselves at temperature 0."""
_BUILT_IN = resources.files("stepstream.jobs.judging").joinpath("judge_rubric.txt")

T = TypeVar("T")


class JudgeOptions(Options):
    """Options of `judge`."""

    mode: prompts.Mode = "score"
    model: str = ""
    """Model of the judge; empty: `judge.model`."""
    rubric: str = ""
    """File of the rubric, beside the verification file; empty: the built-in one."""
    seed: int | None = None
    """Seed of the call, for servers that accept one."""
    min_items: int = Field(DEFAULT_GATE.items, ge=1)
    """Fewest labelled cases of a calibration."""
    min_agreement: float = Field(DEFAULT_GATE.agreement, ge=0, le=1)
    """Smallest share of cases on which the judge agrees with people."""
    min_kappa: float = Field(DEFAULT_GATE.kappa, ge=-1, le=1)
    """Smallest lower bound (one-sided 95 %) of Cohen's kappa."""
    min_order_consistency: float = Field(DEFAULT_GATE.order_consistency, ge=0, le=1)
    """Smallest share of pairs on which the judge's answers in both orders agree."""


class Judge:
    """Asks a model. Without a calibration that passes its gate, its verdicts are shadows."""

    source: Source = "judge"
    reads_trajectory = False

    def __init__(
        self, options: JudgeOptions, model: str, rubric: str, api: JudgeApi, calibrations: Calibrations
    ) -> None:
        """Create it; `calibrations` by judge's digest are read for each case."""
        self.options, self.model, self.rubric = options, model, rubric
        self._api, self._calibrations = api, calibrations
        self.mode: Mode = options.mode
        self.digest = prompts.digest(model, rubric, options.mode, options.seed)
        self.gate = Gate(options.min_items, options.min_agreement, options.min_kappa, options.min_order_consistency)

    @property
    def rubric_digest(self) -> str:
        """SHA-256 of the rubric."""
        return hashlib.sha256(self.rubric.encode()).hexdigest()

    def verify(self, case: Case) -> Sequence[Verdict]:
        """Return the judge's verdict, scaled by its calibration; a shadow if the calibration is missing or too weak."""
        record = self._calibrations.get(self.digest)
        rejection = rejection_of(record, self.gate)
        if self.options.mode == "pair":
            value, category = self.compare(case)
        else:
            raw = self.score(case)
            scaling = None if record is None else scaling_of(record)
            value, category = raw if scaling is None else scaling.apply(raw), "scored"
        comment = f"judge {self.digest}" + (f": {rejection}" if rejection else "")
        return [Verdict(value, category, comment, shadow=rejection is not None)]

    def answer(self, case: Case) -> tuple[float, bool]:
        """Return the unscaled verdict on a labelled case, and True if it contradicts itself."""
        if self.options.mode == "score":
            return self.score(case), False
        value, category = self.compare(case)
        return value, category == "flip"

    def score(self, case: Case) -> float:
        """Return the score of the model, unscaled."""
        reference = case.expected.get("reference")
        question = prompts.score_question(_task(case), case.observed, reference if isinstance(reference, str) else None)
        return self._ask(question, prompts.score_of)

    def compare(self, case: Case) -> tuple[float, str]:
        """Return 1, 0 or 0.5, and its category: `better`, `worse`, `neither`, or `flip` if the order decided."""
        reference = case.expected.get("reference")
        if not isinstance(reference, str):
            raise UnverifiableCase("the task's expected values need 'reference' to compare with")
        first = self._ask(prompts.pair_question(_task(case), case.observed, reference), prompts.better_of)
        second = self._ask(prompts.pair_question(_task(case), reference, case.observed), prompts.better_of)
        if (first, second) == ("first", "second"):
            return 1.0, "better"
        if (first, second) == ("second", "first"):
            return 0.0, "worse"
        return 0.5, "neither" if first == second == "neither" else "flip"

    def _ask(self, question: str, read_answer: Callable[[bytes], T]) -> T:
        body = prompts.request(self.model, self.rubric, self.options.mode, question, self.options.seed)
        for remaining in range(_ATTEMPTS - 1, -1, -1):
            try:
                return read_answer(self._api.complete(body))
            except JudgeUnavailable as error:
                raise Unavailable(f"the judge at {self._api.url} does not answer: {error}") from error
            except NoVerdict:
                if not remaining:
                    raise
        raise AssertionError("unreachable")


def _task(case: Case) -> str:
    task = case.expected.get("task")
    return task if isinstance(task, str) else case.request


def make(options: Mapping[str, Any], context: VerifierContext) -> Judge:
    """Create the verifier from its options; reads the rubric."""
    parsed = parse_options(JudgeOptions, options)
    settings = context.settings.judge
    model = parsed.model or settings.model
    if not settings.url or not model:
        raise InvalidOptions("no judge is configured: set judge.url and judge.model")
    file = context.folder / parsed.rubric if parsed.rubric else _BUILT_IN
    try:
        rubric = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidOptions(f"rubric: {file} cannot be read: {error.strerror}") from None
    return Judge(parsed, model, rubric, JudgeApi(settings, context.cancelled), context.calibrations)
