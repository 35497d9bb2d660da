"""One step: what the agent saw, what it answered, what its tools gave back."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stepstream.sdk.context import Block, enter, leave, steps
from stepstream.sdk.messages import TokenSpan, attach, each_of, message_of, plain, text_of, tool_call_of
from stepstream.sdk.recorder import quiet
from stepstream.topics.events import (
    Message,
    Sampling,
    ToolCall,
    TrajectoryEnd,
    new_message,
    new_sampling,
    new_step,
    new_tool_call,
)
from stepstream.topics.ids import new_event_id, now_us

if TYPE_CHECKING:
    from stepstream.sdk.trajectory import Trajectory

log = logging.getLogger(__name__)


class Step:
    """A context manager, sync or async; the step is recorded when its block ends, an exception as its error.

    No method raises. Make it with `Trajectory.step`.
    """

    def __init__(
        self,
        trajectory: Trajectory,
        messages: Any,
        model: str,
        sampling: Mapping[str, Any],
        tools: Iterable[Any] = (),
    ) -> None:
        self.index = -1
        """Position in the trajectory; known inside the block."""
        self.trajectory = trajectory
        """That it is a step of."""
        self._model = model
        self._given = messages
        self._offered = tools
        self._tools = ""
        self._sampling_given = sampling
        self._messages: list[Message] = []
        self._response: Message | None = None
        self._used: list[ToolCall] = []
        self._tokens: TokenSpan | None = None
        self._fields: dict[str, Any] = {}
        self._finish_reason = ""
        self._end: TrajectoryEnd = "open"
        self._remote = False
        self._first_token_ms: float | None = None
        self._event_id = ""
        self._started = 0.0
        self._started_us = 0
        self._block: Block[Step] | None = None

    @quiet
    def messages(self, *messages: Any) -> None:
        """Adds messages to the prompt: dicts or objects in OpenAI's shape, or texts of the user."""
        if self.trajectory.recorded and self._runs("messages"):
            self._messages += [message_of(message) for message in messages]

    @quiet
    def response(
        self,
        message: Any = "",
        *,
        tool_calls: Iterable[Any] = (),
        finish_reason: str | None = "stop",
        model: str | None = "",
        prompt_token_ids: Sequence[int] = (),
        token_ids: Sequence[int] = (),
        logprobs: Sequence[float] = (),
        policy_version: int = -1,
        prompt_tokens: int | None = None,
        response_tokens: int | None = None,
        cost_usd: float | None = None,
    ) -> None:
        """What the agent answered.

        Args:
            message: a text, or a dict or object in the shape of OpenAI's assistant messages.
            tool_calls: more calls, in OpenAI's shape or as `{"id", "name", "arguments"}`.
            finish_reason: `stop`, `length`, `tool_calls`, `error`.
            model: that answered, if it is another than was asked.
            prompt_token_ids: of the whole prompt. With `token_ids`, `logprobs` and `policy_version`, the step has
                fidelity `token`; without one of them, `text`.
            token_ids: of the response, with its end-of-turn token where it was sampled.
            logprobs: natural logarithm, of each response token.
            policy_version: version of the model that sampled it.
            prompt_tokens: their number, as the upstream counted them.
            response_tokens: their number, as the upstream counted them.
            cost_usd: price of the call.
        """
        if not self.trajectory.recorded or not self._runs("response"):
            return
        message = plain(message)
        if isinstance(message, Mapping) and "choices" in message:
            raise ValueError("this is a whole completion: give it to `completion`, or its message to `response`")
        self._response = message_of(message, "assistant")
        self._response["tool_calls"] += [tool_call_of(call) for call in tool_calls]
        self._finish_reason = finish_reason or ""
        self._model = model or self._model
        self._fields = {
            "usage_prompt_tokens": prompt_tokens,
            "usage_response_tokens": response_tokens,
            "cost_usd": cost_usd,
        }
        if len(token_ids) and len(prompt_token_ids) and policy_version >= 0:
            self._tokens = TokenSpan(prompt_token_ids, token_ids, logprobs, policy_version)

    @quiet
    def completion(self, reply: Any) -> None:
        """The answer, from a chat completion of an OpenAI-compatible client: an object or a dict."""
        if not self.trajectory.recorded:
            return
        reply = plain(reply)
        choice, usage = reply["choices"][0], reply.get("usage") or {}
        self.response(
            choice["message"],
            finish_reason=choice.get("finish_reason"),
            model=reply.get("model"),
            prompt_tokens=usage.get("prompt_tokens"),
            response_tokens=usage.get("completion_tokens"),
        )

    @quiet
    def tool_call(
        self,
        name: str,
        arguments: Any = None,
        *,
        result: Any = None,
        error: str | BaseException | None = None,
        duration_ms: float | None = None,
        call_id: str = "",
    ) -> None:
        """What a tool was asked and gave back: goes to the response's call that has none yet, or is a call of its own.

        After the step's block, and in a process that was forked inside it, it is feedback about the call.

        Args:
            name: of the tool.
            arguments: JSON text, or what becomes it.
            result: a text, or what becomes JSON.
            error: class of the error, or the exception.
            duration_ms: time that it took, in milliseconds.
            call_id: the response's call, where it is known.
        """
        if not self.trajectory.recorded:
            return
        if self.index < 0 and not self._runs("tool_call"):
            return
        failed = type(error).__name__ if isinstance(error, BaseException) else error
        said = None if result is None else text_of(result)
        asked = text_of(arguments) if arguments is not None else "{}"
        if self._remote or self._block is None or self.trajectory.inherited:
            self.trajectory.tool_used(name, self.index, call_id, failed)
            return
        used = new_tool_call(call_id=call_id, name=name, arguments=asked)
        used["result"], used["error"], used["duration_ms"] = said, failed, duration_ms
        self._used.append(used)

    @quiet
    def reward(self, name: str, value: float, *, source: str = "environment") -> None:
        """A number about this step, also after its block."""
        if not self.trajectory.recorded or (self.index < 0 and not self._runs("reward")):
            return
        self.trajectory.feedback(name, value, source=source, step_index=self.index)

    @quiet
    def first_token(self) -> None:
        """Notes that the first token of a streamed answer has come."""
        if self._first_token_ms is None:
            self._first_token_ms = (time.perf_counter() - self._started) * 1000

    @quiet
    def end(self, config: TrajectoryEnd = "terminated") -> None:
        """Says that this step ends its trajectory: `terminated` by the task, or `truncated` by a limit."""
        if self._block is None:
            self.trajectory.end(config)
        else:
            self._end = config

    @property
    def answered(self) -> bool:
        """Whether the response was said."""
        return self._response is not None

    def headers(self) -> dict[str, str]:
        """For a model call of this step through the gateway, which then records the step instead of the SDK."""
        if not self.trajectory.recorded:
            return {}
        self._remote = True
        return self.trajectory.headers() | {"x-stepstream-step": str(self.index)}

    def __enter__(self) -> Step:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._block is not None:
            leave(steps, self._block)
            self._block = None
            self._record(kind)

    async def __aenter__(self) -> Step:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    @quiet
    def _begin(self) -> None:
        if not self.trajectory.recorded:
            return
        if self.index >= 0:
            raise ValueError("a step's block is entered once: the next round is another `with t.step(…)`")
        self.index = self.trajectory.next_index()
        self._event_id, self._started_us, self._started = new_event_id(), now_us(), time.perf_counter()
        self._block = enter(steps, self)
        self.messages(*each_of(self._given))
        offered = [plain(tool) for tool in self._offered]
        self._tools = text_of(offered) if offered else ""

    @quiet
    def _record(self, kind: type[BaseException] | None) -> None:
        trajectory, tokens, about = self.trajectory, self._tokens, self.trajectory.about
        if self._remote:
            if self._end != "open":
                trajectory.end(self._end)
            return
        trajectory.ended = trajectory.ended or self._end != "open"
        response = self._response or new_message(role="assistant")
        attach(response, self._used)
        prompt_ids = tokens.prompt if tokens else []
        response_ids = tokens.response if tokens else []
        shared = trajectory.sharing.find(self.index, self._messages, prompt_ids)
        step = new_step(
            event_id=self._event_id,
            occurred_at_us=self._started_us,
            producer=trajectory.producer,
            trajectory_id=trajectory.id,
            step_index=self.index,
            **about.of_step(),
            model=self._model,
            fidelity="token" if tokens else "text",
            prompt_shared_messages=shared.messages,
            prompt_shared_step=shared.step,
            prompt_shared_tokens=shared.tokens,
            prompt_shared_digest=shared.digest,
            messages=self._messages[shared.messages :],
            prompt_token_ids=prompt_ids[shared.tokens :],
            tool_definitions=None if self._tools == shared.tools else self._tools or "[]",
            response=response,
            response_token_ids=response_ids,
            response_logprobs=tokens.logprobs if tokens else [],
            policy_spans=tokens.spans(self._model) if tokens else [],
            sampling=self._sampling(),
            finish_reason="error" if kind else self._finish_reason,
            end=self._end,
            error=kind.__name__ if kind else None,
            duration_ms=(time.perf_counter() - self._started) * 1000,
            first_token_ms=self._first_token_ms,
            **self._fields,
        )
        trajectory.emit("steps", step)
        if kind is None:
            both = prompt_ids + response_ids
            trajectory.sharing.remember(self.index, self._messages, response, both, self._tools)

    def _runs(self, what: str) -> bool:
        """Whether the block runs; says what to do where it does not."""
        if self._block is None:
            log.error("`%s` is not recorded: it belongs inside the step's block, `with t.step(…) as s:`", what)
        return self._block is not None

    def _sampling(self) -> Sampling:
        return new_sampling(**{name: value for name, value in self._sampling_given.items() if value is not None})
