"""What the learner needs of a labelled trajectory: its tokens as arrays, or why it may not be trained on."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepstream.learner.advantages import Trajectory
from stepstream.learner.credit import positions, trajectory_of
from stepstream.learner.shaping import Sums, held, misshaped

Place = tuple[int, int]
"""Partition and offset of a labelled trajectory: its identity in a checkpoint's inputs."""

_NO_OUTCOME = "no_outcome"


class Invalid(Exception):
    """A labelled trajectory that contradicts itself or the model; the message says where, without content."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the model can take."""

    model: str
    vocabulary: int
    """Token ids are below this."""
    max_length: int
    """Longest sequence in tokens."""
    sums: Sums = field(default_factory=Sums)
    """What the learner adds up; by default nothing, so that any shaping will do."""
    alone: bool = False
    """Whether attempts without a group are taken, each by itself."""
    speech: Callable[[str], Sequence[int]] | None = None
    """Tokens of a response that somebody wrote, none where it cannot be written (`speech.py`); None: what feedback
    demonstrates is not imitated."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """One training sequence, cut after its last trained token."""

    ids: npt.NDArray[np.int64]
    """All tokens. Shape [length]."""
    trained: npt.NDArray[np.int64]
    """Positions of the sampled tokens, rising, each at least 1. Shape [trained]."""
    logprobs: npt.NDArray[np.float32]
    """Behaviour log-probability of each of them; NaN: it was demonstrated, not sampled. Shape [trained]."""
    versions: npt.NDArray[np.int64]
    """Policy version that sampled each of them, or what was answered in its place. Shape [trained]."""
    steps: npt.NDArray[np.int64]
    """Step of the attempt's credit that each of them belongs to. Shape [trained]."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One revision of a labelled trajectory, as an attempt of its group."""

    place: Place
    trajectory_id: str
    revision: int
    group_id: str
    """Empty: it has none, and is judged by itself."""
    reward: float
    sequences: tuple[Tokens, ...]
    """Of its own responses, but those in whose place others were demonstrated."""
    version_min: int
    """Oldest policy version among its trained tokens; where nothing may be trained on, as its record says, or 0."""
    barred: str = ""
    """Why it may not be trained on; empty where it may. It still tells its group that it has arrived."""
    credit: Trajectory = field(default_factory=lambda: Trajectory((), 0.0))
    """What the advantage rules see of it; empty where it may not be trained on."""
    tenant: str = "default"
    signature: npt.NDArray[np.int64] | None = None
    """MinHash of its text, where its label has one. Shape [permutations]."""
    demonstrations: tuple[Tokens, ...] = ()
    """One for each response that somebody demonstrated: the step's exact prompt and, trained, what was demonstrated."""

    @property
    def provisional(self) -> bool:
        """Whether its outcome, or a component that its reward requires, is still to come with a later revision."""
        return self.barred == _NO_OUTCOME


def attempt_of(record: Mapping[str, Any], place: Place, limits: Limits) -> Attempt:
    """Reads a LabeledTrajectory.

    Raises:
        Invalid: its spans, tokens, log-probabilities or reward cannot be right.
    """
    if not all(map(math.isfinite, (record["reward"], *(step["reward"] for step in record["steps"])))):
        raise Invalid("reward is not finite")
    barred, by_index = _barred(record, limits) or _unsuited(record, limits), positions(record)
    sequences = () if barred else tuple(_tokens(s, limits, by_index) for s in record["sequences"])
    sequences = tuple(tokens for tokens in sequences if tokens.trained.size)
    if not barred and not sequences:
        barred = "no_trained_tokens"
    elif any(tokens.ids.size > limits.max_length for tokens in sequences):
        barred, sequences = "too_long", ()
    demonstrations: tuple[Tokens, ...] = ()
    oldest = min((int(tokens.versions.min()) for tokens in sequences), default=record["version_min"] or 0)
    if limits.speech is not None and not barred:
        sequences, demonstrations, fault = _imitated(record, sequences, limits)
        if fault and not demonstrations and not (sequences and record["success"]):
            barred, sequences = fault, ()
    return Attempt(
        place=place,
        trajectory_id=record["trajectory_id"],
        revision=record["revision"],
        group_id=record["group_id"] or "",
        reward=record["reward"],
        sequences=sequences,
        version_min=oldest,
        barred=barred,
        credit=Trajectory((), record["reward"]) if barred else trajectory_of(held(record, limits.sums)),
        tenant=record["tenant"],
        signature=np.asarray(record["signature"], dtype=np.int64) if record["signature"] else None,
        demonstrations=demonstrations,
    )


def _barred(record: Mapping[str, Any], limits: Limits) -> str:
    if record["split"] != "train":
        return "split"
    if record["model"] != limits.model:
        return "other_model"
    if not record["group_id"] and not limits.alone:
        return "no_group"
    if record["consent"] != "train":
        return "consent"
    if record["fidelity"] != "token":
        return "fidelity"
    if not record["trainable"]:
        return _NO_OUTCOME if record["success"] is None or record["pending"] else "not_trainable"
    if any(span["model"] != limits.model for sequence in record["sequences"] for span in sequence["spans"]):
        return "other_model"
    return ""


def _unsuited(record: Mapping[str, Any], limits: Limits) -> str:
    """Why what the learner does with rewards bars it."""
    return "shaping_discount" if misshaped(record, limits.sums) else ""


def _tokens(sequence: Mapping[str, Any], limits: Limits, place: Mapping[int, int]) -> Tokens:
    ids = np.asarray(sequence["token_ids"], dtype=np.int64)
    spans, last = sequence["spans"], 1
    for span in spans:
        if not last <= span["start"] < span["end"] <= ids.size:
            raise Invalid(f"span {span['start']}:{span['end']} of a sequence of {ids.size} tokens")
        if span["version"] < 0:
            raise Invalid(f"version {span['version']} of a span")
        if span["step_index"] not in place:
            raise Invalid(f"span of step {span['step_index']}, which the record does not have")
        last = span["end"]
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < limits.vocabulary:
        raise Invalid(f"token id outside 0..{limits.vocabulary - 1}")
    runs = [np.arange(span["start"], span["end"], dtype=np.int64) for span in spans]
    trained = np.concatenate(runs) if runs else np.empty(0, np.int64)
    logprobs = np.asarray(sequence["logprobs"], dtype=np.float32)
    if logprobs.size != trained.size:
        raise Invalid(f"{logprobs.size} log-probabilities for {trained.size} sampled tokens")
    sizes = [run.size for run in runs]
    versions = np.repeat(np.asarray([span["version"] for span in spans], dtype=np.int64), sizes)
    steps = np.repeat(np.asarray([place[span["step_index"]] for span in spans], dtype=np.int64), sizes)
    return Tokens(ids[:last] if spans else ids[:0], trained, logprobs, versions, steps)


def _imitated(
    record: Mapping[str, Any], sequences: tuple[Tokens, ...], limits: Limits
) -> tuple[tuple[Tokens, ...], tuple[Tokens, ...], str]:
    """Its sequences without the responses that were demonstrated, the demonstrations, and why one cannot be used."""
    own, shown, fault = list(sequences), [], ""
    for position, step in enumerate(record["steps"]):
        if step["demonstration"] is None:
            continue
        made = _demonstration(step, position, sequences, limits)
        if isinstance(made, Tokens):
            shown.append(made)
        else:
            fault = made
        own = [_chosen(tokens, tokens.steps != position) for tokens in own]
    return tuple(tokens for tokens in own if tokens.trained.size), tuple(shown), fault


def _demonstration(step: Mapping[str, Any], position: int, sequences: Sequence[Tokens], limits: Limits) -> Tokens | str:
    """What was demonstrated behind its step's prompt; or why that cannot be, as one of `fates.REASONS`.

    The prompt is never tokenised again: it is the beginning of the sequence that holds the step's own response.
    """
    assert limits.speech is not None
    said = np.asarray(limits.speech(step["demonstration"]), dtype=np.int64)
    if not said.size or int(said.max()) >= limits.vocabulary:
        return "demonstration_form"
    prompt = step["prompt_tokens"]
    for tokens in sequences:
        here = tokens.steps == position
        if not here.any() or not 1 <= prompt <= int(tokens.trained[here][0]):
            continue
        if prompt + said.size > limits.max_length:
            return "too_long"
        return Tokens(
            ids=np.concatenate([tokens.ids[:prompt], said]),
            trained=np.arange(prompt, prompt + said.size, dtype=np.int64),
            logprobs=np.full(said.size, np.nan, np.float32),
            versions=np.full(said.size, tokens.versions[here].min()),
            steps=np.full(said.size, position),
        )
    return "no_prompt"


def _chosen(tokens: Tokens, kept: npt.NDArray[np.bool_]) -> Tokens:
    """The sequence with some of its trained tokens only."""
    trained = tokens.trained[kept]
    return Tokens(
        ids=tokens.ids[: int(trained[-1]) + 1 if trained.size else 0],
        trained=trained,
        logprobs=tokens.logprobs[kept],
        versions=tokens.versions[kept],
        steps=tokens.steps[kept],
    )
