"""Build the questions of the verifier `judge`, parse its answers, and identify it by a digest. Pure."""

from typing import Any, Literal

import orjson

from stepstream.jobs.judging.prompt_format import chat_request, digest_of, only_field, score_within, shorten
from stepstream.jobs.verifiers.base import NoVerdict

Mode = Literal["score", "pair"]
Better = Literal["first", "second", "neither"]

_MAX_CHARACTERS = 16_000
"""Longest text of one field; the middle of a longer one is removed."""

_ASK_SCORE = """
Answer with one JSON object and nothing else: {"score": NUMBER}, from 0 (certainly not) to 1 (certainly), as the
probability that somebody who knows the right answer would accept the response."""

_ASK_PAIR = """
Here there are two responses, "A" and "B", and no reference. Say which does better what the task asks; their order says
nothing. Answer with one JSON object and nothing else: {"better": "A"}, {"better": "B"} or {"better": "neither"}."""


def digest(model: str, rubric: str, mode: Mode, seed: int | None) -> str:
    """Return the identity of a judge: its model, rubric, form of the question and all parameters of the call."""
    return digest_of(mode, _MAX_CHARACTERS, request(model, rubric, mode, "", seed))


def request(model: str, rubric: str, mode: Mode, question: str, seed: int | None) -> dict[str, Any]:
    """Return the body of the call, in the form of OpenAI's chat completions."""
    body = chat_request(model, rubric + (_ASK_SCORE if mode == "score" else _ASK_PAIR), question)
    return body if seed is None else body | {"seed": seed}


def score_question(task: str, response: str, reference: str | None) -> str:
    """Return the question about one response, as JSON."""
    fields = {"task": _shorten(task), "response": _shorten(response)}
    return orjson.dumps(fields if reference is None else fields | {"reference": _shorten(reference)}).decode()


def pair_question(task: str, first: str, second: str) -> str:
    """Return the question about two responses, in this order, as JSON."""
    return orjson.dumps({"task": _shorten(task), "A": _shorten(first), "B": _shorten(second)}).decode()


def score_of(reply: bytes) -> float:
    """Return the score in a reply, from 0 to 1.

    Raises:
        NoVerdict: the reply is not a JSON object with exactly a score in that range.
    """
    return score_within(reply, 0, 1)


def better_of(reply: bytes) -> Better:
    """Return the better of two responses, by their order in the question.

    Raises:
        NoVerdict: the reply is not a JSON object with exactly that choice.
    """
    words: dict[Any, Better] = {"A": "first", "B": "second", "neither": "neither"}
    better = only_field(reply, "better")
    if not isinstance(better, str) or better not in words:
        raise NoVerdict("the judge's choice is none of A, B and neither")
    return words[better]


def _shorten(text: str) -> str:
    return shorten(text, _MAX_CHARACTERS)
