"""Run a judge on cases that people have labelled, and make the record of its calibration.

A set is JSONL: `{"id": "7", "task": "…", "response": "…", "reference": "…", "labels": [1, 1, 0]}`. A label is 1 for a
right response (or one better than the reference), 0 for a wrong (or worse) one, and 0.5 for neither. There is one label
for each person; the median counts. The next-state judge needs `{"id", "request", "response", "reaction", "labels"}`: a
label is 1 if the reaction shows that the response was right, 0 for wrong, and 0.5 for neither.
"""

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import orjson

from stepstream.config import JudgeSettings, SettingsError
from stepstream.jobs.judging import next_state
from stepstream.jobs.judging.calibration import DEFAULT_GATE, Gate, JudgedCase, Mode, measure_agreement
from stepstream.jobs.judging.judge import Judge
from stepstream.jobs.judging.llm import JudgeApi, JudgeUnavailable
from stepstream.jobs.verifiers.base import Case, NoVerdict, Unavailable
from stepstream.topics.events import JudgeCalibration, new_judge_calibration, new_message
from stepstream.topics.ids import derived_id

JOB = "calibrate@1"
_DECISIVE_SCORE = 0.25
"""Absolute score above which the next-state judge says right or wrong."""


class MeasurableJudge(Protocol):
    """Judge that can be calibrated."""

    model: str
    mode: Mode
    digest: str
    gate: Gate

    @property
    def rubric_digest(self) -> str:
        """SHA-256 of its rubric."""
        ...

    @property
    def fields(self) -> tuple[str, ...]:
        """Required fields of a case, beside its id and labels."""
        ...

    def answer(self, fields: Mapping[str, str]) -> tuple[float, bool]:
        """Return its verdict on a case, and True if it contradicts itself.

        Raises:
            Unavailable: the judge does not answer.
            NoVerdict: its answer cannot be parsed.
        """
        ...


class VerifierJudge:
    """The verifier `judge`, for calibration."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.model, self.mode, self.digest, self.gate = judge.model, judge.mode, judge.digest, judge.gate
        self.rubric_digest = judge.rubric_digest
        self.fields = ("task", "response", "reference") if judge.mode == "pair" else ("task", "response")

    def answer(self, fields: Mapping[str, str]) -> tuple[float, bool]:
        """See `MeasurableJudge`."""
        expected = {name: fields[name] for name in ("reference",) if name in fields}
        return self._judge.answer(Case("", "", fields["response"], expected, request=fields["task"]))


class NextStateJudge:
    """The judge of the job `judge`, for calibration."""

    mode: Mode = "next_state"
    gate = DEFAULT_GATE
    fields = ("request", "response", "reaction")

    def __init__(self, settings: JudgeSettings) -> None:
        self.model, self.digest = settings.model, next_state.digest(settings.model)
        self.rubric_digest = hashlib.sha256(next_state.RUBRIC.encode()).hexdigest()
        self._api = JudgeApi(settings, lambda: False)

    def answer(self, fields: Mapping[str, str]) -> tuple[float, bool]:
        """See `MeasurableJudge`."""
        response = new_message(role="assistant", content=fields["response"])
        question = next_state.question_about(fields["request"], response, fields["reaction"])
        body = next_state.request(self.model, question)
        try:
            score = next_state.score_of(self._api.complete(body))
        except JudgeUnavailable as error:
            raise Unavailable(f"the judge at {self._api.url} does not answer: {error}") from error
        return (1.0 if score > _DECISIVE_SCORE else 0.0 if score < -_DECISIVE_SCORE else 0.5), False


@dataclass(frozen=True, slots=True)
class Item:
    """Labelled case of a set."""

    id: str
    fields: Mapping[str, str]
    labels: Sequence[float]


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """Labelled cases, and the SHA-256 of their file."""

    digest: str
    items: Sequence[Item]


def read_set(file: Path, needed: Sequence[str]) -> LabelledSet:
    """Read labelled cases with the fields `needed`; a `reference` is optional.

    Raises:
        SettingsError: the file is unreadable or invalid; the message names the line.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise SettingsError(f"calibration set {file} cannot be read: {error.strerror}") from None
    items: dict[str, Item] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        item = _parse_item(line, needed)
        if item is None or item.id in items:
            names = ", ".join(("id", *needed, "labels"))
            raise SettingsError(f"calibration set {file}, line {number}: needs {names}; ids once, labels 0, 0.5 or 1")
        items[item.id] = item
    if not items:
        raise SettingsError(f"calibration set {file} is empty")
    return LabelledSet(hashlib.sha256(content).hexdigest(), list(items.values()))


def calibrate(
    judge: MeasurableJudge, labelled: LabelledSet, *, parallel: int, occurred_at_us: int, author: str
) -> JudgeCalibration:
    """Run the judge on every case, `parallel` at a time; blocks until all are answered.

    Raises:
        Unavailable: the judge does not answer. No record is made.
        SettingsError: no answer can be compared with a label.
    """
    with ThreadPoolExecutor(parallel) as threads:
        cases = list(threads.map(lambda item: _judge_item(judge, item), labelled.items))
    try:
        figures = measure_agreement(cases, judge.mode)
    except ValueError as error:
        raise SettingsError(f"{error}: use a model that follows the rubric") from None
    return new_judge_calibration(
        event_id=derived_id(JOB, judge.digest, labelled.digest, occurred_at_us),
        occurred_at_us=occurred_at_us,
        judge=judge.digest,
        model=judge.model,
        mode=judge.mode,
        rubric=judge.rubric_digest,
        set=labelled.digest,
        author=author,
        **figures,
    )


def _judge_item(judge: MeasurableJudge, item: Item) -> JudgedCase:
    try:
        value, flip = judge.answer(item.fields)
    except NoVerdict:
        return JudgedCase(item.id, item.labels, None)
    return JudgedCase(item.id, item.labels, value, flip)


def _parse_item(line: bytes, needed: Sequence[str]) -> Item | None:
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(fields, dict):
        return None
    name, labels = fields.pop("id", None), fields.pop("labels", None)
    if not isinstance(name, str) or not isinstance(labels, list) or not labels:
        return None
    if not all(type(label) in (int, float) and label in (0, 0.5, 1) for label in labels):
        return None
    if not set(needed) <= set(fields) <= {*needed, "reference"} or not all(isinstance(v, str) for v in fields.values()):
        return None
    return Item(name, fields, [float(label) for label in labels])
