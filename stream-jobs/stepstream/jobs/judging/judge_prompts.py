"""What a judge is asked about a case, how its answer is read, and what names a judge. Pure."""

from typing import Any, Literal

import orjson

from stepstream.jobs.judging.prompt_format import chat_request, cut, digest_of, only_field, score_within
from stepstream.jobs.verifiers.base import Unanswered

Mode = Literal["score", "pair"]
Better = Literal["first", "second", "neither"]

_MOST_CHARACTERS = 16_000
"""Longest text of one field; the middle of a longer one is left out."""

_ASK_SCORE = """
Answer with one JSON object and nothing else: {"score": NUMBER}, from 0 (certainly not) to 1 (certainly), as the
probability that somebody who knows the right answer would accept the response."""

_ASK_PAIR = """
Here there are two responses, "A" and "B", and no reference. Say which does better what the task asks; their order says
nothing. Answer with one JSON object and nothing else: {"better": "A"}, {"better": "B"} or {"better": "neither"}."""


def digest(model: str, rubric: str, mode: Mode, seed: int | None) -> str:
    """Names a judge: its model, rubric, the form of the question and every parameter of the call."""
    return digest_of(mode, _MOST_CHARACTERS, request(model, rubric, mode, "", seed))


def request(model: str, rubric: str, mode: Mode, asked: str, seed: int | None) -> dict[str, Any]:
    """The body of the call, in the form of OpenAI's chat completions."""
    body = chat_request(model, rubric + (_ASK_SCORE if mode == "score" else _ASK_PAIR), asked)
    return body if seed is None else body | {"seed": seed}


def score_question(task: str, response: str, reference: str | None) -> str:
    """The question about one response, as JSON."""
    said = {"task": _cut(task), "response": _cut(response)}
    return orjson.dumps(said if reference is None else said | {"reference": _cut(reference)}).decode()


def pair_question(task: str, first: str, second: str) -> str:
    """The question about two responses, in this order, as JSON."""
    return orjson.dumps({"task": _cut(task), "A": _cut(first), "B": _cut(second)}).decode()


def score_of(reply: bytes) -> float:
    """The score in a reply, from 0 to 1.

    Raises:
        Unanswered: the reply holds no JSON object with exactly a score in that range.
    """
    return score_within(reply, 0, 1)


def better_of(reply: bytes) -> Better:
    """Which of two was better, by the order in which they were asked about.

    Raises:
        Unanswered: the reply holds no JSON object with exactly that.
    """
    words: dict[Any, Better] = {"A": "first", "B": "second", "neither": "neither"}
    better = only_field(reply, "better")
    if not isinstance(better, str) or better not in words:
        raise Unanswered("the judge's choice is none of A, B and neither")
    return words[better]


def _cut(text: str) -> str:
    return cut(text, _MOST_CHARACTERS)
