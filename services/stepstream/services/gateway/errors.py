"""What the gateway itself refuses or cannot do, and how it is told: the body of OpenAI's API errors."""

from typing import Any

import orjson


class GatewayError(Exception):
    """An answer that is an error: HTTP status, OpenAI's error type, and a message that says what to do."""

    status = 500
    type = "server_error"
    code: str | None = None
    """Names it, where its type does not."""
    param: str | None = None
    """Field of the request that is to blame."""


class BadRequest(GatewayError):
    """The caller sent something that cannot be understood; the message names it."""

    status = 400
    type = "invalid_request_error"


class UnknownResponse(BadRequest):
    """A call goes on from a response that is not known (any more), in OpenAI's words."""

    code = "previous_response_not_found"
    param = "previous_response_id"


class TooLarge(GatewayError):
    """The body is larger than the gateway takes."""

    status = 413
    type = "invalid_request_error"


class Unauthorized(GatewayError):
    """No valid API key."""

    status = 401
    type = "authentication_error"


class Forbidden(GatewayError):
    """A valid API key that may not do this."""

    status = 403
    type = "permission_error"


class KeysUnknown(GatewayError):
    """Whether an API key is valid cannot be told yet."""

    status = 503
    type = "keys_unavailable"


class NotFound(GatewayError):
    """Nothing answers here."""

    status = 404
    type = "invalid_request_error"


class MethodNotAllowed(GatewayError):
    """Something answers here, but not to this method."""

    status = 405
    type = "invalid_request_error"


class UpstreamDied(GatewayError):
    """A provider took the call and went away before it answered: whether it did the work is not known."""

    status = 502
    type = "upstream_disconnected"


class UpstreamSilent(GatewayError):
    """A provider took the call and said nothing for too long."""

    status = 504
    type = "upstream_timeout"


class NoUpstream(GatewayError):
    """No inference worker answered within the deadline; the message lists each with its fault."""

    status = 503
    type = "upstream_unavailable"


class NotAccepted(GatewayError):
    """The event cannot be kept now; post it again later."""

    status = 503
    type = "backlog_full"


def error_body(message: str, kind: str, code: str | None = None, param: str | None = None) -> bytes:
    """The JSON body of an error, as OpenAI's clients read it."""
    body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return orjson.dumps(body)
