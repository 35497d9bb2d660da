"""Asks a judge about cases that people have labelled, and makes the record of what it is worth.

The set is JSONL: `{"id": "7", "task": "…", "response": "…", "reference": "…", "labels": [1, 1, 0]}`. A label is 1 for a
right response (or one better than the reference), 0 for a wrong (or worse) one, 0.5 for neither; one for each person
who judged, and what most of them say counts.
"""

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import orjson

from stepstream.config import SettingsError
from stepstream.jobs.verifiers.base import Case, Unanswered
from stepstream.jobs.verifiers.calibration import Labelled, measured
from stepstream.jobs.verifiers.judge import Judge
from stepstream.topics.events import JudgeCalibration, new_judge_calibration
from stepstream.topics.ids import derived_id

_FIELDS = {"id", "task", "response", "reference", "labels"}
JOB = "calibrate@1"


@dataclass(frozen=True, slots=True)
class Item:
    """One labelled case of a set."""

    id: str
    case: Case
    labels: Sequence[float]


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """A set and its digest."""

    digest: str
    items: Sequence[Item]


def read_set(file: Path, *, pairs: bool) -> LabelledSet:
    """Reads a set of labelled cases.

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
        item = _item(line, pairs=pairs)
        if item is None or item.id in items:
            needed = "id, task, response, labels" + (" and reference" if pairs else "")
            raise SettingsError(f"calibration set {file}, line {number}: needs {needed}; ids once, labels 0, 0.5 or 1")
        items[item.id] = item
    if not items:
        raise SettingsError(f"calibration set {file} is empty")
    return LabelledSet(hashlib.sha256(content).hexdigest(), list(items.values()))


def calibrate(
    judge: Judge,
    labelled: LabelledSet,
    *,
    parallel: int,
    occurred_at_us: int,
    author: str,
    told: Callable[[int], None] = lambda done: None,
) -> JudgeCalibration:
    """Asks the judge about every case; blocks until it has answered. `told` gets the number of cases done.

    Raises:
        Unavailable: the judge does not answer: nothing is recorded.
        SettingsError: not one of its answers can be compared.
    """
    pairs = judge.options.mode == "pair"
    cases: list[Labelled] = []
    with ThreadPoolExecutor(parallel) as threads:
        for case in threads.map(lambda item: _asked(judge, item), labelled.items):
            cases.append(case)
            told(len(cases))
    try:
        figures = measured(cases, pairs=pairs)
    except ValueError as error:
        raise SettingsError(f"{error}: is the model fit to judge?") from None
    return new_judge_calibration(
        event_id=derived_id(JOB, judge.digest, labelled.digest, occurred_at_us),
        occurred_at_us=occurred_at_us,
        judge=judge.digest,
        model=judge.model,
        mode=judge.options.mode,
        rubric=judge.rubric_digest,
        set=labelled.digest,
        author=author,
        **figures,
    )


def _asked(judge: Judge, item: Item) -> Labelled:
    try:
        if judge.options.mode == "score":
            return Labelled(item.id, item.labels, judge.score(item.case))
        value, word = judge.compare(item.case)
    except Unanswered:
        return Labelled(item.id, item.labels, None)
    return Labelled(item.id, item.labels, value, flip=word == "flip")


def _item(line: bytes, *, pairs: bool) -> Item | None:
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(fields, dict) or not set(fields) <= _FIELDS:
        return None
    texts = {name: fields.get(name) for name in ("id", "task", "response")}
    reference, labels = fields.get("reference"), fields.get("labels")
    if not all(isinstance(text, str) and text for text in texts.values()) or not isinstance(labels, list) or not labels:
        return None
    if not all(type(label) in (int, float) and label in (0, 0.5, 1) for label in labels):
        return None
    if not isinstance(reference, str) and (pairs or reference is not None):
        return None
    known = {} if reference is None else {"reference": reference}
    case = Case("", "", texts["response"] or "", known, asked=texts["task"] or "")
    return Item(texts["id"] or "", case, [float(label) for label in labels])
