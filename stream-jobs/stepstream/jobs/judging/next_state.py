"""What a judge is asked about a step, and how its answer is read. Pure."""

from collections.abc import Sequence
from importlib import resources
from typing import Any

import orjson

from stepstream.jobs.judging.prompt_format import chat_request, cut, digest_of, score_within
from stepstream.topics.events import Message, Step
from stepstream.topics.step_contexts import shared_step

_MOST_CHARACTERS = 8_000
"""Longest text of one field; the middle of a longer one is left out."""

RUBRIC = resources.files("stepstream.jobs.judging").joinpath("rubric.txt").read_text("utf-8")


def judged_step(step: Step) -> int | None:
    """Index of the step to which this one holds the user's reaction; None: it holds none.

    The user spoke after the response where the prompt continues that step and its first new message is the user's,
    after the response itself if that is repeated.
    """
    before = shared_step(step)
    new = [message for message in step["messages"] if message["role"] != "assistant"]
    if before is None or before >= step["step_index"] or not step["prompt_shared_messages"] or not new:
        return None
    return before if new[0]["role"] == "user" and _said(new) else None


def question(before: Step, step: Step) -> str:
    """What is asked about `before`, whose user's reaction is in `step`, as JSON."""
    return asked(_said(before["messages"]), before["response"], _said(step["messages"]))


def asked(request: str, response: Message, reaction: str) -> str:
    """What is asked about a response, as JSON."""
    tools = [{"name": call["name"], "arguments": _cut(call["arguments"])} for call in response["tool_calls"]]
    said = {"text": _cut(response["content"]), "tools": tools}
    return orjson.dumps({"request": _cut(request), "response": said, "reaction": _cut(reaction)}).decode()


def digest(model: str) -> str:
    """Names a judge of next states: its model, rubric, the form of the question and every parameter of the call."""
    return digest_of("next_state", _MOST_CHARACTERS, request(model, ""))


def request(model: str, asked: str) -> dict[str, Any]:
    """The body of the call, in the form of OpenAI's chat completions."""
    return chat_request(model, RUBRIC, asked)


def score_of(reply: bytes) -> float:
    """The score in a reply of the API, from -1 to 1.

    Raises:
        Unanswered: the reply holds no JSON object with exactly a score in that range.
    """
    return score_within(reply, -1, 1)


def _said(messages: Sequence[Message]) -> str:
    """What the user says in messages."""
    return _cut("\n\n".join(message["content"] for message in messages if message["role"] == "user").strip())


def _cut(text: str) -> str:
    return cut(text, _MOST_CHARACTERS)
