"""Let a candidate answer recorded prompts through the gateway before it serves anybody.

Calls have consent `none`, so that govern passes nothing of them on, split `eval`, and an agent name of their own. Each
call repeats the sampling and the tools of the recorded one. The answer to the first prompt of a trajectory is scored:
what the environment would have answered to another continuation is unknown.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import orjson

from stepstream.config import OptimiseSettings
from stepstream.datasets.messages import from_chat, to_chat
from stepstream.services.apply_harness import with_harness
from stepstream.services.control.optimise.records import Attempt, Meter, Trial
from stepstream.services.control.optimise.scoring import Scorer
from stepstream.topics.events import Harness
from stepstream.topics.ids import new_event_id

AGENT_PREFIX = "shadow:"
_PAUSE_S = 0.5


class ReplayUnavailable(Exception):
    """The gateway or the reflection model does not answer; the message has its address."""


class ShadowReplay:
    """Answers recorded prompts, `optimise.parallel` at a time. Close it, or use it as a context manager."""

    def __init__(self, settings: OptimiseSettings, scorer: Scorer) -> None:
        self._settings, self._scorer = settings, scorer
        self._http = httpx2.Client(timeout=settings.timeout_s)
        self._threads = ThreadPoolExecutor(settings.parallel, thread_name_prefix="replay")

    def __enter__(self) -> "ShadowReplay":
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._http.close()

    def __call__(self, harness: Harness, attempts: Sequence[Attempt], meter: Meter) -> list[Trial]:
        """As `Answerer`."""
        meter.take(len(attempts))
        pending = [self._threads.submit(self._try, harness, attempt) for attempt in attempts]
        try:
            results = [one.result() for one in pending]
        finally:
            for one in pending:
                one.cancel()
        meter.tokens += sum(tokens for _, tokens in results)
        return [trial for trial, _ in results]

    def _try(self, harness: Harness, attempt: Attempt) -> tuple[Trial, int]:
        reply = self._ask(harness, attempt)
        if reply is None:
            return Trial(0.0, None, "The request was rejected, for example because it is too long."), 0
        message = from_chat({"role": "assistant"} | reply["choices"][0]["message"], set())
        return self._scorer.score(attempt, message), tokens_of(reply)

    def _ask(self, harness: Harness, attempt: Attempt) -> dict[str, Any] | None:
        """Return the reply to an attempt's first prompt; None: it is rejected for its content."""
        return post_chat(
            self._http,
            self._settings.gateway_url + "/v1",
            request_of(harness, attempt),
            headers_of(attempt, self._settings.gateway_key.get_secret_value()),
            self._settings.timeout_s,
        )


def request_of(harness: Harness, attempt: Attempt) -> dict[str, Any]:
    """Return the recorded call as a chat request with the harness in force."""
    step = attempt.steps[0]
    sampling = step["sampling"]
    request: dict[str, Any] = {
        "model": step["model"],
        "messages": list(map(to_chat, step["messages"])),
        "temperature": sampling["temperature"],
        "top_p": sampling["top_p"],
    }
    if sampling["max_tokens"] is not None:
        request["max_tokens"] = sampling["max_tokens"]
    if step["tool_definitions"] is not None:
        request["tools"] = orjson.loads(step["tool_definitions"])
    return with_harness("chat", request, harness)


def headers_of(attempt: Attempt, key: str) -> dict[str, str]:
    """Return the headers that mark a replay."""
    step = attempt.steps[0]
    headers = {
        "x-stepstream-trajectory": new_event_id(),
        "x-stepstream-agent": AGENT_PREFIX + step["agent"],
        "x-stepstream-tenant": step["tenant"],
        "x-stepstream-environment": step["environment"],
        "x-stepstream-consent": "none",
        "x-stepstream-split": "eval",
        "x-stepstream-apply-harness": "false",
    }
    if key:
        headers["authorization"] = f"Bearer {key}"
    return {name: value for name, value in headers.items() if value}


def post_chat(
    http: httpx2.Client, url: str, request: dict[str, Any], headers: dict[str, str], patience_s: float
) -> dict[str, Any] | None:
    """Return the reply to a chat request; None: it is rejected for its content.

    Retries server errors, limits of rate and broken connections for `patience_s` seconds.

    Raises:
        ReplayUnavailable: there is no reply.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            reply = http.post(f"{url.rstrip('/')}/chat/completions", content=orjson.dumps(request), headers=headers)
            if reply.status_code == 200:
                found: dict[str, Any] = orjson.loads(reply.content)
                return found
            if reply.status_code in (400, 413, 422):
                return None
            fault = f"HTTP {reply.status_code}: {reply.text[:300]}"
            if reply.status_code < 500 and reply.status_code not in (408, 429):
                raise ReplayUnavailable(f"{url} rejects the call: {fault}")
        except (httpx2.HTTPError, orjson.JSONDecodeError) as error:
            fault = repr(error)
        if time.monotonic() >= deadline:
            raise ReplayUnavailable(f"{url} does not answer: {fault}")
        time.sleep(_PAUSE_S)


def tokens_of(reply: dict[str, Any]) -> int:
    """Return the tokens of a call; 0: the reply does not state them."""
    return int((reply.get("usage") or {}).get("total_tokens") or 0)
