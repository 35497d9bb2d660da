"""Read a labelled trajectory as an attempt: its tokens as arrays, or the reason why it is not trained on.

A demonstration from feedback becomes a training sequence behind the exact prompt of its step.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stepstream.learner.advantages import Trajectory
from stepstream.learner.advantages.from_record import step_positions, trajectory_of
from stepstream.learner.data.kept_ids import KeptIds
from stepstream.learner.data.restrictions import REASONS, TRAINABLE, first_reason, token_reasons
from stepstream.learner.data.reward_shaping import apply_shaping
from stepstream.learner.data.sequences import UNVERSIONED, Invalid, Limits, ResponseSpan, TokenSequence, is_sampled
from stepstream.topics.sampling_restrictions import LEAST_TEMPERATURE, MASKED

LogPosition = tuple[int, int]
"""Partition and offset of a labelled trajectory: its identity in a checkpoint's inputs."""

_NO_OUTCOME = "no_outcome"
_MAX_REWARD = 1e15
"""Largest absolute reward: beyond it the norm of a float32 gradient, or a variance, overflows."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One revision of a labelled trajectory, as a member of its group."""

    position: LogPosition
    trajectory_id: str
    revision: int
    group_id: str
    """Empty: it has no group and forms a group of one."""
    reward: float
    sequences: tuple[TokenSequence, ...]
    """Training sequences of its own responses, without those that a demonstration replaces."""
    version_min: int | None
    """Oldest policy version among its trained tokens; None: no policy is known to have sampled them. Without trained
    tokens: the record's own value, or 0."""
    untrainable: str = ""
    """Reason for excluding the attempt; empty: trainable. An excluded attempt still counts as arrived in its group."""
    credit: Trajectory = field(default_factory=lambda: Trajectory((), 0.0))
    """Input of the advantage rules; without steps if the attempt is excluded."""
    tenant: str = "default"
    signature: npt.NDArray[np.int64] | None = None
    """MinHash of its text; None: the label has none. Shape [permutations]."""
    demonstrations: tuple[TokenSequence, ...] = ()
    """One sequence per demonstrated response: the step's exact prompt, then the demonstration as trained tokens."""
    restricted_tokens: int = 0
    """Number of its sampled tokens that are context only, because their sampling was restricted."""
    label_id: str = ""
    """event_id of the label."""
    reward_spec: str = ""
    """Name and digest of the reward specification that its label is of."""

    @property
    def provisional(self) -> bool:
        """True if its outcome, or a required reward component, is expected in a later revision."""
        return self.untrainable == _NO_OUTCOME

    @property
    def size_bytes(self) -> int:
        """Memory of its tokens."""
        return sum(tokens.size_bytes for tokens in (*self.sequences, *self.demonstrations))

    def staleness(self, version: int) -> int | None:
        """Return the staleness of its oldest trained token, in versions; None without trained or versioned tokens.

        Args:
            version: version that the learner trains from.
        """
        return None if self.untrainable or self.version_min is None else version - self.version_min


def without_gaps(attempt: Attempt, left_out: Collection[int], root: int) -> Attempt:
    """Return an attempt whose version numbers count the versions of one line, so that differences are its staleness.

    Each number rises by the numbers above it that belong to versions which were taken back. Versions before `root` stay
    as they are, and a version that was taken back counts as its ancestor in the line.
    """
    if not left_out:
        return attempt
    gaps = np.sort(np.fromiter(left_out, np.int64))

    def shift(versions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        above = gaps.size - np.searchsorted(gaps, versions, "right")
        return np.where(versions < root, versions, versions + above)

    def shifted(sequences: Iterable[TokenSequence]) -> tuple[TokenSequence, ...]:
        return tuple(replace(tokens, versions=shift(tokens.versions)) for tokens in sequences)

    oldest = None if attempt.version_min is None else int(shift(np.array([attempt.version_min]))[0])
    return replace(
        attempt,
        version_min=oldest,
        sequences=shifted(attempt.sequences),
        demonstrations=shifted(attempt.demonstrations),
    )


def attempt_of(record: Mapping[str, Any], position: LogPosition, limits: Limits) -> Attempt:
    """Read a LabeledTrajectory.

    Raises:
        Invalid: its spans, tokens, log-probabilities or reward contradict each other or the model.
    """
    rewards = (record["reward"], *(step["reward"] for step in record["steps"]))
    if not all(abs(reward) <= _MAX_REWARD for reward in rewards):
        raise Invalid(f"a reward is not a number, or its absolute value exceeds {_MAX_REWARD:g}")
    shaped = apply_shaping(record, limits.discounting)
    untrainable = _exclusion(record, limits) or ("shaping_discount" if shaped is None else "")
    restricted: Counter[str] = Counter()
    sequences = () if untrainable else _sequences(record, limits, restricted)
    if not untrainable and not sequences:
        untrainable = _reason_without_tokens(record, restricted)
    elif any(tokens.ids.size > limits.max_length for tokens in sequences):
        untrainable, sequences = "too_long", ()
    demonstrations: tuple[TokenSequence, ...] = ()
    oldest = min((int(tokens.versions.min()) for tokens in sequences), default=record["version_min"] or 0)
    if limits.response_tokens is not None and limits.requirements.demonstrations != "unused" and not untrainable:
        sequences, demonstrations, fault = _split_demonstrations(record, sequences, limits)
        if fault and not demonstrations and not _is_trainable_without_demonstrations(record, sequences, limits):
            untrainable, sequences = fault, ()
    return Attempt(
        position=position,
        trajectory_id=record["trajectory_id"],
        revision=record["revision"],
        group_id=record["group_id"] or "",
        reward=record["reward"],
        sequences=sequences,
        version_min=None if oldest == UNVERSIONED else oldest,
        untrainable=untrainable,
        credit=Trajectory((), record["reward"]) if untrainable or shaped is None else _credit(shaped, sequences),
        tenant=record["tenant"],
        signature=np.asarray(record["signature"], dtype=np.int64) if record["signature"] else None,
        demonstrations=demonstrations,
        restricted_tokens=sum(restricted.values()) if sequences else 0,
        label_id=record["event_id"],
        reward_spec=record["reward_spec"],
    )


def rejected_attempt(record: Mapping[str, Any], position: LogPosition, limits: Limits) -> Attempt:
    """Return an invalid LabeledTrajectory as an excluded attempt, so that its group does not wait for it."""
    return Attempt(
        position=position,
        trajectory_id=record["trajectory_id"],
        revision=record["revision"],
        group_id=record["group_id"] or "",
        reward=0.0,
        sequences=(),
        version_min=record["version_min"],
        untrainable=_exclusion(record, limits) or "invalid",
        tenant=record["tenant"],
        label_id=record["event_id"],
        reward_spec=record["reward_spec"],
    )


def _exclusion(record: Mapping[str, Any], limits: Limits) -> str:
    """Return the first of `drop_reasons.REASONS` that applies to the record as a whole, or an empty string."""
    if record["split"] != "train":
        return "split"
    if record["model"] != limits.model and not _accepts_any_model(record, limits):
        return "other_model"
    if not record["group_id"] and not limits.takes_single and not _is_pair(record, limits):
        return "no_group"
    if record["consent"] != "train":
        return "consent"
    if not is_sampled(record) and (limits.requirements.sampled or record["fidelity"] != "text"):
        return "fidelity"
    if not record["trainable"]:
        return _NO_OUTCOME if record["success"] is None or record["pending"] else "not_trainable"
    if not is_sampled(record):
        return ""
    if any(span["model"] != limits.model for sequence in record["sequences"] for span in sequence["spans"]):
        return "other_model"
    return ""


def _accepts_any_model(record: Mapping[str, Any], limits: Limits) -> bool:
    """Return True if text of any model may be trained on.

    Tokens sampled by a versioned policy belong to that model's learner: their ids come from its tokenizer.
    """
    return not limits.requirements.sampled and not is_sampled(record) and record["version_min"] is None


def _reason_without_tokens(record: Mapping[str, Any], restricted: Collection[str]) -> str:
    """Return the reason for excluding a record none of whose tokens are trained on."""
    return first_reason(restricted) or ("no_trained_tokens" if is_sampled(record) else "conversation_form")


def _credit(shaped: Mapping[str, Any], sequences: Sequence[TokenSequence]) -> Trajectory:
    """Return the input of the advantage rules; a step counts only the tokens that are trained on."""
    credit = trajectory_of(shaped)
    if not is_sampled(shaped):
        return credit
    counts = np.zeros(len(credit.steps), np.int64)
    for tokens in sequences:
        counts += np.bincount(tokens.steps, minlength=counts.size)
    steps = (replace(step, tokens=count) for step, count in zip(credit.steps, counts.tolist(), strict=True))
    return replace(credit, steps=tuple(steps))


def _is_pair(record: Mapping[str, Any], limits: Limits) -> bool:
    """Return True if an attempt without a group has a demonstration to be compared with."""
    preferred = limits.requirements.demonstrations == "preferred"
    return preferred and any(step["demonstration"] is not None for step in record["steps"])


def _sequences(record: Mapping[str, Any], limits: Limits, restricted: Counter[str]) -> tuple[TokenSequence, ...]:
    """Return its training sequences that have trained tokens: the sampled tokens, or its text as tokens.

    Add the number of sampled tokens that are context only to `restricted`, by their reason.
    """
    indices = step_positions(record)
    if is_sampled(record):
        sequences = [_sequence_from_tokens(sequence, limits, indices, restricted) for sequence in record["sequences"]]
        steps = [step for tokens in sequences for step in set(tokens.steps.tolist())]
        if len(set(steps)) < len(steps):
            raise Invalid("two sequences contain the response of the same step")
    elif limits.conversation_sequences is None:
        sequences = []
    else:
        spans = [span for each in record["conversations"] for span in limits.conversation_sequences(each)]
        sequences = [_sequence_from_text(span, limits, indices) for span in spans]
    return tuple(tokens for tokens in sequences if tokens.trained.size)


def _sequence_from_text(text: ResponseSpan, limits: Limits, indices: Mapping[int, int]) -> TokenSequence:
    last = max((end for _, end, _ in text.spans), default=0)
    runs = [np.arange(start, end, dtype=np.int64) for start, end, _ in text.spans]
    trained = np.concatenate([np.empty(0, np.int64), *runs])
    if any(step not in indices for _, _, step in text.spans):
        raise Invalid("a conversation names a step that the record does not have")
    steps = [np.full(end - start, indices[step]) for start, end, step in text.spans]
    ids = np.asarray(text.ids[:last], dtype=np.int64)
    if ids.size and int(ids.max()) >= limits.vocabulary:
        trained, steps = trained[:0], []  # the tokenizer has tokens that the model does not
    return TokenSequence(
        ids=ids,
        trained=trained,
        logprobs=np.full(trained.size, np.nan, np.float32),
        versions=np.full(trained.size, UNVERSIONED, np.int64),
        steps=np.concatenate([np.empty(0, np.int64), *steps]),
    )


def _sequence_from_tokens(
    sequence: Mapping[str, Any], limits: Limits, indices: Mapping[int, int], restricted: Counter[str]
) -> TokenSequence:
    ids = np.asarray(sequence["token_ids"], dtype=np.int64)
    spans, last = sequence["spans"], 1
    for span in spans:
        if not last <= span["start"] < span["end"] <= ids.size:
            raise Invalid(f"span {span['start']}:{span['end']} of a sequence of {ids.size} tokens")
        if span["version"] < 0:
            raise Invalid(f"version {span['version']} of a span")
        if span["step_index"] not in indices:
            raise Invalid(f"span of step {span['step_index']}, which the record does not have")
        is_scored = not span["restriction"] or span["restriction"] in MASKED
        if is_scored and not LEAST_TEMPERATURE <= span["temperature"] < math.inf:
            raise Invalid(f"temperature {span['temperature']} of a span of restriction '{span['restriction']}'")
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
    steps = np.repeat(np.asarray([indices[span["step_index"]] for span in spans], dtype=np.int64), sizes)
    ids = ids[:last] if spans else ids[:0]
    if not limits.requirements.sampled:
        return TokenSequence(ids, trained, logprobs, versions, steps)
    heat = np.repeat(np.asarray([span["temperature"] for span in spans], dtype=np.float32), sizes)
    kept = _kept_ids(sequence["sampling_mask"], trained.size, limits)
    tokens = TokenSequence(ids, trained, logprobs, versions, steps, None if (heat == 1.0).all() else heat, kept)
    if kept is None and not any(span["restriction"] for span in spans):
        return tokens
    reasons = token_reasons(sequence, ids[trained], kept)
    excluded = reasons[reasons != TRAINABLE]
    restricted.update({REASONS[code]: count for code, count in Counter(excluded.tolist()).items()})
    return tokens.select(reasons == TRAINABLE) if excluded.size else tokens


def _kept_ids(mask: Mapping[str, Any] | None, tokens: int, limits: Limits) -> KeptIds | None:
    if mask is None:
        return None
    counts, ids = np.asarray(mask["counts"], np.int64), np.asarray(mask["token_ids"], np.int32)
    if counts.size != tokens or (counts < 0).any() or counts.sum() != ids.size:
        raise Invalid(f"a sampling mask of {counts.size} tokens and {ids.size} ids for {tokens} sampled tokens")
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < limits.vocabulary:
        raise Invalid(f"token id outside 0..{limits.vocabulary - 1} in a sampling mask")
    return KeptIds(counts, ids)


def _split_demonstrations(
    record: Mapping[str, Any], sequences: tuple[TokenSequence, ...], limits: Limits
) -> tuple[tuple[TokenSequence, ...], tuple[TokenSequence, ...], str]:
    """Separate an attempt's own responses from the demonstrations that replace them.

    Returns:
        Its own sequences, without responses that are replaced by imitation; the demonstrations; and the reason why a
        demonstration cannot be used, or an empty string.
    """
    own, demonstrations, fault = list(sequences), [], ""
    for index, step in enumerate(record["steps"]):
        if step["demonstration"] is None:
            continue
        prompt = step["prompt_tokens"] if is_sampled(record) else None
        demonstration = _demonstration(step["demonstration"], prompt, index, sequences, limits)
        if isinstance(demonstration, TokenSequence):
            demonstrations.append(demonstration)
        else:
            fault = demonstration
        if limits.requirements.demonstrations == "imitated":
            own = [tokens.select(tokens.steps != index) for tokens in own]
    return tuple(tokens for tokens in own if tokens.trained.size), tuple(demonstrations), fault


def _is_trainable_without_demonstrations(
    record: Mapping[str, Any], sequences: tuple[TokenSequence, ...], limits: Limits
) -> bool:
    """Return True if an attempt may give a gradient although none of its demonstrations can be used."""
    if limits.requirements.demonstrations == "preferred":
        return bool(record["group_id"])
    return bool(sequences) and bool(record["success"])


def _demonstration(
    text: str, prompt: int | None, index: int, sequences: Sequence[TokenSequence], limits: Limits
) -> TokenSequence | str:
    """Return a demonstration behind its step's prompt, or one of `drop_reasons.REASONS` if it cannot be used.

    The prompt is never tokenised again: it is the beginning of the sequence that holds the step's own response.

    Args:
        text: the demonstrated response.
        prompt: tokens of the step's prompt; None: all tokens before its own response.
        index: index of the step in the record's list.
        sequences: training sequences of the attempt.
        limits: limits of the model.
    """
    assert limits.response_tokens is not None
    response = np.asarray(limits.response_tokens(text), dtype=np.int64)
    if not response.size or int(response.max()) >= limits.vocabulary:
        return "demonstration_form"
    for tokens in sequences:
        at_step = tokens.steps == index
        if not at_step.any():
            continue
        first = int(tokens.trained[at_step][0])
        end = first if prompt is None else prompt
        if not 1 <= end <= first:
            continue
        if end + response.size > limits.max_length:
            return "too_long"
        return TokenSequence(
            ids=np.concatenate([tokens.ids[:end], response]),
            trained=np.arange(end, end + response.size, dtype=np.int64),
            logprobs=np.full(response.size, np.nan, np.float32),
            versions=np.full(response.size, tokens.versions[at_step].min()),
            steps=np.full(response.size, index),
        )
    return "no_prompt"
