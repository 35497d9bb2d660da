"""Collect the chunks of a streamed chat completion into an answer. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stepstream.services.gateway.protocols.base import Answer, error_class
from stepstream.services.gateway.protocols.messages import count, record_message, split_thinking
from stepstream.topics.events import Message

_EMPTY = {"function": {"name": "", "arguments": ""}, "custom": {"name": "", "input": ""}}


@dataclass(slots=True)
class _Choice:
    """One choice so far."""

    role: str = "assistant"
    finish_reason: str = ""
    weight_versions: Any = None
    sampling_mask: Any = None
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    function_call: dict[str, Any] | None = None
    """The older form of one call per message."""
    token_ids: list[Any] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)

    def add(self, choice: dict[str, Any]) -> bool:
        """Add its part of one chunk; return True if it contains output of the model."""
        token_ids = choice.get("token_ids")
        if token_ids:
            self.token_ids += token_ids
        logprobs = token_logprobs(choice.get("logprobs"))
        if logprobs is None:
            if token_ids:
                self.logprobs = None  # tokens without logprobs: the answer cannot have fidelity `token`
        elif self.logprobs is not None:
            self.logprobs += logprobs
        self.weight_versions = choice.get("weight_versions") or self.weight_versions
        self.sampling_mask = choice.get("sampling_mask") or self.sampling_mask
        finish_reason = choice.get("finish_reason")
        if finish_reason and isinstance(finish_reason, str):
            self.finish_reason = finish_reason
        delta = choice.get("delta")
        return bool(token_ids) | (isinstance(delta, dict) and self._add_delta(delta))

    def message(self) -> Message:
        """Return the message so far."""
        raw = {
            "role": self.role,
            "content": "".join(self.content),
            "tool_calls": [self.calls[index] for index in sorted(self.calls)] or None,
            "function_call": self.function_call,
            "reasoning": "".join(self.reasoning) or None,
        }
        return record_message(raw)

    def _add_delta(self, delta: dict[str, Any]) -> bool:
        self.role = delta.get("role") or self.role
        content = delta.get("content") or delta.get("refusal")
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        if content and not isinstance(content, str):
            content, thinking = split_thinking(content if isinstance(content, list) else [content])
            reasoning = thinking or reasoning
        if content:
            self.content.append(content)
        if isinstance(reasoning, str) and reasoning:
            self.reasoning.append(reasoning)
        calls = delta.get("tool_calls")
        for position, call in enumerate(calls or ()):
            index = call.get("index")
            self._add_call(index if isinstance(index, int) else position, call)
        function_call = delta.get("function_call")
        if function_call:
            self.function_call = self.function_call or {"name": "", "arguments": ""}
            _append(self.function_call, function_call)
        return bool(content or calls or reasoning or function_call)

    def _add_call(self, index: int, part: dict[str, Any]) -> None:
        kind = "custom" if "custom" in part or part.get("type") == "custom" else "function"
        call = self.calls.setdefault(index, {"id": ""})
        call["id"] = part.get("id") or call["id"]
        _append(call.setdefault(kind, dict(_EMPTY[kind])), part.get(kind) or {})


def _append(texts: dict[str, str], part: dict[str, Any]) -> None:
    """Append a part's fields to the texts of the same names."""
    for name in texts:
        texts[name] += part.get(name) or ""


@dataclass(slots=True)
class ChatStream:
    """Collects the chunks of one stream."""

    model: str = ""
    response_id: str = ""
    prompt_token_ids: Any = None
    prefix: str = ""
    prefix_reason: str = ""
    error: str | None = None
    _first: _Choice = field(default_factory=_Choice)
    _alternatives: dict[int, _Choice] = field(default_factory=dict)
    _usage: Any = None

    def add(self, event: dict[str, Any]) -> bool:
        """Add one chunk; return True if it contains output of the model."""
        if "error" in event:
            self.error = error_class(event, 200)
        if not self.model:
            model, response_id = event.get("model"), event.get("id")
            self.model = model if isinstance(model, str) else ""
            self.response_id = response_id if isinstance(response_id, str) else ""
        if "prompt_token_ids" in event:
            self.prompt_token_ids = event["prompt_token_ids"] or self.prompt_token_ids
        if "stepstream_prefix" in event:
            self.prefix = text_of(event["stepstream_prefix"])
            self.prefix_reason = text_of(event.get("stepstream_prefix_reason"))
        if event.get("usage"):
            self._usage = event["usage"]
        has_output = False
        for choice in event.get("choices") or ():
            index = choice.get("index")
            has_output |= (self._first if not index else self._alternative(index)).add(choice)
        return has_output

    def answer(self) -> Answer:
        """Return the answer so far."""
        usage = self._usage if isinstance(self._usage, dict) else {}
        answer = self._answer(self._first)
        answer.alternatives = [self._answer(self._alternatives[index]) for index in sorted(self._alternatives)]
        answer.usage_prompt_tokens = count(usage.get("prompt_tokens"))
        answer.usage_response_tokens = count(usage.get("completion_tokens"))
        return answer

    def _alternative(self, index: Any) -> _Choice:
        if not isinstance(index, int):
            raise TypeError("the index of a choice must be an integer")
        return self._alternatives.setdefault(index, _Choice())

    def _answer(self, choice: _Choice) -> Answer:
        return Answer(
            message=choice.message(),
            model=self.model,
            finish_reason="error" if self.error else choice.finish_reason,
            response_id=self.response_id,
            prompt_token_ids=self.prompt_token_ids,
            token_ids=choice.token_ids or None,
            logprobs=choice.logprobs,
            weight_versions=choice.weight_versions,
            sampling_mask=choice.sampling_mask,
            prefix=self.prefix,
            prefix_reason=self.prefix_reason,
            error=self.error,
        )


def text_of(value: Any) -> str:
    """Return a text; any other value is empty."""
    return value if isinstance(value, str) else ""


def token_logprobs(logprobs: Any) -> list[float] | None:
    """Return each token's logprob in a `logprobs` object, OpenAI's or a worker's; None if it has none."""
    if not isinstance(logprobs, dict):
        return None
    values = logprobs.get("values")
    if isinstance(values, list):
        return values
    content: Sequence[Any] | None = logprobs.get("content")
    if content is None:
        return None
    try:
        return [token["logprob"] for token in content]
    except (TypeError, KeyError):
        return None
