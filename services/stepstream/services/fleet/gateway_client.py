"""Call the model and post feedback through the gateway: the stock OpenAI client, and plain HTTP.

Calls are retried up to a deadline while the gateway is unreachable or none of its workers answers. A call whose
connection broke after it was sent is not retried: the gateway may have recorded it.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson
from httpx2 import ConnectError, ConnectTimeout, Response
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, DefaultAioHttpClient

from stepstream.config import FleetSettings

PAUSE_S = 0.25
UPSTREAM_UNAVAILABLE = "upstream_unavailable"  # the gateway's error type if no worker answers
STEP_HEADER = "x-stepstream-step"


class AttemptLost(Exception):
    """A failure outside the agent ends the attempt; `unsure`: the gateway may have recorded the last call."""

    def __init__(self, message: str, *, unsure: bool = False) -> None:
        super().__init__(message)
        self.unsure = unsure


class RequestRejected(Exception):
    """The model's server rejected the request, for example a context that is too long; recorded as a step."""


class RecordedFailure(AttemptLost):
    """The model's server failed; recorded as a step."""


class GatewayClient:
    """Shared by all agents of a fleet. Create it inside the event loop, and close it."""

    def __init__(self, settings: FleetSettings) -> None:
        self._settings = settings
        self._feedback_url = f"{settings.gateway_url}/v1/feedback"
        self._openai = AsyncOpenAI(
            base_url=f"{settings.gateway_url}/v1",
            api_key="stepstream",  # the client insists on one
            max_retries=0,  # it would repeat calls that were recorded
            http_client=DefaultAioHttpClient(),
        )
        self._http = aiohttp.ClientSession()

    async def close(self) -> None:
        """Close the connections."""
        await self._openai.close()
        await self._http.close()

    async def complete(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        headers: Mapping[str, str],
        temperature: float,
    ) -> dict[str, Any]:
        """Return the JSON of the model's answer to one call.

        Raises:
            RequestRejected: the model's server answered with a status from 400 to 499.
            AttemptLost: no answer came in time; `RecordedFailure` if the failure is a recorded step.
        """
        deadline = time.monotonic() + self._settings.gateway_deadline_s
        body = {"model": self._settings.model, "messages": messages, "tools": tools, "temperature": temperature}
        content = orjson.dumps(body | {"max_tokens": self._settings.max_tokens})
        while True:
            try:
                # `chat.completions.create` would transform the request and build the answer's models field by field,
                # about half of the agents' processor time.
                response = await self._openai.post(
                    "/chat/completions", content=content, cast_to=Response, options={"headers": headers}
                )
                answer: dict[str, Any] = orjson.loads(response.content)
                return answer
            except APIConnectionError as error:
                if not isinstance(error.__cause__, ConnectError | ConnectTimeout):
                    raise AttemptLost(
                        f"the connection to the gateway broke: {error.__cause__!r}", unsure=True
                    ) from error
                if time.monotonic() >= deadline:
                    raise AttemptLost(
                        f"no gateway answers at {self._settings.gateway_url}: {error.__cause__}"
                    ) from error
            except APIStatusError as error:
                may_retry = error.status_code >= 500 and time.monotonic() < deadline
                recorded = STEP_HEADER in error.response.headers
                # A retry replaces the recorded step of the failed call, since the request names the step index.
                if recorded and not (may_retry and error.type == UPSTREAM_UNAVAILABLE):
                    raise (RequestRejected if error.status_code < 500 else RecordedFailure)(str(error)) from error
                if not (recorded or may_retry):
                    raise AttemptLost(str(error)) from error
            await asyncio.sleep(PAUSE_S)

    async def post_feedback(self, body: Mapping[str, Any]) -> None:
        """Post feedback; its `event_id` makes retries safe.

        Raises:
            AttemptLost: the gateway did not accept it before the deadline.
        """
        deadline = time.monotonic() + self._settings.gateway_deadline_s
        while True:
            try:
                async with self._http.post(self._feedback_url, json=body) as response:
                    if response.status < 300:
                        return
                    fault = f"HTTP {response.status}: {(await response.text())[:300]}"
                    if response.status < 500:
                        raise AttemptLost(f"the gateway rejected the feedback: {fault}")
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                fault = repr(error)
            if time.monotonic() >= deadline:
                raise AttemptLost(f"the gateway did not accept the feedback: {fault}")
            await asyncio.sleep(PAUSE_S)
