"""What the learner needs of a labelled trajectory: its tokens as arrays, or why it may not be trained on.

What feedback demonstrates, as training sequences behind the steps' own prompts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepstream.learner.advantages import Trajectory
from stepstream.learner.advantages.from_record import positions, trajectory_of
from stepstream.learner.data.reward_shaping import held, misshaped
from stepstream.learner.data.sequences import UNVERSIONED, Invalid, Limits, ResponseSpan, TokenSequence, is_sampled


def shown_in(
    record: Mapping[str, Any], sequences: tuple[TokenSequence, ...], limits: Limits
) -> tuple[tuple[TokenSequence, ...], tuple[TokenSequence, ...], str]:
    """Its own sequences, without responses in whose place others are imitated; what was demonstrated; and why some
    demonstration cannot be used."""
    own, shown, fault = list(sequences), [], ""
    for position, step in enumerate(record["steps"]):
        if step["demonstration"] is None:
            continue
        prompt = step["prompt_tokens"] if is_sampled(record) else None
        made = _demonstration(step["demonstration"], prompt, position, sequences, limits)
        if isinstance(made, TokenSequence):
            shown.append(made)
        else:
            fault = made
        if limits.needs.demonstrations == "imitated":
            own = [tokens.only(tokens.steps != position) for tokens in own]
    return tuple(tokens for tokens in own if tokens.trained.size), tuple(shown), fault


def teaches_without(record: Mapping[str, Any], sequences: tuple[TokenSequence, ...], limits: Limits) -> bool:
    """Whether an attempt may teach something although nothing that was demonstrated can be used."""
    if limits.needs.demonstrations == "preferred":
        return bool(record["group_id"])
    return bool(sequences) and bool(record["success"])


def _demonstration(
    text: str, prompt: int | None, position: int, sequences: Sequence[TokenSequence], limits: Limits
) -> TokenSequence | str:
    """What was demonstrated behind its step's prompt; or why that cannot be, as one of `fates.REASONS`.

    The prompt is never tokenised again: it is the beginning of the sequence that holds the step's own response.

    Args:
        text: what was demonstrated.
        prompt: tokens of the step's prompt; None: all before its own response.
        position: of the step among the record's.
        sequences: of the attempt.
        limits: of the model.
    """
    assert limits.speech is not None
    said = np.asarray(limits.speech(text), dtype=np.int64)
    if not said.size or int(said.max()) >= limits.vocabulary:
        return "demonstration_form"
    for tokens in sequences:
        here = tokens.steps == position
        if not here.any():
            continue
        first = int(tokens.trained[here][0])
        end = first if prompt is None else prompt
        if not 1 <= end <= first:
            continue
        if end + said.size > limits.max_length:
            return "too_long"
        return TokenSequence(
            ids=np.concatenate([tokens.ids[:end], said]),
            trained=np.arange(end, end + said.size, dtype=np.int64),
            logprobs=np.full(said.size, np.nan, np.float32),
            versions=np.full(said.size, tokens.versions[here].min()),
            steps=np.full(said.size, position),
        )
    return "no_prompt"


LogPosition = tuple[int, int]
"""Partition and offset of a labelled trajectory: its identity in a checkpoint's inputs."""

_NO_OUTCOME = "no_outcome"
_MOST_REWARD = 1e15
"""Rewards beyond this would overflow a float32 gradient's norm, or a variance."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One revision of a labelled trajectory, as an attempt of its group."""

    place: LogPosition
    trajectory_id: str
    revision: int
    group_id: str
    """Empty: it has none, and is judged by itself."""
    reward: float
    sequences: tuple[TokenSequence, ...]
    """Of its own responses, but those in whose place others are imitated."""
    version_min: int | None
    """Oldest policy version among its trained tokens; None: no policy is known to have sampled them. Where nothing may
    be trained on, as its record says, or 0."""
    untrainable: str = ""
    """Why it may not be trained on; empty where it may. It still tells its group that it has arrived."""
    credit: Trajectory = field(default_factory=lambda: Trajectory((), 0.0))
    """What the advantage rules see of it; empty where it may not be trained on."""
    tenant: str = "default"
    signature: npt.NDArray[np.int64] | None = None
    """MinHash of its text, where its label has one. Shape [permutations]."""
    demonstrations: tuple[TokenSequence, ...] = ()
    """One for each response that somebody demonstrated: the step's exact prompt and, trained, what was demonstrated."""

    @property
    def provisional(self) -> bool:
        """Whether its outcome, or a component that its reward requires, is still to come with a later revision."""
        return self.untrainable == _NO_OUTCOME

    def staleness(self, version: int) -> int | None:
        """Of its oldest trained token, in versions, for a learner that trains from `version`; None: it has none."""
        return None if self.untrainable or self.version_min is None else version - self.version_min


def attempt_of(record: Mapping[str, Any], place: LogPosition, limits: Limits) -> Attempt:
    """Reads a LabeledTrajectory.

    Raises:
        Invalid: its spans, tokens, log-probabilities or reward cannot be right.
    """
    if not all(abs(paid) <= _MOST_REWARD for paid in (record["reward"], *(step["reward"] for step in record["steps"]))):
        raise Invalid(f"reward is no number, or beyond {_MOST_REWARD:g}")
    untrainable = _barred(record, limits) or _unsuited(record, limits)
    sequences = () if untrainable else _sequences(record, limits)
    if not untrainable and not sequences:
        untrainable = "no_trained_tokens" if is_sampled(record) else "conversation_form"
    elif any(tokens.ids.size > limits.max_length for tokens in sequences):
        untrainable, sequences = "too_long", ()
    demonstrations: tuple[TokenSequence, ...] = ()
    oldest = min((int(tokens.versions.min()) for tokens in sequences), default=record["version_min"] or 0)
    if limits.speech is not None and limits.needs.demonstrations != "unused" and not untrainable:
        sequences, demonstrations, fault = shown_in(record, sequences, limits)
        if fault and not demonstrations and not teaches_without(record, sequences, limits):
            untrainable, sequences = fault, ()
    return Attempt(
        place=place,
        trajectory_id=record["trajectory_id"],
        revision=record["revision"],
        group_id=record["group_id"] or "",
        reward=record["reward"],
        sequences=sequences,
        version_min=None if oldest == UNVERSIONED else oldest,
        untrainable=untrainable,
        credit=Trajectory((), record["reward"]) if untrainable else trajectory_of(held(record, limits.sums)),
        tenant=record["tenant"],
        signature=np.asarray(record["signature"], dtype=np.int64) if record["signature"] else None,
        demonstrations=demonstrations,
    )


def refused(record: Mapping[str, Any], place: LogPosition, limits: Limits) -> Attempt:
    """A LabeledTrajectory that `attempt_of` finds invalid, as the attempt that its group need not wait for."""
    return Attempt(
        place=place,
        trajectory_id=record["trajectory_id"],
        revision=record["revision"],
        group_id=record["group_id"] or "",
        reward=0.0,
        sequences=(),
        version_min=record["version_min"],
        untrainable=_barred(record, limits) or "invalid",
        tenant=record["tenant"],
    )


def _barred(record: Mapping[str, Any], limits: Limits) -> str:
    if record["split"] != "train":
        return "split"
    if record["model"] != limits.model and not _may_be_of_others(record, limits):
        return "other_model"
    if not record["group_id"] and not limits.alone and not _is_pair(record, limits):
        return "no_group"
    if record["consent"] != "train":
        return "consent"
    if not is_sampled(record) and (limits.needs.sampled or record["fidelity"] != "text"):
        return "fidelity"
    if not record["trainable"]:
        return _NO_OUTCOME if record["success"] is None or record["pending"] else "not_trainable"
    if not is_sampled(record):
        return ""
    if any(span["model"] != limits.model for sequence in record["sequences"] for span in sequence["spans"]):
        return "other_model"
    return ""


def _may_be_of_others(record: Mapping[str, Any], limits: Limits) -> bool:
    """Whether it does not matter that another model answered.

    What a policy with versions sampled is for that model's own learner; its ids would be another tokenizer's.
    """
    return not limits.needs.sampled and not is_sampled(record) and record["version_min"] is None


def _is_pair(record: Mapping[str, Any], limits: Limits) -> bool:
    """Whether an attempt without a group has something to be compared with all the same."""
    preferred = limits.needs.demonstrations == "preferred"
    return preferred and any(step["demonstration"] is not None for step in record["steps"])


def _unsuited(record: Mapping[str, Any], limits: Limits) -> str:
    """Why what the learner does with rewards bars it."""
    return "shaping_discount" if misshaped(record, limits.sums) else ""


def _sequences(record: Mapping[str, Any], limits: Limits) -> tuple[TokenSequence, ...]:
    """Its training sequences that have trained tokens: as they were sampled, or its text as tokens."""
    place = positions(record)
    if is_sampled(record):
        found = [_tokens(sequence, limits, place) for sequence in record["sequences"]]
        steps = [step for tokens in found for step in set(tokens.steps.tolist())]
        if len(set(steps)) < len(steps):
            raise Invalid("the response of one step in two sequences")
    elif limits.transcript is None:
        found = []
    else:
        spoken = [each for conversation in record["conversations"] for each in limits.transcript(conversation)]
        found = [_spoken(each, limits, place) for each in spoken]
    return tuple(tokens for tokens in found if tokens.trained.size)


def _spoken(spoken: ResponseSpan, limits: Limits, place: Mapping[int, int]) -> TokenSequence:
    last = max((end for _, end, _ in spoken.spans), default=0)
    runs = [np.arange(start, end, dtype=np.int64) for start, end, _ in spoken.spans]
    trained = np.concatenate([np.empty(0, np.int64), *runs])
    if any(step not in place for _, _, step in spoken.spans):
        raise Invalid("a conversation with a step that the record does not have")
    steps = [np.full(end - start, place[step]) for start, end, step in spoken.spans]
    ids = np.asarray(spoken.ids[:last], dtype=np.int64)
    if ids.size and int(ids.max()) >= limits.vocabulary:
        trained, steps = trained[:0], []  # the tokenizer has tokens that the model has not
    return TokenSequence(
        ids=ids,
        trained=trained,
        logprobs=np.full(trained.size, np.nan, np.float32),
        versions=np.full(trained.size, UNVERSIONED, np.int64),
        steps=np.concatenate([np.empty(0, np.int64), *steps]),
    )


def _tokens(sequence: Mapping[str, Any], limits: Limits, place: Mapping[int, int]) -> TokenSequence:
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
    return TokenSequence(ids[:last] if spans else ids[:0], trained, logprobs, versions, steps)
