"""Which fields of a record are redacted, and how.

Texts, with every rule: what messages say, think and call, what tools are on offer and what they answered, errors, why a
response ended, comments, demonstrations. Ids, with the rules that know a value by its form (`ID_RULES`), since the
others would take a long id for a secret and reward specifications, groups and tasks are found by them: a pseudonym is
the same each time, so that records still meet. `trajectory_id` and its parent are the records' keys, `tenant` and
`user` are who may ask for erasure: they stay.
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
"""Ids of one record; None: it has none of that kind."""


class Redacts(Protocol):
    """What `Redactor` does."""

    def redact(self, text: str, found: "Counter[str]") -> str:
        """The text without what must not be kept."""
        ...

    def suspects(self, texts: Sequence[str]) -> set[int]:
        """Which of the texts `redact` may change."""
        ...

    def redact_id(self, text: str, found: "Counter[str]") -> str:
        """The id without what must not be kept and is known by its form."""
        ...

    def redact_ids(self, texts: Ids, found: "Counter[str]") -> Ids:
        """As `redact_id`, for ids that come together again and again; the same tuple where nothing was found."""
        ...

    def redact_word(self, text: str, found: "Counter[str]") -> str:
        """As `redact`, quicker for a short text that comes again and again."""
        ...


def redact_messages(messages: Sequence[Message], redactor: Redacts, founds: "Sequence[Counter[str]]") -> list[Message]:
    """The messages with all their texts redacted, the same objects where nothing was found; each has its own counts."""
    texts: list[str] = []
    begins: list[int] = []
    for message in messages:
        begins.append(len(texts))
        texts += texts_of(message)
    suspects = redactor.suspects(texts)
    strange = {place for place, message in enumerate(messages) if message["role"] not in _ROLES}
    if not suspects and not strange:
        return list(messages)
    dirty = strange.union(bisect_right(begins, at) - 1 for at in suspects)
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


def redact_tools(step: Step, redactor: Redacts, found: "Counter[str]") -> None:
    """Redacts, in place, the definitions of the tools on offer: they are part of the prompt."""
    text = step["tool_definitions"]
    if text and redactor.suspects([text]):
        step["tool_definitions"] = redactor.redact(text, found)


def redact_step_fields(step: Step, redactor: Redacts, found: "Counter[str]") -> None:
    """Redacts what a step says beside its messages, in place; of these fields no token tells."""
    model = step["model"]
    _redact_ids(step, _STEP_IDS, _ids_of_step(step), redactor, found)
    step["finish_reason"] = redactor.redact_word(step["finish_reason"], found)
    for place, span in enumerate(step["policy_spans"]):
        clean = step["model"] if span["model"] == model else redactor.redact_id(span["model"], found)
        if clean != span["model"]:
            step["policy_spans"] = list(step["policy_spans"])
            step["policy_spans"][place] = {**span, "model": clean}


def redact_feedback_ids(feedback: Feedback, redactor: Redacts, found: "Counter[str]") -> None:
    """Redacts the ids of feedback in place."""
    _redact_ids(feedback, _FEEDBACK_IDS, _ids_of_feedback(feedback), redactor, found)


def _redact_ids(
    record: Step | Feedback, names: Sequence[str], told: Ids, redactor: Redacts, found: "Counter[str]"
) -> None:
    clean = redactor.redact_ids(told, found)
    if clean is not told:
        fields: Any = record
        fields.update(zip(names, clean, strict=True))


def redact_feedback(feedback: Feedback, redactor: Redacts, found: "Counter[str]") -> None:
    """Redacts the texts of feedback in place."""
    fields: Any = feedback
    for field in _FEEDBACK_TEXTS:
        text = fields[field]
        if text:
            fields[field] = redactor.redact(text, found)
