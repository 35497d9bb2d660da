"""How agents reach the gateway: the stock OpenAI client for the model, plain HTTP for feedback.

An agent waits out a gateway that cannot be reached and a gateway whose workers are all away, up to a deadline.
A call whose connection broke in the middle is not made again: the gateway may have recorded it.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
from httpx2 import ConnectError, ConnectTimeout
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, DefaultAioHttpClient
from openai.types.chat import ChatCompletion

from stepstream.config import FleetSettings

PAUSE_S = 0.25
NOBODY_THERE = "upstream_unavailable"  # the gateway's word on the wire for: no worker answers
STEP_HEADER = "x-stepstream-step"


class Lost(Exception):
    """The attempt cannot go on by a fault that is not the agent's; `unsure`: the last call may have been recorded."""

    def __init__(self, message: str, *, unsure: bool = False) -> None:
        super().__init__(message)
        self.unsure = unsure


class Refused(Exception):
    """The model's server refused the request, and this was recorded as a step: the context is too long, say."""


class RecordedFault(Lost):
    """The model's server failed, and this was recorded as a step."""


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
        """Closes the connections."""
        await self._openai.close()
        await self._http.close()

    async def complete(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        headers: Mapping[str, str],
        temperature: float,
    ) -> ChatCompletion:
        """One model call.

        Raises:
            Refused: the model's server says that the request is wrong.
            Lost: no answer can be had; RecordedFault where the failure is a recorded step.
        """
        give_up = time.monotonic() + self._settings.gateway_deadline_s
        while True:
            try:
                return await self._openai.chat.completions.create(
                    model=self._settings.model,
                    messages=[],
                    temperature=temperature,
                    max_tokens=self._settings.max_tokens,
                    extra_headers=headers,
                    # Given as `messages` and `tools` they would be walked through field by field, in each call
                    # anew: about half of the agents' processor time. What is in the extra body goes as it is.
                    extra_body={"messages": messages, "tools": tools},
                )
            except APIConnectionError as error:
                if not isinstance(error.__cause__, ConnectError | ConnectTimeout):
                    raise Lost(f"the connection to the gateway broke: {error.__cause__!r}", unsure=True) from error
                if time.monotonic() >= give_up:
                    raise Lost(f"no gateway answers at {self._settings.gateway_url}: {error.__cause__}") from error
            except APIStatusError as error:
                may_again = error.status_code >= 500 and time.monotonic() < give_up
                recorded = STEP_HEADER in error.response.headers
                # Where no worker was there, the call made again takes the failed one's place: the agent names the step.
                if recorded and not (may_again and error.type == NOBODY_THERE):
                    raise (Refused if error.status_code < 500 else RecordedFault)(str(error)) from error
                if not (recorded or may_again):
                    raise Lost(str(error)) from error
            await asyncio.sleep(PAUSE_S)

    async def feedback(self, body: Mapping[str, Any]) -> None:
        """Posts feedback that carries its own event_id, and so may be repeated.

        Raises:
            Lost: it was not accepted.
        """
        give_up = time.monotonic() + self._settings.gateway_deadline_s
        while True:
            try:
                async with self._http.post(self._feedback_url, json=body) as response:
                    if response.status < 300:
                        return
                    fault = f"HTTP {response.status}: {(await response.text())[:300]}"
                    if response.status < 500:
                        raise Lost(f"feedback was refused: {fault}")
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                fault = repr(error)
            if time.monotonic() >= give_up:
                raise Lost(f"feedback was not accepted: {fault}")
            await asyncio.sleep(PAUSE_S)
