"""Read and check single fields of a request's body."""

from typing import Any

import orjson

MASK = "stepstream_sampling_mask"
"""Field that asks for sampling masks; its value is the largest number of ids of one token."""
MAX_MASK_IDS = 1024


class RequestError(Exception):
    """An error response in OpenAI's form."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def read_object(body: bytes) -> dict[str, Any]:
    """Return a body's fields.

    Raises:
        RequestError: 400, the body is no JSON object.
    """
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(400, f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RequestError(400, "the body must be a JSON object")
    return fields


def read_model(name: Any) -> str:
    """Return a model's name; raises RequestError if it is no text, or empty."""
    if not isinstance(name, str) or not name:
        raise RequestError(400, "'model' must be the name of a model", param="model")
    return name


def read_number(fields: dict[str, Any], name: str, kind: type, low: float, high: float) -> Any:
    """Return a number from `low` to `high`; None: the field is absent; raises RequestError for another value."""
    value = fields.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise RequestError(400, f"'{name}' must be a number from {low:g} to {high:g}", param=name)
    return kind(value)
