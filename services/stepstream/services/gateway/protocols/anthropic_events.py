"""Anthropic's server-sent events and errors, as its clients expect them."""

from typing import Any

import orjson

_ERROR_TYPES = frozenset(
    {
        "invalid_request_error",
        "authentication_error",
        "billing_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "rate_limit_error",
        "api_error",
        "timeout_error",
        "overloaded_error",
    }
)
_OURS = {"upstream_unavailable": "overloaded_error", "backlog_full": "overloaded_error"}


def event(data: dict[str, Any]) -> bytes:
    """One event; its name is the `type` of its data."""
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), orjson.dumps(data))


def error(message: str, kind: str) -> dict[str, Any]:
    """An error's body, which is an error event's data too; kinds that Anthropic does not have are `api_error`."""
    known = kind if kind in _ERROR_TYPES else _OURS.get(kind, "api_error")
    return {"type": "error", "error": {"type": known, "message": message}}
