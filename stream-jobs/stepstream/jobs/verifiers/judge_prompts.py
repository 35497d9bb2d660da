"""What a judge is asked about a case, how its answer is read, and what names a judge. Pure."""

import hashlib
import math
from typing import Any, Literal

import orjson

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
    said = request(model, rubric, mode, "", seed)
    return hashlib.sha256(orjson.dumps([mode, _MOST_CHARACTERS, said], option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def request(model: str, rubric: str, mode: Mode, asked: str, seed: int | None) -> dict[str, Any]:
    """The body of the call, in the form of OpenAI's chat completions."""
    form = _ASK_SCORE if mode == "score" else _ASK_PAIR
    body = {
        "model": model,
        "messages": [{"role": "system", "content": rubric + form}, {"role": "user", "content": asked}],
        "temperature": 0,
        "max_tokens": 100,
    }
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
    score = _only(reply, "score")
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score) or not 0 <= score <= 1:
        raise Unanswered("the judge's score is not a number from 0 to 1")
    return float(score)


def better_of(reply: bytes) -> Better:
    """Which of two was better, by the order in which they were asked about.

    Raises:
        Unanswered: the reply holds no JSON object with exactly that.
    """
    words: dict[Any, Better] = {"A": "first", "B": "second", "neither": "neither"}
    better = _only(reply, "better")
    if not isinstance(better, str) or better not in words:
        raise Unanswered("the judge's choice is none of A, B and neither")
    return words[better]


def _only(reply: bytes, field: str) -> Any:
    try:
        answer = orjson.loads(orjson.loads(reply)["choices"][0]["message"]["content"])
    except (orjson.JSONDecodeError, LookupError, TypeError):
        raise Unanswered("the judge's answer is not JSON") from None
    if not isinstance(answer, dict) or set(answer) != {field}:
        raise Unanswered(f"the judge's answer is not an object with '{field}' alone")
    return answer[field]


def _cut(text: str) -> str:
    half = _MOST_CHARACTERS // 2
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:half]}\n[…]\n{text[-half:]}"
