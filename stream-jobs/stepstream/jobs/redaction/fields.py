"""Which fields of a record are redacted, and how.

Texts, with every rule: what messages say, think and call, what tools answered, errors, comments, demonstrations.
Ids, with the e-mail rule alone, since other rules would take a long id for a secret and reward specifications, groups
and tasks are found by them: a pseudonym is the same each time, so that records still meet. `trajectory_id` and its
parent are the records' keys and `user` is who may ask for erasure: they stay.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol, cast

from stepstream.topics.events import Feedback, Message, Step

_STEP_IDS = ("task_id", "group_id", "agent", "environment", "harness_version", "model")
_FEEDBACK_TEXTS = ("category", "comment", "demonstration")
_FEEDBACK_IDS = ("name", "tool_call_id")


class Redacts(Protocol):
    """What `Redactor` does."""

    def redact(self, text: str, found: "Counter[str]") -> str:
        """The text without what must not be kept."""
        ...

    def suspects(self, texts: Sequence[str]) -> set[int]:
        """Which of the texts `redact` may change."""
        ...

    def redact_id(self, text: str, found: "Counter[str]") -> str:
        """The id without e-mail addresses."""
        ...


def redact_messages(messages: Sequence[Message], redactor: Redacts, founds: "Sequence[Counter[str]]") -> list[Message]:
    """The messages with all their texts redacted, the same objects where nothing was found; each has its own counts."""
    texts: list[str] = []
    ends: list[int] = []
    for message in messages:
        texts += texts_of(message)
        ends.append(len(texts))
    dirty = {bisect_right(ends, index) for index in redactor.suspects(texts)}
    return [
        _redact_message(message, redactor, founds[place]) if place in dirty else message
        for place, message in enumerate(messages)
    ]


def texts_of(message: Message) -> list[str]:
    """All texts of a message; empty where there is none."""
    texts = [message["content"], message["name"] or "", message["reasoning"] or "", message["tool_call_id"] or ""]
    for call in message["tool_calls"]:
        texts += (call["call_id"], call["name"], call["arguments"], call["result"] or "", call["error"] or "")
    return texts


def _redact_message(message: Message, redactor: Redacts, found: "Counter[str]") -> Message:
    """The message with all its texts redacted; the same object where nothing was found."""
    changed: dict[str, Any] = {}
    fields: Any = message
    for field in ("content", "name", "reasoning"):
        text = fields[field]
        if text and (redacted := redactor.redact(text, found)) is not text:
            changed[field] = redacted
    if (call_id := message["tool_call_id"]) and (redacted := redactor.redact_id(call_id, found)) is not call_id:
        changed["tool_call_id"] = redacted
    if message["tool_calls"]:
        changed["tool_calls"] = [
            {
                **call,
                "call_id": redactor.redact_id(call["call_id"], found),
                "name": redactor.redact(call["name"], found),
                "arguments": redactor.redact(call["arguments"], found),
                "result": call["result"] and redactor.redact(call["result"], found),
                "error": call["error"] and redactor.redact(call["error"], found),
            }
            for call in message["tool_calls"]
        ]
    return cast(Message, message | changed) if changed else message


def redact_ids(record: Step | Feedback, redactor: Redacts, found: "Counter[str]") -> None:
    """Redacts the ids of a record in place."""
    fields: Any = record
    for field in _STEP_IDS if "step_index" in record and "response" in record else _FEEDBACK_IDS:
        text = fields[field]
        if text and "@" in text:
            fields[field] = redactor.redact_id(text, found)


def redact_feedback(feedback: Feedback, redactor: Redacts, found: "Counter[str]") -> None:
    """Redacts the texts of feedback in place."""
    fields: Any = feedback
    for field in _FEEDBACK_TEXTS:
        text = fields[field]
        if text:
            fields[field] = redactor.redact(text, found)
