"""Recognise two records of one model call: the gateway's, and the agent's own OpenTelemetry. They are one step.

The gateway's record is the richer one: it may have tokens. If it comes first, the span's is left out, and what only
the span says becomes feedback: errors and durations of tools, the cost, and the end of the run. If it comes second, it
takes the index of the span's, and names it as superseded. Of their consents, the stricter one counts in either order: a
later record that permits less supersedes the earlier one, without content if it permits nothing.

State: the calls of each trajectory by name (`Step.call_ids`), until their second record has come, for `KEPT_DAYS`.
"""

import hashlib
import struct
import uuid
from typing import NamedTuple

from stepstream.jobs.governance.consent import strictest_of
from stepstream.jobs.governance.state import CALL, DAY_US, day, trajectory_digest
from stepstream.jobs.runtime.state import Changes
from stepstream.topics.call_names import is_response_name
from stepstream.topics.events import Consent, Feedback, Step, new_feedback, new_message
from stepstream.topics.ids import derived_id

_APART_US = 3600 * 1_000_000
"""Largest difference of the times of two records of a call: their machines' clocks differ."""
KEPT_DAYS = 2
"""Days for which the second record of a call is expected: a gateway's spool may wait for Kafka."""
WITHHELD = -1
"""Index of a record that consent withheld."""
_RECORD = struct.Struct(">Bi16s")
_POORER, _ANALYSE = 1, 2
"""Bits of a saved record: it is of OpenTelemetry; its consent is `analyse`. Earlier releases saved the first only."""
_SEVERAL = _RECORD.pack(4, 0, bytes(16))
"""Value of a response's id that several calls have, as a constant of a server: it names none of them."""


class OtherRecord(NamedTuple):
    """The earlier record of a call."""

    step_index: int
    """Index of its step, or `WITHHELD`."""
    source_event_id: str
    consent: Consent


def take_other_record(step: Step, changes: Changes) -> OtherRecord | None:
    """Return the other record of a step's call, if it came before; a third record of the call is a step again."""
    names = _keys(step, (-_APART_US, _APART_US))
    for keys in names:
        values = [value for key in keys if (value := changes.get(key)) is not None]
        for value in values if _SEVERAL not in values else ():
            bits, index, source = _RECORD.unpack(value)
            if bool(bits & _POORER) != is_poorer(step):
                _delete(names, changes)
                consent: Consent = "none" if index == WITHHELD else "analyse" if bits & _ANALYSE else "train"
                return OtherRecord(index, str(uuid.UUID(bytes=source)), consent)
    return None


def add_record(step: Step, index: int, changes: Changes) -> None:
    """Remember the first record of a call; `index` is its step's final one."""
    bits = _POORER * is_poorer(step) | _ANALYSE * (step["consent"] == "analyse")
    value = _RECORD.pack(bits, index, uuid.UUID(step["event_id"]).bytes)
    for name, keys in zip(step["call_ids"], _keys(step, (0, -_APART_US, _APART_US)), strict=True):
        is_shared = is_response_name(name) and any(changes.get(key) not in (None, value) for key in keys)
        changes.put(keys[0], _SEVERAL if is_shared else value)


def is_poorer(step: Step) -> bool:
    """Return True for a record of OpenTelemetry, beside which a gateway's is the richer one."""
    return step["fidelity"] == "span"


def is_left_out(step: Step, other: OtherRecord) -> bool:
    """Return True if the earlier record of a step's call makes the step unnecessary: it is richer, or was withheld."""
    if other.step_index == WITHHELD:
        return True
    return is_poorer(step) and strictest_of(step["consent"], other.consent) == other.consent


def in_place_of(step: Step, other: OtherRecord) -> Step:
    """Return a step as it supersedes the published record of its call: at its index, with the stricter consent."""
    consent = strictest_of(step["consent"], other.consent)
    index = other.step_index if step["counted_by"] is None else step["step_index"]
    placed: Step = {**step, "consent": consent, "step_index": index}
    return placed if consent != "none" else _without_content(placed)


def _without_content(step: Step) -> Step:
    """Return a step with who made the call and when, and nothing of what was said."""
    return {
        **step,
        "fidelity": "span",
        "prompt_shared_messages": 0,
        "prompt_shared_tokens": 0,
        "prompt_shared_digest": None,
        "messages": [],
        "prompt_token_ids": [],
        "tool_definitions": None,
        "response": new_message(role="assistant"),
        "response_token_ids": [],
        "response_logprobs": [],
        "loss_mask": [],
        "policy_spans": [],
        "sampling_mask": None,
        "error": None,
    }


def facts_of(step: Step, index: int, job: str) -> list[Feedback]:
    """Return what a span's record says beyond the gateway's, as feedback about step `index`."""
    facts: list[tuple[str, float | None, str | None, str | None]] = []
    for call in step["response"]["tool_calls"]:
        if call["duration_ms"] is not None:
            facts.append(("tool_duration_ms", call["duration_ms"], None, call["call_id"]))
        if call["error"] is not None:
            facts.append(("tool_error", None, call["error"], call["call_id"]))
    if step["cost_usd"] is not None:
        facts.append(("cost_usd", step["cost_usd"], None, None))
    if step["end"] != "open":
        facts.append(("end", None, None, None))
    return [
        new_feedback(
            event_id=derived_id(job, step["event_id"], name, call_id or "", tenant=step["tenant"]),
            occurred_at_us=step["occurred_at_us"],
            producer=step["producer"],
            tenant=step["tenant"],
            consent=step["consent"],
            user=step["user"],
            trajectory_id=step["trajectory_id"],
            step_index=None if name == "end" else index,
            tool_call_id=call_id,
            name=name,
            value=value,
            comment=comment,
            source="opentelemetry",
            end=step["end"] if name == "end" else "open",
        )
        for name, value, comment, call_id in facts
    ]


def _keys(step: Step, offsets_us: tuple[int, ...]) -> list[list[bytes]]:
    """Return the keys of each name of a call, on the days at these offsets from its time."""
    days = dict.fromkeys(day((step["occurred_at_us"] + offset) // DAY_US) for offset in offsets_us)
    names = [_digest(name) for name in step["call_ids"]]
    trajectory = trajectory_digest(step) if names else b""
    return [[CALL + each + trajectory + name for each in days] for name in names]


def _delete(names: list[list[bytes]], changes: Changes) -> None:
    for key in (key for keys in names for key in keys):
        if changes.get(key) != _SEVERAL:
            changes.delete(key)


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=12).digest()
