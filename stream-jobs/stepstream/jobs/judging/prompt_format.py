"""Build and parse the messages that all judges share: a rubric, and a question and an answer in JSON. Pure."""

import hashlib
import math
from typing import Any

import orjson

from stepstream.jobs.verifiers.base import NoVerdict


def chat_request(model: str, rubric: str, question: str) -> dict[str, Any]:
    """Return the body of the call, in the form of OpenAI's chat completions."""
    return {
        "model": model,
        "messages": [{"role": "system", "content": rubric}, {"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 100,
    }


def digest_of(*parts: Any) -> str:
    """Return a digest of everything that decides a judge's answers; parts are JSON values."""
    return hashlib.sha256(orjson.dumps(list(parts), option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def only_field(reply: bytes, field: str) -> Any:
    """Return the field of the JSON object in a reply of the API.

    Raises:
        NoVerdict: the reply is not a JSON object with exactly this field.
    """
    try:
        answer = orjson.loads(orjson.loads(reply)["choices"][0]["message"]["content"])
    except (orjson.JSONDecodeError, LookupError, TypeError):
        raise NoVerdict("the judge's answer is not JSON") from None
    if not isinstance(answer, dict) or set(answer) != {field}:
        raise NoVerdict(f"the judge's answer is not an object with '{field}' alone")
    return answer[field]


def score_within(reply: bytes, lowest: int, highest: int) -> float:
    """Return the score in a reply of the API.

    Raises:
        NoVerdict: the reply is not a JSON object with exactly a score in that range.
    """
    score = only_field(reply, "score")
    sound = isinstance(score, int | float) and not isinstance(score, bool) and math.isfinite(score)
    if not sound or not lowest <= score <= highest:
        raise NoVerdict(f"the judge's score is not a number from {lowest} to {highest}")
    return float(score)


def shorten(text: str, most: int) -> str:
    """Return a text of about `most` characters at most; the middle of a longer one is removed."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}\n[…]\n{text[-half:]}"
