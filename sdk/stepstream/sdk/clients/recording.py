"""Record one call of a client as a step: begin it before the request, end it with the answer or the error."""

from collections.abc import Callable, Mapping
from typing import Any

from stepstream.sdk.clients.anthropic import AnthropicMessages
from stepstream.sdk.clients.call import Answer, Api
from stepstream.sdk.clients.chat import ChatCompletions
from stepstream.sdk.clients.responses import Responses
from stepstream.sdk.recorder import log_failure, never_raise
from stepstream.sdk.step import Step
from stepstream.sdk.trajectory import Trajectory, current_step, current_trajectory
from stepstream.topics.request_sampling import constraint_of, format_constraint, read_sampling

APIS: dict[str, Api] = {
    "/chat/completions": ChatCompletions(),
    "/responses": Responses(),
    "/v1/messages": AnthropicMessages(),
}
"""The recorded APIs by the path of their requests."""
_GATEWAY_HEADER = "x-stepstream-trajectory"
_RAW_HEADER = "x-stainless-raw-response"


class RecordedCall:
    """One call. No method raises."""

    def __init__(self, api: Api, step: Step) -> None:
        self._api = api
        self._step = step
        self._stream = api.stream()
        self._has_output = False
        self._is_finished = False

    @never_raise
    def add(self, event: Any) -> None:
        """Add an event of a streamed answer."""
        if self._stream.add(_plain(event)) and not self._has_output:
            self._has_output = True
            self._step.first_token()

    def finish(self, reply: Any) -> None:
        """Record the step with a whole answer."""

        def read() -> Answer:
            parse = getattr(reply, "parse", None)  # `with_raw_response`
            return self._api.answer(_plain(parse() if callable(parse) and not hasattr(reply, "model_dump") else reply))

        self._finish(read, None)

    def finish_stream(self, error: type[BaseException] | None) -> None:
        """Record the step with the events so far; what stopped reading early (`GeneratorExit`) is no error."""
        is_error = error is not None and not issubclass(error, GeneratorExit)
        self._finish(self._stream.answer, error if is_error else None)

    def fail(self, error: type[BaseException]) -> None:
        """Record the step with the error of its request."""
        self._finish(lambda: None, error)

    def _finish(self, read: Callable[[], Answer | None], error: type[BaseException] | None) -> None:
        """Record the step, without an answer if it cannot be read: its index is taken."""
        if self._is_finished:
            return
        self._is_finished = True
        try:
            answer = read()
            if answer is not None:
                _set_response(self._step, answer)
        except Exception as fault:
            log_failure(fault)
        self._step.finish(error)


def begin_call(client: Any, options: Any) -> RecordedCall | None:
    """Begin the step of a request; None: it is none of a trajectory, or the gateway or the agent's code records it."""
    try:
        trajectory = current_trajectory()
        api = APIS.get(str(options.url).partition("?")[0])
        request = options.json_data
        if trajectory is None or api is None or not isinstance(request, Mapping):
            return None
        if trajectory.uses_gateway or _is_excluded(client, options):
            return None
        step = current_step()
        if step is not None and step.is_running:
            return None  # the code inside a step's block records it itself
        return RecordedCall(api, _begin_step(trajectory, api, {**request, **(options.extra_json or {})}))
    except Exception as error:
        log_failure(error)
        return None


def _begin_step(trajectory: Trajectory, api: Api, request: dict[str, Any]) -> Step:
    text = request.get("text")  # of the Responses API
    constraint = constraint_of(request) or format_constraint(text.get("format") if isinstance(text, Mapping) else None)
    sampling = read_sampling(
        request, max_tokens=api.max_tokens(request), constraint=constraint, seed=request.get("seed")
    )
    step = trajectory.step(
        api.prompt(request), model=str(request.get("model") or ""), sampling=sampling, tools=request.get("tools") or ()
    )
    step.begin()
    return step


def _set_response(step: Step, answer: Answer) -> None:
    step.response(
        answer.message,
        finish_reason=answer.finish_reason,
        model=answer.model,
        prompt_token_ids=answer.prompt_token_ids,
        token_ids=answer.token_ids,
        logprobs=answer.logprobs,
        policy_versions=answer.policy_versions,
        prompt_tokens=answer.prompt_tokens,
        response_tokens=answer.response_tokens,
    )


def _is_excluded(client: Any, options: Any) -> bool:
    """Return True if the gateway records the call, or if its body is left to the caller (`with_streaming_response`)."""
    own = options.headers if isinstance(options.headers, Mapping) else {}
    headers = {str(name).lower().rstrip("*"): value for name, value in {**client.default_headers, **own}.items()}
    return _GATEWAY_HEADER in headers or headers.get(_RAW_HEADER) == "stream"


def _plain(value: Any) -> dict[str, Any]:
    """Return a client's object as a dict. Its fields may differ from their types, as servers do; that is no warning."""
    dump = getattr(value, "model_dump", None)
    return dump(warnings=False) if callable(dump) else dict(value)
