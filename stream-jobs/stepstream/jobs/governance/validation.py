"""Validate steps and feedback against the protocol. Pure; errors never contain the record's content."""

import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from stepstream.jobs.runtime.record import InvalidRecord
from stepstream.topics.encoded_array import EncodedArray

_POSITIVE_LOGPROB = 1e-4
"""Largest logprob that rounding can cause for a certain token."""
_EARLIEST_US = 946_684_800_000_000
"""2000-01-01. An earlier time is a unit error."""
_LONGEST_ID = 512
LARGEST_AMOUNT = 1e15
"""Largest value, time or price. A larger one is a unit error, and sums could overflow."""


def check_envelope(record: Mapping[str, Any], key: bytes | None, now_us: int, max_future_us: int) -> None:
    """Check the key, the identity and the time of a step or feedback.

    Raises:
        InvalidRecord: `wrong_key` or `invalid`.
    """
    trajectory_id = record["trajectory_id"]
    if not trajectory_id or len(trajectory_id) > _LONGEST_ID:
        raise InvalidRecord("invalid", f"trajectory_id must have 1 to {_LONGEST_ID} characters")
    if key is None or key != trajectory_id.encode("utf-8", "surrogatepass"):
        raise InvalidRecord("wrong_key", "the record's key is not its trajectory_id")
    # A NUL divides tenant and name in keys.
    _require("\0" not in record["tenant"], "tenant has a NUL character")
    _check_uuid("event_id", record["event_id"])
    _require(record["governed"] is None, "governed is set: only the govern job may do that")
    occurred = record["occurred_at_us"]
    _require(occurred >= _EARLIEST_US, "occurred_at_us is before the year 2000: is it in microseconds?")
    _require(occurred <= now_us + max_future_us, "occurred_at_us is in the future: check the producer's clock")


def check_step(step: Mapping[str, Any]) -> None:
    """Check the fields of a step.

    Raises:
        InvalidRecord: `invalid`, with the field and its fault.
    """
    _require(step["step_index"] >= 0, "step_index is negative")
    _require(
        step["parent_step_index"] is None or step["parent_trajectory_id"] is not None,
        "parent_step_index is set without parent_trajectory_id",
    )
    shared = step["prompt_shared_tokens"]
    _require(shared >= 0 and step["prompt_shared_messages"] >= 0, "a shared prefix has a negative length")
    _require(
        (step["prompt_shared_digest"] is not None) == (shared > 0), "prompt_shared_digest must go with shared tokens"
    )
    _require(shared == 0 or step["step_index"] > 0, "the first step shares a prompt with no step")
    ids, logprobs = step["response_token_ids"], step["response_logprobs"]
    _require(len(logprobs) == len(ids), f"{len(ids)} response tokens but {len(logprobs)} logprobs")
    _require(
        not step["loss_mask"] or len(step["loss_mask"]) == len(ids), "loss_mask has another length than the response"
    )
    _check_logprobs(list(logprobs))
    _require(not _has_negative(ids), "a response token id is negative")
    _require(not _has_negative(step["prompt_token_ids"]), "a prompt token id is negative")
    _check_spans(step["policy_spans"], len(ids))
    _check_mask(step["sampling_mask"], len(ids))
    _check_amount("cost_usd", step["cost_usd"])
    _check_amount("duration_ms", step["duration_ms"])
    for call in step["response"]["tool_calls"]:
        _check_amount("duration_ms of a tool call", call["duration_ms"])
    if step["fidelity"] == "token":
        _require(len(ids) == 0 or bool(step["policy_spans"]), "fidelity `token` needs policy_spans")
    else:
        _require(not ids and not step["prompt_token_ids"], f"fidelity `{step['fidelity']}` must carry no tokens")


def check_feedback(feedback: Mapping[str, Any]) -> None:
    """Check the fields of feedback.

    Raises:
        InvalidRecord: `invalid`, with the field and its fault.
    """
    _require(bool(feedback["name"]), "name is empty")
    _check_amount("value", feedback["value"])
    _require(feedback["step_index"] is None or feedback["step_index"] >= 0, "step_index is negative")
    last = feedback["last_step_index"]
    _require(last is None or (last >= 0 and feedback["end"] != "open"), "last_step_index must be 0 or more, with `end`")
    if feedback["retracts"] is not None:
        _check_uuid("retracts", feedback["retracts"])


def _check_logprobs(logprobs: list[float]) -> None:
    # The sum is finite only if every term is: the terms are single precision, so finite ones cannot overflow.
    _require(math.isfinite(sum(logprobs)), "a logprob is not finite")
    _require(not logprobs or max(logprobs) <= _POSITIVE_LOGPROB, "a logprob is positive")


def _has_negative(ids: Sequence[int]) -> bool:
    if isinstance(ids, EncodedArray):
        return ids.has_negative()
    return bool(ids) and min(ids) < 0


def _check_amount(field: str, amount: float | None) -> None:
    _require(amount is None or abs(amount) <= LARGEST_AMOUNT, f"{field} is not finite, or beyond {LARGEST_AMOUNT:g}")


def _check_spans(spans: list[Mapping[str, Any]], tokens: int) -> None:
    end = 0
    for span in spans:
        _require(span["start"] == end and span["end"] > end, "policy_spans have gaps, overlaps or are out of order")
        _require(span["version"] >= 0, "a policy span has a negative version")
        end = span["end"]
    _require(not spans or end == tokens, "policy_spans do not cover the response tokens")


def _check_mask(mask: Mapping[str, Any] | None, tokens: int) -> None:
    if mask is None:
        return
    counts = list(mask["counts"])
    _require(len(counts) == tokens, f"{tokens} response tokens but a sampling_mask of {len(counts)}")
    _require(not _has_negative(counts) and not _has_negative(mask["token_ids"]), "sampling_mask has a negative number")
    _require(sum(counts) == len(mask["token_ids"]), "the counts of sampling_mask are not those of its token_ids")


def _check_uuid(field: str, text: str) -> None:
    try:
        canonical = str(uuid.UUID(text)) == text.lower()
    except ValueError:
        canonical = False
    _require(canonical, f"{field} is not a UUID")


def _require(is_valid: bool, reason: str) -> None:
    if not is_valid:
        raise InvalidRecord("invalid", reason)
