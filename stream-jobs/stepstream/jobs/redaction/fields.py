"""Which fields of a record are redacted, and how.

Texts, with every rule: what messages say, think and call, what tools are on offer and what they answered, errors,
comments, demonstrations.
Ids, with the e-mail rule alone, since other rules would take a long id for a secret and reward specifications, groups
and tasks are found by them: a pseudonym is the same each time, so that records still meet. `trajectory_id` and its
parent are the records' keys and `user` is who may ask for erasure: they stay.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

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
    begins: list[int] = []
    for message in messages:
        begins.append(len(texts))
        texts += texts_of(message)
    suspects = redactor.suspects(texts)
    if not suspects:
        return list(messages)
    dirty = {bisect_right(begins, at) - 1 for at in suspects}
    return [
        _redact_message(message, texts, begins[place], suspects, redactor, founds[place]) if place in dirty else message
        for place, message in enumerate(messages)
    ]


def texts_of(message: Message) -> list[str]:
    """All texts of a message, as `_redact_message` counts on them; empty where there is none."""
    texts = [message["content"], message["name"] or "", message["reasoning"] or "", message["tool_call_id"] or ""]
    for call in message["tool_calls"]:
        texts += (call["call_id"], call["name"], call["arguments"], call["result"] or "", call["error"] or "")
    return texts


def _redact_message(
    message: Message,
    texts: Sequence[str],
    begin: int,
    suspects: set[int],
    redactor: Redacts,
    found: "Counter[str]",
) -> Message:
    """The message whose texts begin at `begin`, the suspects among them redacted."""

    def clean(offset: int, *, is_id: bool = False) -> str:
        text = texts[begin + offset]
        if begin + offset not in suspects:
            return text
        return redactor.redact_id(text, found) if is_id else redactor.redact(text, found)

    result = message.copy()
    result["content"] = clean(0)
    result["name"] = clean(1) or message["name"]
    result["reasoning"] = clean(2) or message["reasoning"]
    result["tool_call_id"] = clean(3, is_id=True) or message["tool_call_id"]
    result["tool_calls"] = [
        {
            **call,
            "call_id": clean(at, is_id=True),
            "name": clean(at + 1),
            "arguments": clean(at + 2),
            "result": clean(at + 3) or call["result"],
            "error": clean(at + 4) or call["error"],
        }
        for at, call in zip(range(4, 4 + 5 * len(message["tool_calls"]), 5), message["tool_calls"], strict=True)
    ]
    return result


def redact_tools(step: Step, redactor: Redacts, found: "Counter[str]") -> None:
    """Redacts, in place, the definitions of the tools on offer: they are part of the prompt."""
    text = step["tool_definitions"]
    if text and redactor.suspects([text]):
        step["tool_definitions"] = redactor.redact(text, found)


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
