"""The verifier `process_reward`: a process reward model on an inference worker estimates the value of each step.

The worker's `POST /v1/score` reads, for each step, the conversation up to it. With `head = "tokens"`, a question
follows, and the value is the probability of `positive` against `negative` as the next token. With `head = "scalar"`, a
head of the model gives the value. Feedback is about steps, from 0 to 1.
"""

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson
from pydantic import Field

from stepstream.core.no_redirects import open_request
from stepstream.jobs.verifiers.base import Case, NoVerdict, Source, Unavailable, UnverifiableCase, Verdict
from stepstream.jobs.verifiers.options import InvalidOptions, Options, VerifierContext, parse_options
from stepstream.topics.events import Message

_MAX_BYTES = 1 << 22
_PERMANENT_ERRORS = (400, 404, 413, 501)
"""HTTP statuses for which a retry would not help."""


class ProcessRewardOptions(Options):
    """Options of `process_reward`."""

    model: str = Field(min_length=1)
    """Name of the process reward model on the worker."""
    url: str = ""
    """Base address of the worker; empty: `verify.inference_url`."""
    head: Literal["tokens", "scalar"] = "tokens"
    question: str = "Is the last step of the assistant a good step towards what was asked? Answer yes or no."
    """Question after the conversation, for `tokens`."""
    positive: str = "yes"
    negative: str = "no"
    timeout_s: float = Field(30.0, gt=0)


class ProcessReward:
    """Asks a worker for the value of each step of a trajectory."""

    source: Source = "prm"
    reads_trajectory = True

    def __init__(self, options: ProcessRewardOptions, url: str) -> None:
        self._options, self._url = options, url.rstrip("/") + "/v1/score"

    def verify(self, case: Case) -> Sequence[Verdict]:
        """Return a value for each step."""
        prompts = [{"messages": [*map(_message, turn.conversation), *self._question()]} for turn in case.turns]
        scores, version = self._ask({"prompts": prompts})
        if len(scores) != len(prompts):
            raise NoVerdict(f"the worker gave {len(scores)} scores for {len(prompts)} steps")
        category = f"{self._options.model}@{version}"
        judged = zip(case.turns, scores, strict=True)
        return [Verdict(score, category, step_index=turn.step_index) for turn, score in judged]

    def _question(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self._options.question}] if self._options.head == "tokens" else []

    def _ask(self, fields: dict[str, Any]) -> tuple[list[float], int]:
        options = self._options
        body = fields | {"model": options.model, "head": options.head}
        if options.head == "tokens":
            body |= {"positive": options.positive, "negative": options.negative}
        call = urllib.request.Request(self._url, orjson.dumps(body), {"content-type": "application/json"})
        try:
            with open_request(call, options.timeout_s) as reply:
                answer = orjson.loads(reply.read(_MAX_BYTES))
            return [float(score) for score in answer["scores"]], int(answer["version"])
        except urllib.error.HTTPError as error:
            with error:
                if error.code in _PERMANENT_ERRORS:
                    reason = f"the worker at {self._url} rejects the trajectory: HTTP {error.code}"
                    raise UnverifiableCase(reason) from error
            raise Unavailable(f"the worker at {self._url} answers HTTP {error.code}") from error
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"the worker at {self._url} does not answer: {error}") from error
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            raise NoVerdict(f"the worker at {self._url} gives no scores") from None


def _message(message: Message) -> dict[str, Any]:
    """Return a message of the chat API."""
    message_fields: dict[str, Any] = {"role": message["role"], "content": message["content"]}
    if message["tool_calls"]:
        message_fields["tool_calls"] = [
            {
                "id": call["call_id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in message["tool_calls"]
        ]
    if message["tool_call_id"] is not None:
        message_fields["tool_call_id"] = message["tool_call_id"]
    return message_fields


def make(options: Mapping[str, Any], context: VerifierContext) -> ProcessReward:
    """Create the verifier from its options."""
    parsed = parse_options(ProcessRewardOptions, options)
    if parsed.head == "tokens" and parsed.positive == parsed.negative:
        raise InvalidOptions("positive and negative must differ")
    return ProcessReward(parsed, parsed.url or context.settings.verify.inference_url)
