"""Redact the fields of a record.

All rules search texts: contents, reasoning, tool calls and results, tool definitions, errors, finish reasons, comments,
demonstrations. Only `ID_RULES` search ids, because other rules match long ids as secrets; pseudonyms are stable, so
redacted ids still join groups, tasks and reward specifications. `trajectory_id` and its parent (record keys), `tenant`
and `user` (needed for erasure) stay.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Protocol

from stepstream.topics.events import Feedback, Message, Step

_STEP_IDS = ("producer", "task_id", "group_id", "agent", "environment", "harness_version", "split", "model")
_FEEDBACK_TEXTS = ("category", "comment", "demonstration")
_FEEDBACK_IDS = ("producer", "name", "source", "tool_call_id")
_ids_of_step, _ids_of_feedback = itemgetter(*_STEP_IDS), itemgetter(*_FEEDBACK_IDS)
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})

Ids = tuple[str | None, ...]
"""Ids of one record; None: the id is not set."""


class TextRedactor(Protocol):
    """The methods of `Redactor` that redact fields."""

    def redact(self, text: str, found: "Counter[str]") -> str:
        """Return the redacted text; add the redactions to `found`."""
        ...

    def suspects(self, texts: Sequence[str]) -> set[int]:
        """Return the indices of the texts that `redact` may change."""
        ...

    def redact_id(self, text: str, found: "Counter[str]") -> str:
        """Return the redacted id; only `ID_RULES` apply."""
        ...

    def redact_ids(self, texts: Ids, found: "Counter[str]") -> Ids:
        """Redact a tuple of ids that recurs; return the same tuple if nothing is found."""
        ...

    def redact_word(self, text: str, found: "Counter[str]") -> str:
        """As `redact`, with a cache for short texts that recur."""
        ...


def redact_messages(
    messages: Sequence[Message], redactor: TextRedactor, counts: "Sequence[Counter[str]]"
) -> list[Message]:
    """Return the messages redacted, the same objects where nothing is found; `counts` has a counter for each."""
    texts: list[str] = []
    begins: list[int] = []
    for message in messages:
        begins.append(len(texts))
        texts += texts_of(message)
    suspects = redactor.suspects(texts)
    unknown_roles = {index for index, message in enumerate(messages) if message["role"] not in _ROLES}
    if not suspects and not unknown_roles:
        return list(messages)
    changed = unknown_roles.union(bisect_right(begins, at) - 1 for at in suspects)
    return [
        _redact_message(message, texts, begins[index], suspects, redactor, counts[index])
        if index in changed
        else message
        for index, message in enumerate(messages)
    ]


def texts_of(message: Message) -> list[str]:
    """Return all texts of a message in the order that `_redact_message` expects; empty for unset fields."""
    texts = [message["content"], message["name"] or "", message["reasoning"] or "", message["tool_call_id"] or ""]
    for call in message["tool_calls"]:
        texts += (call["call_id"], call["name"], call["arguments"], call["result"] or "", call["error"] or "")
    return texts


def _redact_message(
    message: Message,
    texts: Sequence[str],
    begin: int,
    suspects: set[int],
    redactor: TextRedactor,
    found: "Counter[str]",
) -> Message:
    """Return the message whose texts begin at index `begin`, with the suspects redacted."""

    def clean(offset: int, *, is_id: bool = False) -> str:
        text = texts[begin + offset]
        if begin + offset not in suspects:
            return text
        return redactor.redact_id(text, found) if is_id else redactor.redact(text, found)

    result = message.copy()
    if message["role"] not in _ROLES:
        result["role"] = redactor.redact_word(message["role"], found)
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


def redact_tools(step: Step, redactor: TextRedactor, found: "Counter[str]") -> None:
    """Redact the tool definitions in place; they are part of the prompt."""
    text = step["tool_definitions"]
    if text and redactor.suspects([text]):
        step["tool_definitions"] = redactor.redact(text, found)


def redact_step_fields(step: Step, redactor: TextRedactor, found: "Counter[str]") -> None:
    """Redact the fields of a step that its tokens do not contain, in place."""
    model = step["model"]
    _redact_ids(step, _STEP_IDS, _ids_of_step(step), redactor, found)
    step["finish_reason"] = redactor.redact_word(step["finish_reason"], found)
    for place, span in enumerate(step["policy_spans"]):
        clean = step["model"] if span["model"] == model else redactor.redact_id(span["model"], found)
        if clean != span["model"]:
            step["policy_spans"] = list(step["policy_spans"])
            step["policy_spans"][place] = {**span, "model": clean}


def redact_feedback_ids(feedback: Feedback, redactor: TextRedactor, found: "Counter[str]") -> None:
    """Redact the ids of feedback in place."""
    _redact_ids(feedback, _FEEDBACK_IDS, _ids_of_feedback(feedback), redactor, found)


def _redact_ids(
    record: Step | Feedback, names: Sequence[str], ids: Ids, redactor: TextRedactor, found: "Counter[str]"
) -> None:
    clean = redactor.redact_ids(ids, found)
    if clean is not ids:
        fields: Any = record
        fields.update(zip(names, clean, strict=True))


def redact_feedback(feedback: Feedback, redactor: TextRedactor, found: "Counter[str]") -> None:
    """Redact the texts of feedback in place."""
    fields: Any = feedback
    for field in _FEEDBACK_TEXTS:
        text = fields[field]
        if text:
            fields[field] = redactor.redact(text, found)
