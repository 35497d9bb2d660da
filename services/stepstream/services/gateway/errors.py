"""Define the errors that the gateway answers with, and the JSON body that OpenAI's clients expect.

GatewayError                500
├── BadRequest              400
│   ├── NestedTooDeeply     400
│   ├── RestrictedSampling  400
│   └── UnknownResponse     400
├── Unauthorized            401
├── Forbidden               403
├── NotFound                404
│   └── UnknownModel        404
├── MethodNotAllowed        405
├── TooLarge                413
├── UnsupportedType         415
├── Overloaded              429
├── RateExceeded            429
├── BudgetSpent             429
├── UpstreamDied            502
├── MalformedResponse       502
├── KeysUnknown             503
├── NoUpstream              503
├── NotAccepted             503
└── UpstreamSilent          504
"""

from typing import Any

import orjson

from stepstream.core.lenient_json import is_too_deep


class GatewayError(Exception):
    """An error answer: HTTP status, OpenAI's error type, and a message with the remedy."""

    status = 500
    type = "server_error"
    code: str | None = None
    """More specific than the type, if that is not enough."""
    param: str | None = None
    """Request field at fault."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Further headers of the answer."""


class BadRequest(GatewayError):
    """The request is malformed or asks for something unsupported; the message names it."""

    status = 400
    type = "invalid_request_error"


class NestedTooDeeply(BadRequest):
    """The gateway has to write the request anew, and cannot write so many levels."""

    def __init__(self) -> None:
        super().__init__("the body is nested too deeply: more than 254 levels of objects and lists")


class UnsupportedType(GatewayError):
    """The body has a content type that this path does not take."""

    status = 415
    type = "invalid_request_error"


class RestrictedSampling(BadRequest):
    """A parameter restricts sampling to a part of the softmax, and `gateway.train_sampling` is `reject`."""

    code = "restricted_sampling"

    def __init__(self, param: str, value: Any) -> None:
        shown = f" ({value})" if isinstance(value, int | float) else ""
        super().__init__(
            f"'{param}'{shown} restricts sampling, so that the response could not be trained on with importance "
            "weights: leave it out, send `x-stepstream-split: eval`, or set gateway.train_sampling to force or mark"
        )
        self.param = param


class UnknownResponse(BadRequest):
    """The call continues from a response that is unknown or expired; code and field are OpenAI's."""

    code = "previous_response_not_found"
    param = "previous_response_id"


class TooLarge(GatewayError):
    """The body exceeds the gateway's limit."""

    status = 413
    type = "invalid_request_error"


class Unauthorized(GatewayError):
    """No valid API key."""

    status = 401
    type = "authentication_error"


class Forbidden(GatewayError):
    """A valid API key that lacks what the request needs; the message names it."""

    status = 403
    type = "permission_error"


class KeysUnknown(GatewayError):
    """API keys cannot be checked until Kafka has been read."""

    status = 503
    type = "keys_unavailable"


class NotFound(GatewayError):
    """No such path."""

    status = 404
    type = "invalid_request_error"


class UnknownModel(NotFound):
    """No inference worker serves the model; the message names the served ones."""

    code = "model_not_found"
    param = "model"


class MethodNotAllowed(GatewayError):
    """The path exists for another method."""

    status = 405
    type = "invalid_request_error"


class Overloaded(GatewayError):
    """Every worker of the model is at its limit; the message has load and limit."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    headers = ((b"retry-after", b"1"),)


class RateExceeded(GatewayError):
    """The API key has made as many requests in the last minute as it may."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, limit: str, wait_s: int) -> None:
        super().__init__(f"{limit}: try again in {wait_s} s")
        self.headers = ((b"retry-after", b"%d" % wait_s),)


class BudgetSpent(GatewayError):
    """The API key's budget is spent; waiting does not help, so clients are asked not to retry."""

    status = 429
    type = "insufficient_quota"
    code = "insufficient_quota"
    headers = ((b"x-should-retry", b"false"),)

    def __init__(self, use: str) -> None:
        super().__init__(f"{use}: the operator raises the budget with `stepstream keys change`")


class UpstreamDied(GatewayError):
    """A provider accepted the call and disconnected before it answered; it may have done the work."""

    status = 502
    type = "upstream_disconnected"


class MalformedResponse(GatewayError):
    """An upstream's answer cannot be read, so that it cannot be translated."""

    status = 502
    type = "malformed_response"


class UpstreamSilent(GatewayError):
    """A provider accepted the call and then sent nothing until the timeout."""

    status = 504
    type = "upstream_timeout"


class NoUpstream(GatewayError):
    """No upstream answered within the deadline; the message lists each with its fault."""

    status = 503
    type = "upstream_unavailable"


class NotAccepted(GatewayError):
    """The backlog has no room for the event; post it again later."""

    status = 503
    type = "backlog_full"


def encode_request(request: Any) -> bytes:
    """Return a parsed request as JSON.

    Raises:
        NestedTooDeeply: it cannot be written.
    """
    try:
        return orjson.dumps(request)
    except TypeError:
        if is_too_deep(request):
            raise NestedTooDeeply from None
        raise


def error_body(message: str, kind: str, code: str | None = None, param: str | None = None) -> bytes:
    """Return the JSON body of an error, as OpenAI's clients read it."""
    body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return orjson.dumps(body)
