"""Calls that failed, in the log's words: alike for every protocol."""

from typing import Any

from stepstream.services.gateway.protocols.base import Answer
from stepstream.topics.events import new_message


def failed(error: str, model: str = "") -> Answer:
    """The answer of a call that failed."""
    return Answer(new_message(role="assistant"), model=model, finish_reason="error", error=error)


def error_class(body: Any, status: int) -> str:
    """The class of an upstream's error: what its body says, else its HTTP status."""
    error = body.get("error", body) if isinstance(body, dict) else None
    kind = error.get("type") if isinstance(error, dict) else None
    return kind if isinstance(kind, str) and kind else f"http_{status}"
