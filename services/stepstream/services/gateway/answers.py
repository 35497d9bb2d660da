"""A model's answer, read from a whole reply or gathered from a stream, and what of it the caller did not ask for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stepstream.services.gateway.protocols.messages import record_message
from stepstream.topics.events import Message, PolicySpan, new_message, new_policy_span


@dataclass(slots=True)
class Answer:
    """What came back from one call, as far as it is recorded."""

    message: Message
    model: str = ""
    finish_reason: str = ""
    prompt_token_ids: Any = None
    token_ids: Any = None
    logprobs: list[float] | None = None
    weight_versions: Any = None
    error: str | None = None
    choices: int = 1
    """How many alternatives there were; only the first is recorded."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Which of the additions to the upstream's request the caller asked for too, and so gets back."""

    logprobs: bool
    token_ids: bool


def answer_of(body: dict[str, Any]) -> Answer:
    """The answer in the body of a chat completion."""
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, dict):
        return Answer(new_message(role="assistant"), error="malformed_response")
    return Answer(
        message=record_message(first.get("message") or {"role": "assistant"}),
        model=_text(body.get("model")),
        finish_reason=_text(first.get("finish_reason")),
        prompt_token_ids=body.get("prompt_token_ids"),
        token_ids=first.get("token_ids"),
        logprobs=_logprobs(first.get("logprobs")),
        weight_versions=first.get("weight_versions"),
        choices=len(choices) if isinstance(choices, list) else 1,
    )


def failed(error: str, model: str = "") -> Answer:
    """The answer of a call that failed."""
    return Answer(new_message(role="assistant"), model=model, finish_reason="error", error=error)


def error_class(body: Any, status: int) -> str:
    """The class of an upstream's error: what its body says, else its HTTP status."""
    error = body.get("error", body) if isinstance(body, dict) else None
    kind = error.get("type") if isinstance(error, dict) else None
    return kind if isinstance(kind, str) and kind else f"http_{status}"


def strip(body: dict[str, Any], asked: Asked) -> bool:
    """Takes out of a reply or a chunk what the caller did not ask for; False if there was nothing."""
    changed = False
    if not asked.token_ids and "prompt_token_ids" in body:
        del body["prompt_token_ids"]
        changed = True
    choices = body.get("choices")
    if not isinstance(choices, list):
        return changed
    for choice in choices:
        if not isinstance(choice, dict):
            continue
        if not asked.token_ids and "token_ids" in choice:
            del choice["token_ids"]
            changed = True
        if not asked.logprobs and choice.get("logprobs") is not None:
            choice["logprobs"] = None
            changed = True
    return changed


def policy_spans(weight_versions: Any, tokens: int, model: str) -> list[PolicySpan] | None:
    """The versions of a response's tokens; empty where the upstream tells none.

    Returns:
        None where what it tells does not cover the tokens in order without gaps: a token of unknown version.
    """
    if weight_versions is None:
        return []
    spans = []
    position = 0
    try:
        for span in weight_versions:
            start, end, version = span["start"], span["end"], span["version"]
            if start != position or end < start:
                return None
            if end > start:
                spans.append(new_policy_span(start=start, end=end, model=model, version=int(version)))
            position = end
    except (TypeError, KeyError, ValueError):
        return None
    return spans if position == tokens else None


@dataclass(slots=True)
class StreamedAnswer:
    """Gathers the chunks of a stream into the answer that they spell."""

    role: str = "assistant"
    model: str = ""
    finish_reason: str = ""
    prompt_token_ids: Any = None
    weight_versions: Any = None
    choices: int = 1
    error: str | None = None
    _content: list[str] = field(default_factory=list)
    _calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    _token_ids: list[Any] = field(default_factory=list)
    _logprobs: list[float] | None = field(default_factory=list)

    def add(self, chunk: dict[str, Any]) -> bool:
        """Takes in one chunk; True if the model said something in it."""
        if "error" in chunk:
            self.error = error_class(chunk, 200)
        if not self.model:
            self.model = _text(chunk.get("model"))
        if "prompt_token_ids" in chunk:
            self.prompt_token_ids = chunk["prompt_token_ids"] or self.prompt_token_ids
        spoke = False
        for choice in chunk.get("choices") or ():
            if choice.get("index"):
                self.choices = max(self.choices, choice["index"] + 1)
                continue
            spoke |= self._add_choice(choice)
        return spoke

    def answer(self) -> Answer:
        """What has been said so far."""
        calls = [self._calls[index] for index in sorted(self._calls)]
        raw = {"role": self.role, "content": "".join(self._content), "tool_calls": calls}
        return Answer(
            message=record_message(raw),
            model=self.model,
            finish_reason="error" if self.error else self.finish_reason,
            prompt_token_ids=self.prompt_token_ids,
            token_ids=self._token_ids or None,
            logprobs=self._logprobs,
            weight_versions=self.weight_versions,
            error=self.error,
            choices=self.choices,
        )

    def _add_choice(self, choice: dict[str, Any]) -> bool:
        token_ids = choice.get("token_ids")
        if token_ids:
            self._token_ids += token_ids
        logprobs = _logprobs(choice.get("logprobs"))
        if logprobs is None:
            if token_ids:
                self._logprobs = None  # tokens without logprobs: the whole can't be token fidelity
        elif self._logprobs is not None:
            self._logprobs += logprobs
        self.weight_versions = choice.get("weight_versions") or self.weight_versions
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        delta = choice.get("delta")
        return bool(token_ids) | (isinstance(delta, dict) and self._add_delta(delta))

    def _add_delta(self, delta: dict[str, Any]) -> bool:
        self.role = delta.get("role") or self.role
        content = delta.get("content")
        if content:
            self._content.append(content)
        calls = delta.get("tool_calls")
        for position, call in enumerate(calls or ()):
            self._add_call(call.get("index", position), call)
        return bool(content or calls)

    def _add_call(self, index: int, part: dict[str, Any]) -> None:
        call = self._calls.setdefault(index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call["id"] = part.get("id") or call["id"]
        function = part.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""


def _logprobs(logprobs: Any) -> list[float] | None:
    if not isinstance(logprobs, dict):
        return None
    content: Sequence[Any] | None = logprobs.get("content")
    if content is None:
        return None
    try:
        return [token["logprob"] for token in content]
    except (TypeError, KeyError):
        return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
