"""The form in which any judge is asked, by its rubric and a question in JSON, and in which its answer is read. Pure."""

import hashlib
import math
from typing import Any

import orjson

from stepstream.jobs.verifiers.base import Unanswered


def chat_request(model: str, rubric: str, asked: str) -> dict[str, Any]:
    """The body of the call, in the form of OpenAI's chat completions."""
    return {
        "model": model,
        "messages": [{"role": "system", "content": rubric}, {"role": "user", "content": asked}],
        "temperature": 0,
        "max_tokens": 100,
    }


def digest_of(*parts: Any) -> str:
    """Names a judge by all that decides what it answers: anything that JSON can hold."""
    return hashlib.sha256(orjson.dumps(list(parts), option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def only_field(reply: bytes, field: str) -> Any:
    """The one field of the JSON object that a reply of the API holds.

    Raises:
        Unanswered: the reply holds no JSON object with exactly this field.
    """
    try:
        answer = orjson.loads(orjson.loads(reply)["choices"][0]["message"]["content"])
    except (orjson.JSONDecodeError, LookupError, TypeError):
        raise Unanswered("the judge's answer is not JSON") from None
    if not isinstance(answer, dict) or set(answer) != {field}:
        raise Unanswered(f"the judge's answer is not an object with '{field}' alone")
    return answer[field]


def score_within(reply: bytes, lowest: int, highest: int) -> float:
    """The score in a reply of the API.

    Raises:
        Unanswered: the reply holds no JSON object with exactly a score in that range.
    """
    score = only_field(reply, "score")
    sound = isinstance(score, int | float) and not isinstance(score, bool) and math.isfinite(score)
    if not sound or not lowest <= score <= highest:
        raise Unanswered(f"the judge's score is not a number from {lowest} to {highest}")
    return float(score)


def cut(text: str, most: int) -> str:
    """A text of at most about so many characters: the middle of a longer one is left out."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}\n[…]\n{text[-half:]}"
