"""Read chat completions. Pure."""

from collections.abc import Sequence
from typing import Any

from stepstream.sdk.clients.call import Answer, AnswerStream, Json, ToolCallParts


class ChatCompletions:
    """OpenAI's chat completions, with the token ids of vLLM and Stepstream's workers."""

    def prompt(self, request: Json) -> list[Any]:
        """Return the messages of a request."""
        return list(request.get("messages") or ())

    def max_tokens(self, request: Json) -> Any:
        """Return the token limit of a request."""
        return request.get("max_completion_tokens") or request.get("max_tokens")

    def answer(self, reply: Json) -> Answer:
        """Read a completion; of several choices the first counts."""
        choice = reply["choices"][0]
        answer = _answer(reply, choice.get("message") or {}, choice.get("finish_reason"))
        answer.token_ids = choice.get("token_ids") or ()
        answer.logprobs = _logprobs(choice)
        answer.policy_versions = choice.get("weight_versions") or ()
        return answer

    def stream(self) -> AnswerStream:
        """Return an empty stream."""
        return ChatStream()


class ChatStream:
    """Collects chunks; of several choices the first counts."""

    def __init__(self) -> None:
        self._reply: Json = {}
        self._finish_reason = ""
        self._texts: dict[str, list[str]] = {"content": [], "refusal": [], "reasoning": []}
        self._calls: dict[int, ToolCallParts] = {}
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._versions: Sequence[Json] = ()

    def add(self, event: Json) -> bool:
        """Add a chunk; return True if it has output of the model."""
        self._reply |= {name: value for name, value in event.items() if value is not None}
        choice = next((choice for choice in event.get("choices") or () if not choice.get("index")), None)
        if choice is None:
            return False
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        self._token_ids += choice.get("token_ids") or ()
        self._logprobs += _logprobs(choice)
        self._versions = choice.get("weight_versions") or self._versions
        return self._add_delta(choice.get("delta") or {})

    def answer(self) -> Answer | None:
        """Return the answer so far."""
        if not self._reply:
            return None
        message: Json = {name: "".join(texts) for name, texts in self._texts.items()}
        message["reasoning"] = message["reasoning"] or None
        message["tool_calls"] = [self._calls[index].call() for index in sorted(self._calls)]
        answer = _answer(self._reply, {"role": "assistant", **message}, self._finish_reason)
        answer.token_ids, answer.logprobs, answer.policy_versions = self._token_ids, self._logprobs, self._versions
        return answer

    def _add_delta(self, delta: Json) -> bool:
        parts = {**delta, "reasoning": delta.get("reasoning") or delta.get("reasoning_content")}
        for name, texts in self._texts.items():
            if parts.get(name):
                texts.append(parts[name])
        for number, raw in enumerate(delta.get("tool_calls") or ()):
            index = raw.get("index")
            call = self._calls.setdefault(number if index is None else index, ToolCallParts())
            inner = raw.get("function") or raw.get("custom") or {}
            call.call_id = raw.get("id") or call.call_id
            call.name = inner.get("name") or call.name
            call.arguments.append(inner.get("arguments") or inner.get("input") or "")
        return bool(delta.get("tool_calls")) or any(parts.get(name) for name in self._texts)


def _answer(reply: Json, message: Json, finish_reason: str | None) -> Answer:
    usage = reply.get("usage") or {}
    return Answer(
        message,
        finish_reason or "",
        reply.get("model") or "",
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
        reply.get("prompt_token_ids") or (),
    )


def _logprobs(choice: Json) -> list[float]:
    return [token["logprob"] for token in (choice.get("logprobs") or {}).get("content") or ()]
