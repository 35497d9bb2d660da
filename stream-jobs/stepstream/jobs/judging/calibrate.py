"""Asks a judge about cases that people have labelled, and makes the record of what it is worth.

A set is JSONL: `{"id": "7", "task": "…", "response": "…", "reference": "…", "labels": [1, 1, 0]}`. A label is 1 for a
right response (or one better than the reference), 0 for a wrong (or worse) one, 0.5 for neither; one for each person
who judged, and what most of them say counts. For the next-state judge: `{"id", "request", "response", "reaction",
"labels"}`, where a label is 1 where the reaction shows that the response was right, 0 for wrong, 0.5 for neither.
"""

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import orjson

from stepstream.config import JudgeSettings as JudgeSettings
from stepstream.config import SettingsError
from stepstream.jobs.judging import next_state
from stepstream.jobs.judging.calibration import DEFAULT_GATE, Gate, Labelled, Mode, measured
from stepstream.jobs.judging.judge import Judge
from stepstream.jobs.judging.llm import JudgeApi, JudgeAway
from stepstream.jobs.verifiers.base import Case, Unanswered, Unavailable
from stepstream.topics.events import JudgeCalibration, new_judge_calibration, new_message
from stepstream.topics.ids import derived_id

JOB = "calibrate@1"
_LEANS = 0.25
"""From here on, a score of the next-state judge says right or wrong."""


class Subject(Protocol):
    """A judge that can be measured."""

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
        """What a case of its set must have, beside its id and labels."""
        ...

    def of(self, fields: Mapping[str, str]) -> tuple[float, bool]:
        """What it says of a case, and whether it contradicts itself; raises Unavailable or Unanswered."""
        ...


class OfVerifier:
    """A judge that is a verifier."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.model, self.mode, self.digest, self.gate = judge.model, judge.mode, judge.digest, judge.gate
        self.rubric_digest = judge.rubric_digest
        self.fields = ("task", "response", "reference") if judge.mode == "pair" else ("task", "response")

    def of(self, fields: Mapping[str, str]) -> tuple[float, bool]:
        """See `Subject`."""
        known = {name: fields[name] for name in ("reference",) if name in fields}
        return self._judge.answer(Case("", "", fields["response"], known, asked=fields["task"]))


class OfNextState:
    """The judge of the job `judge`."""

    mode: Mode = "next_state"
    gate = DEFAULT_GATE
    fields = ("request", "response", "reaction")

    def __init__(self, settings: JudgeSettings) -> None:
        self.model, self.digest = settings.model, next_state.digest(settings.model)
        self.rubric_digest = hashlib.sha256(next_state.RUBRIC.encode()).hexdigest()
        self._api = JudgeApi(settings, lambda: False)

    def of(self, fields: Mapping[str, str]) -> tuple[float, bool]:
        """See `Subject`."""
        response = new_message(role="assistant", content=fields["response"])
        body = next_state.request(self.model, next_state.asked(fields["request"], response, fields["reaction"]))
        try:
            score = next_state.score_of(self._api.complete(body))
        except JudgeAway as error:
            raise Unavailable(f"the judge at {self._api.url} does not answer: {error}") from error
        return (1.0 if score > _LEANS else 0.0 if score < -_LEANS else 0.5), False


@dataclass(frozen=True, slots=True)
class Item:
    """One labelled case of a set."""

    id: str
    fields: Mapping[str, str]
    labels: Sequence[float]


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """A set and its digest."""

    digest: str
    items: Sequence[Item]


def read_set(file: Path, needed: Sequence[str]) -> LabelledSet:
    """Reads a set of labelled cases, which have the fields `needed`, and may have a `reference`.

    Raises:
        SettingsError: it cannot be used; the message names the line.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise SettingsError(f"calibration set {file} cannot be read: {error.strerror}") from None
    items: dict[str, Item] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        item = _item(line, needed)
        if item is None or item.id in items:
            names = ", ".join(("id", *needed, "labels"))
            raise SettingsError(f"calibration set {file}, line {number}: needs {names}; ids once, labels 0, 0.5 or 1")
        items[item.id] = item
    if not items:
        raise SettingsError(f"calibration set {file} is empty")
    return LabelledSet(hashlib.sha256(content).hexdigest(), list(items.values()))


def calibrate(
    judge: Subject, labelled: LabelledSet, *, parallel: int, occurred_at_us: int, author: str
) -> JudgeCalibration:
    """Asks the judge about every case, some at once; blocks until it has answered.

    Raises:
        Unavailable: the judge does not answer: nothing is recorded.
        SettingsError: not one of its answers can be compared.
    """
    with ThreadPoolExecutor(parallel) as threads:
        cases = list(threads.map(lambda item: _asked(judge, item), labelled.items))
    try:
        figures = measured(cases, judge.mode)
    except ValueError as error:
        raise SettingsError(f"{error}: is the model fit to judge?") from None
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


def _asked(judge: Subject, item: Item) -> Labelled:
    try:
        value, flip = judge.of(item.fields)
    except Unanswered:
        return Labelled(item.id, item.labels, None)
    return Labelled(item.id, item.labels, value, flip)


def _item(line: bytes, needed: Sequence[str]) -> Item | None:
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
