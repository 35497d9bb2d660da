"""A streamed chat completion, gathered into the answer that it spells."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stepstream.services.gateway.protocols.base import Answer
from stepstream.services.gateway.protocols.failures import error_class
from stepstream.services.gateway.protocols.messages import count, record_message


@dataclass(slots=True)
class ChatStream:
    """Gathers the chunks of a stream."""

    role: str = "assistant"
    model: str = ""
    finish_reason: str = ""
    response_id: str = ""
    prompt_token_ids: Any = None
    weight_versions: Any = None
    choices: int = 1
    error: str | None = None
    _content: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    _token_ids: list[Any] = field(default_factory=list)
    _logprobs: list[float] | None = field(default_factory=list)
    _usage: Any = None

    def add(self, event: dict[str, Any]) -> bool:
        """Takes in one chunk; True if the model said something in it."""
        if "error" in event:
            self.error = error_class(event, 200)
        if not self.model:
            model, response_id = event.get("model"), event.get("id")
            self.model = model if isinstance(model, str) else ""
            self.response_id = response_id if isinstance(response_id, str) else ""
        if "prompt_token_ids" in event:
            self.prompt_token_ids = event["prompt_token_ids"] or self.prompt_token_ids
        if event.get("usage"):
            self._usage = event["usage"]
        spoke = False
        for choice in event.get("choices") or ():
            if choice.get("index"):
                self.choices = max(self.choices, choice["index"] + 1)
                continue
            spoke |= self._add_choice(choice)
        return spoke

    def answer(self) -> Answer:
        """What has been said so far."""
        raw = {
            "role": self.role,
            "content": "".join(self._content),
            "tool_calls": [self._calls[index] for index in sorted(self._calls)],
            "reasoning": "".join(self._reasoning) or None,
        }
        usage = self._usage if isinstance(self._usage, dict) else {}
        return Answer(
            message=record_message(raw),
            model=self.model,
            finish_reason="error" if self.error else self.finish_reason,
            response_id=self.response_id,
            prompt_token_ids=self.prompt_token_ids,
            token_ids=self._token_ids or None,
            logprobs=self._logprobs,
            weight_versions=self.weight_versions,
            error=self.error,
            choices=self.choices,
            usage_prompt_tokens=count(usage.get("prompt_tokens")),
            usage_response_tokens=count(usage.get("completion_tokens")),
        )

    def _add_choice(self, choice: dict[str, Any]) -> bool:
        token_ids = choice.get("token_ids")
        if token_ids:
            self._token_ids += token_ids
        logprobs = token_logprobs(choice.get("logprobs"))
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
        content = delta.get("content") or delta.get("refusal")
        if content:
            self._content.append(content)
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            self._reasoning.append(reasoning)
        calls = delta.get("tool_calls")
        for position, call in enumerate(calls or ()):
            self._add_call(call.get("index", position), call)
        return bool(content or calls or reasoning)

    def _add_call(self, index: int, part: dict[str, Any]) -> None:
        call = self._calls.setdefault(index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call["id"] = part.get("id") or call["id"]
        function = part.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""


def token_logprobs(logprobs: Any) -> list[float] | None:
    """The logprob of each token of a `logprobs` object; None where it is none."""
    if not isinstance(logprobs, dict):
        return None
    content: Sequence[Any] | None = logprobs.get("content")
    if content is None:
        return None
    try:
        return [token["logprob"] for token in content]
    except (TypeError, KeyError):
        return None
