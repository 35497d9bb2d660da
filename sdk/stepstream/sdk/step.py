"""Record one step: its prompt, the agent's response and the results of its tools."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Protocol

from stepstream.sdk.context import Block, Blocks, enter_block, leave_block
from stepstream.sdk.messages import (
    SampledTokens,
    attach_results,
    message_of,
    plain_data,
    prompt_messages,
    text_of,
    tool_call_of,
    whole_response,
)
from stepstream.sdk.recorder import never_raise
from stepstream.sdk.shared_prefix import PrefixTracker, tools_digest
from stepstream.topics.catalogue import STEPS
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

log = logging.getLogger(__name__)


class StepOwner(Protocol):
    """The methods and attributes of `Trajectory` that its steps use."""

    id: str
    producer: str
    is_recorded: bool
    has_ended: bool
    prefixes: PrefixTracker

    @property
    def is_inherited(self) -> bool:
        """True if the process that this one was forked from began the trajectory."""

    def next_index(self) -> int:
        """Assign the index of a new step."""

    def step_fields(self) -> dict[str, Any]:
        """Return the fields that all steps of the trajectory share."""

    def headers(self) -> dict[str, str]:
        """Return the gateway's headers for the trajectory."""

    def emit(self, topic: str, record: Any) -> None:
        """Send an event of the trajectory."""

    def reward(self, name: str, value: float, *, source: str = "environment", step_index: int | None = None) -> None:
        """Record a reward."""

    def record_tool_use(self, name: str, step_index: int | None, call_id: str, error: str | None) -> None:
        """Record a tool's use as feedback."""

    def end(self, kind: TrajectoryEnd = "terminated") -> None:
        """End the trajectory."""


class Step:
    """A context manager, sync or async. It records the step when its block ends, with an exception as the step's error.

    No method raises. Create it with `Trajectory.step`.
    """

    def __init__(
        self,
        trajectory: StepOwner,
        messages: Any,
        model: str,
        sampling: Mapping[str, Any],
        tools: Iterable[Any] = (),
    ) -> None:
        self.index = -1
        """Position in the trajectory; -1 before the block begins."""
        self.trajectory = trajectory
        """Trajectory that contains the step."""
        self._model = model
        self._prompt = messages
        self._offered_tools = tools
        self._sampling_options = sampling
        self._tool_definitions = ""
        self._messages: list[Message] = []
        self._response: Message | None = None
        self._tool_calls: list[ToolCall] = []
        self._tokens: SampledTokens | None = None
        self._usage: dict[str, Any] = {}
        self._finish_reason = ""
        self._end: TrajectoryEnd = "open"
        self._uses_gateway = False
        self._first_token_ms: float | None = None
        self._event_id = ""
        self._started = 0.0
        self._started_us = 0
        self._block: Block[Step] | None = None

    @never_raise
    def messages(self, *messages: Any) -> None:
        """Append messages to the prompt: dicts or objects in OpenAI's shape, or texts of the user."""
        if self.trajectory.is_recorded and self._is_running("messages"):
            self._messages += [message_of(message) for message in messages]

    @never_raise
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
        policy_versions: Iterable[Mapping[str, Any]] = (),
        prompt_tokens: int | None = None,
        response_tokens: int | None = None,
        cost_usd: float | None = None,
    ) -> None:
        """Set the agent's response.

        Args:
            message: a text, or a dict or object in the shape of OpenAI's assistant messages.
            tool_calls: more calls, in OpenAI's shape or as `{"id", "name", "arguments"}`.
            finish_reason: `stop`, `length`, `tool_calls`, `error`.
            model: model that answered, if it differs from the requested one.
            prompt_token_ids: ids of the whole prompt. With `token_ids`, `logprobs` and `policy_version` the step has
                fidelity `token`; without one of them, `text`.
            token_ids: ids of the response, with its end-of-turn token if it was sampled.
            logprobs: natural logarithm of each response token's probability.
            policy_version: version of the model that sampled the response.
            policy_versions: instead of `policy_version`, where it changed inside the response: spans of tokens, as
                `{"start": 0, "end": 5, "version": 3}`.
            prompt_tokens: number of prompt tokens, as the upstream counted them.
            response_tokens: number of response tokens, as the upstream counted them.
            cost_usd: price of the call.
        """
        if not self.trajectory.is_recorded or not self._is_running("response"):
            return
        message = plain_data(message)
        if isinstance(message, Mapping) and "choices" in message:
            raise ValueError("`response` got a whole completion: give it to `completion`, or its message to `response`")
        self._response = message_of(message, "assistant")
        self._response["tool_calls"] += [tool_call_of(call) for call in tool_calls]
        self._finish_reason = finish_reason or ""
        self._model = model or self._model
        self._usage = {
            "usage_prompt_tokens": prompt_tokens,
            "usage_response_tokens": response_tokens,
            "cost_usd": cost_usd,
        }
        versions = list(policy_versions) or whole_response(len(token_ids), policy_version)
        if len(token_ids) and len(prompt_token_ids) and versions:
            self._tokens = SampledTokens(prompt_token_ids, token_ids, logprobs, versions)

    @never_raise
    def completion(self, reply: Any) -> None:
        """Set the response from a chat completion of an OpenAI-compatible client: an object or a dict."""
        if not self.trajectory.is_recorded:
            return
        reply = plain_data(reply)
        choice, usage = reply["choices"][0], reply.get("usage") or {}
        self.response(
            choice["message"],
            finish_reason=choice.get("finish_reason"),
            model=reply.get("model"),
            prompt_tokens=usage.get("prompt_tokens"),
            response_tokens=usage.get("completion_tokens"),
        )

    @never_raise
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
        """Record a tool's arguments and result: on the response's matching call without a result, else as a new call.

        After the step's block, and in a process forked inside it, this sends feedback about the call.

        Args:
            name: name of the tool.
            arguments: JSON text, or a value to convert to JSON.
            result: a text, or a value to convert to JSON.
            error: class of the error, or the exception.
            duration_ms: duration in milliseconds.
            call_id: id of the response's call, if known.
        """
        if not self.trajectory.is_recorded:
            return
        if self.index < 0 and not self._is_running("tool_call"):
            return
        error_class = type(error).__name__ if isinstance(error, BaseException) else error
        result_text = None if result is None else text_of(result)
        arguments_text = text_of(arguments) if arguments is not None else "{}"
        if self._uses_gateway or self._block is None or self.trajectory.is_inherited:
            self.trajectory.record_tool_use(name, self.index, call_id, error_class)
            return
        call = new_tool_call(call_id=call_id, name=name, arguments=arguments_text)
        call["result"], call["error"], call["duration_ms"] = result_text, error_class, duration_ms
        self._tool_calls.append(call)

    @never_raise
    def reward(self, name: str, value: float, *, source: str = "environment") -> None:
        """Record a reward of this step; allowed after its block, too."""
        if not self.trajectory.is_recorded or (self.index < 0 and not self._is_running("reward")):
            return
        self.trajectory.reward(name, value, source=source, step_index=self.index)

    @never_raise
    def first_token(self) -> None:
        """Record the time of a streamed response's first token."""
        if self._first_token_ms is None:
            self._first_token_ms = (time.perf_counter() - self._started) * 1000

    @never_raise
    def end(self, kind: TrajectoryEnd = "terminated") -> None:
        """End the trajectory with this step: `terminated` by the task, or `truncated` by a limit."""
        if self._block is None:
            self.trajectory.end(kind)
        else:
            self._end = kind

    @property
    def is_running(self) -> bool:
        """True between the begin and the end of the step."""
        return self._block is not None

    @property
    def has_response(self) -> bool:
        """True after `response` or `completion`."""
        return self._response is not None

    def headers(self) -> dict[str, str]:
        """Return headers for a model call through the gateway, which then records this step instead of the SDK."""
        if not self.trajectory.is_recorded:
            return {}
        self._uses_gateway = True
        return self.trajectory.headers() | {"x-stepstream-step": str(self.index)}

    def __enter__(self) -> Step:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._block is not None:
            leave_block(open_steps, self._block)
            self._block = None
            self._record(kind)

    async def __aenter__(self) -> Step:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def begin(self) -> None:
        """Begin the step without making it the current one; `finish` must follow, in any thread or task."""
        self._begin(is_current=False)

    @never_raise
    def finish(self, error: type[BaseException] | None = None) -> None:
        """End a step that `begin` began."""
        if self._block is not None:
            self._block = None
            self._record(error)

    @never_raise
    def _begin(self, *, is_current: bool = True) -> None:
        if not self.trajectory.is_recorded:
            return
        if self.index >= 0:
            raise ValueError("a step's block was entered twice: start the next round with another `with t.step(…)`")
        self.index = self.trajectory.next_index()
        self._event_id, self._started_us, self._started = new_event_id(), now_us(), time.perf_counter()
        self._block = enter_block(open_steps, self) if is_current else Block(self, None)
        self.messages(*prompt_messages(self._prompt))
        tools = [plain_data(tool) for tool in self._offered_tools]
        self._tool_definitions = text_of(tools) if tools else ""

    @never_raise
    def _record(self, kind: type[BaseException] | None) -> None:
        trajectory, tokens = self.trajectory, self._tokens
        if self._uses_gateway:
            if self._end != "open":
                trajectory.end(self._end)
            return
        trajectory.has_ended = trajectory.has_ended or self._end != "open"
        response = self._response or new_message(role="assistant")
        attach_results(response, self._tool_calls)
        prompt_ids = tokens.prompt if tokens else []
        response_ids = tokens.response if tokens else []
        shared = trajectory.prefixes.find(self.index, self._messages, prompt_ids)
        tools = tools_digest(self._tool_definitions)
        step = new_step(
            event_id=self._event_id,
            occurred_at_us=self._started_us,
            producer=trajectory.producer,
            trajectory_id=trajectory.id,
            step_index=self.index,
            **trajectory.step_fields(),
            model=self._model,
            fidelity="token" if tokens else "text",
            prompt_shared_messages=shared.messages,
            prompt_shared_step=shared.step,
            prompt_shared_tokens=shared.tokens,
            prompt_shared_digest=shared.digest,
            messages=self._messages[shared.messages :],
            prompt_token_ids=prompt_ids[shared.tokens :],
            tool_definitions=None if tools == shared.tools else self._tool_definitions or "[]",
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
            **self._usage,
        )
        trajectory.emit(STEPS, step)
        if kind is None:
            ids = prompt_ids + response_ids
            trajectory.prefixes.add_step(self.index, self._messages, response, ids, tools)

    def _is_running(self, method: str) -> bool:
        """Return True inside the block; else log the remedy."""
        if self._block is None:
            log.error("not recorded: `%s` was called outside the step's block `with t.step(…) as s:`", method)
        return self._block is not None

    def _sampling(self) -> Sampling:
        options = {name: value for name, value in self._sampling_options.items() if value is not None}
        if unknown := options.keys() - Sampling.__annotations__.keys():
            log.error("not recorded: `sampling` has no field %s; see its fields in docs/protocol.md", sorted(unknown))
        return new_sampling(**{name: value for name, value in options.items() if name not in unknown})


open_steps: Blocks[Step] = ContextVar("stepstream_step", default=None)
"""Blocks of steps around the running code."""
