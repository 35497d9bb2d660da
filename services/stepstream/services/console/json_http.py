"""Read and write JSON over HTTP."""

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from stepstream.services.console.endpoints import BadRequest


def json_response(value: object, status: int = 200) -> Response:
    """Return a response that no cache keeps."""
    return Response(orjson.dumps(value), status, {"Cache-Control": "no-store"}, "application/json")


async def json_body(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request. Its size is limited by `http.body_mb`.

    Raises:
        BadRequest: it is none, or the content type is not `application/json`: a form of another site could send that.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise BadRequest("send application/json")
    try:
        value = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest("send a JSON object")
    return value
