"""Build the questions of the next-state judge, parse its answers, and identify it by a digest. Pure."""

from collections.abc import Sequence
from importlib import resources
from typing import Any

import orjson

from stepstream.jobs.judging.prompt_format import chat_request, digest_of, score_within, shorten
from stepstream.topics.events import Message, Step
from stepstream.topics.step_contexts import shared_step

_MAX_CHARACTERS = 8_000
"""Longest text of one field; the middle of a longer one is removed."""

RUBRIC = resources.files("stepstream.jobs.judging").joinpath("rubric.txt").read_text("utf-8")


def judged_step(step: Step) -> int | None:
    """Return the index of the step whose user reacts in this one; None: there is no reaction.

    The user reacts if the prompt continues that step and its first new message, after a repeated response, is the
    user's.
    """
    before = shared_step(step)
    new = [message for message in step["messages"] if message["role"] != "assistant"]
    if before is None or before >= step["step_index"] or not step["prompt_shared_messages"] or not new:
        return None
    return before if new[0]["role"] == "user" and _user_text(new) else None


def step_question(before: Step, step: Step) -> str:
    """Return the question about `before`, whose user's reaction is in `step`, as JSON."""
    return question_about(_user_text(before["messages"]), before["response"], _user_text(step["messages"]))


def question_about(request: str, response: Message, reaction: str) -> str:
    """Return the question about a response, as JSON."""
    tools = [{"name": call["name"], "arguments": _shorten(call["arguments"])} for call in response["tool_calls"]]
    response_fields = {"text": _shorten(response["content"]), "tools": tools}
    question = {"request": _shorten(request), "response": response_fields, "reaction": _shorten(reaction)}
    return orjson.dumps(question).decode()


def digest(model: str) -> str:
    """Return the identity of a judge: its model, rubric, form of the question and all parameters of the call."""
    return digest_of("next_state", _MAX_CHARACTERS, request(model, ""))


def request(model: str, question: str) -> dict[str, Any]:
    """Return the body of the call, in the form of OpenAI's chat completions."""
    return chat_request(model, RUBRIC, question)


def score_of(reply: bytes) -> float:
    """Return the score in a reply, from -1 to 1.

    Raises:
        NoVerdict: the reply is not a JSON object with exactly a score in that range.
    """
    return score_within(reply, -1, 1)


def _user_text(messages: Sequence[Message]) -> str:
    """Return the text of the user's messages."""
    return _shorten("\n\n".join(message["content"] for message in messages if message["role"] == "user").strip())


def _shorten(text: str) -> str:
    return shorten(text, _MAX_CHARACTERS)
