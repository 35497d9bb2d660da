"""Serve Confluent's REST protocol over a schema log."""

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stepstream.core.metrics.services import REGISTRY_ANSWERS
from stepstream.services.registry import errors, writes
from stepstream.services.registry.avro_text import canonical, normalised
from stepstream.services.registry.compatibility import incompatibilities, parse_level
from stepstream.services.registry.log import SchemaLog
from stepstream.services.registry.view import View

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
MAX_BODY = 2_000_000
"""Limit of a request's body in bytes."""

REQUESTS = REGISTRY_ANSWERS.create()

Answer = Any
ReadHandler = Callable[[View, Request, Mapping[str, Any]], Answer]
Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(log: SchemaLog) -> Starlette:
    """Build the application that serves the whole protocol over one log."""

    def reads(handler: ReadHandler) -> Endpoint:
        """Make an endpoint that only reads; before it answers 404, it reads to the log's end and tries again."""

        async def endpoint(request: Request) -> Response:
            body = await _body(request)
            view = log.view
            try:
                return _json(request, handler(view, request, body))
            except errors.RegistryError as error:
                if error.status != 404:
                    raise
                await log.refresh()
                if log.view is view:
                    raise
            return _json(request, handler(log.view, request, body))

        return endpoint

    async def register(request: Request) -> Response:
        schema = _schema(await _body(request))
        subject, normalize = request.path_params["subject"], _flag(request, "normalize")
        existing = writes.find(log.view, subject, schema, normalize=normalize)
        if existing is not None:  # already registered: answer without Kafka
            return _json(request, {"id": existing.id})
        decide = partial(writes.register, subject=subject, schema=schema, normalize=normalize)
        return _json(request, await log.write(decide))

    async def delete_subject(request: Request) -> Response:
        subject, permanent = request.path_params["subject"], _flag(request, "permanent")
        return _json(request, await log.write(partial(writes.delete_subject, subject=subject, permanent=permanent)))

    async def delete_version(request: Request) -> Response:
        subject, number = request.path_params["subject"], _number(request)
        decide = partial(writes.delete_version, subject=subject, number=number, permanent=_flag(request, "permanent"))
        return _json(request, await log.write(decide))

    async def put_config(request: Request) -> Response:
        body = await _body(request)
        decide = partial(
            writes.set_level, subject=request.path_params.get("subject"), level=parse_level(body.get("compatibility"))
        )
        return _json(request, await log.write(decide))

    async def delete_config(request: Request) -> Response:
        return _json(request, await log.write(partial(writes.unset_level, subject=request.path_params.get("subject"))))

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    subject = "/subjects/{subject:path}"
    checks = "/compatibility/subjects/{subject:path}/versions"
    routes = [
        Route("/", reads(lambda *_: {}), methods=["GET"]),
        Route("/ready", reads(lambda *_: {}), methods=["GET"]),  # it serves only after it has read the log
        Route("/metrics", metrics, methods=["GET"]),
        Route("/schemas/types", reads(lambda *_: ["AVRO"]), methods=["GET"]),
        Route("/schemas/ids/{id}", reads(_schema_by_id), methods=["GET"]),
        Route("/schemas/ids/{id}/schema", reads(_text_by_id), methods=["GET"]),
        Route("/schemas/ids/{id}/versions", reads(_versions_by_id), methods=["GET"]),
        Route("/schemas/ids/{id}/subjects", reads(_subjects_by_id), methods=["GET"]),
        Route("/subjects", reads(_subjects), methods=["GET"]),
        Route(subject + "/versions", reads(_versions), methods=["GET"]),
        Route(subject + "/versions", register, methods=["POST"]),
        Route(subject + "/versions/{version}/schema", reads(_version_text), methods=["GET"]),
        Route(subject + "/versions/{version}", reads(_version), methods=["GET"]),
        Route(subject + "/versions/{version}", delete_version, methods=["DELETE"]),
        Route(subject, reads(_look_up), methods=["POST"]),
        Route(subject, delete_subject, methods=["DELETE"]),
        Route("/config", reads(_config), methods=["GET"]),
        Route("/config", put_config, methods=["PUT"]),
        Route("/config", delete_config, methods=["DELETE"]),
        Route("/config/{subject:path}", reads(_subject_config), methods=["GET"]),
        Route("/config/{subject:path}", put_config, methods=["PUT"]),
        Route("/config/{subject:path}", delete_config, methods=["DELETE"]),
        Route("/mode", reads(lambda *_: {"mode": "READWRITE"}), methods=["GET"]),
        Route("/mode/{subject:path}", reads(_subject_mode), methods=["GET"]),
        Route(checks, reads(_check_all), methods=["POST"]),
        Route(checks + "/{version}", reads(_check_one), methods=["POST"]),
    ]
    handlers: dict[Any, Any] = {
        errors.RegistryError: _error_reply,
        HTTPException: _http_error_reply,
        Exception: _unexpected_reply,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


def _schema_by_id(view: View, request: Request, _: Mapping[str, Any]) -> Answer:
    return {"schema": _by_id(view, request)}


def _text_by_id(view: View, request: Request, _: Mapping[str, Any]) -> Answer:
    return json.loads(_by_id(view, request))


def _versions_by_id(view: View, request: Request, _: Mapping[str, Any]) -> Answer:
    schema_id, deleted = _id(request), _flag(request, "deleted")
    _by_id(view, request)
    return [
        {"subject": version.subject, "version": version.version}
        for version in view.all_versions()
        if version.id == schema_id and (deleted or not version.deleted)
    ]


def _subjects_by_id(view: View, request: Request, body: Mapping[str, Any]) -> Answer:
    return list(dict.fromkeys(entry["subject"] for entry in _versions_by_id(view, request, body)))


def _subjects(view: View, request: Request, _: Mapping[str, Any]) -> Answer:
    prefix = request.query_params.get("subjectPrefix", "")
    return [name for name in view.subjects(deleted=_flag(request, "deleted")) if name.startswith(prefix)]


def _versions(view: View, request: Request, _: Mapping[str, Any]) -> Answer:
    subject = request.path_params["subject"]
    versions = view.versions(subject, deleted=_flag(request, "deleted"))
    if not versions:
        raise errors.subject_not_found(subject)
    return [version.version for version in versions]


def _version(view: View, request: Request, _: Mapping[str, Any]) -> Answer:
    version = view.version(request.path_params["subject"], _number(request), deleted=_flag(request, "deleted"))
    return {"subject": version.subject, "version": version.version, "id": version.id, "schema": version.schema}


def _version_text(view: View, request: Request, body: Mapping[str, Any]) -> Answer:
    return json.loads(_version(view, request, body)["schema"])


def _look_up(view: View, request: Request, body: Mapping[str, Any]) -> Answer:
    subject, deleted, schema = request.path_params["subject"], _flag(request, "deleted"), _schema(body)
    if not view.versions(subject, deleted=deleted):
        raise errors.subject_not_found(subject)
    version = writes.find(view, subject, schema, normalize=_flag(request, "normalize"), deleted=deleted)
    if version is None:
        raise errors.schema_not_found()
    return {"subject": subject, "version": version.version, "id": version.id, "schema": version.schema}


def _config(view: View, _: Request, __: Mapping[str, Any]) -> Answer:
    return {"compatibilityLevel": view.effective_level(None)}


def _subject_config(view: View, request: Request, _: Mapping[str, Any]) -> Answer:
    subject = request.path_params["subject"]
    if _flag(request, "defaultToGlobal"):
        return {"compatibilityLevel": view.effective_level(subject)}
    own = view.level(subject)
    if own is None:
        raise errors.no_subject_level(subject)
    return {"compatibilityLevel": own}


def _subject_mode(_: View, request: Request, __: Mapping[str, Any]) -> Answer:
    if _flag(request, "defaultToGlobal"):
        return {"mode": "READWRITE"}
    raise errors.no_subject_mode(request.path_params["subject"])


def _check_all(view: View, request: Request, body: Mapping[str, Any]) -> Answer:
    versions = view.versions(request.path_params["subject"])
    return _check(view, request, body, [(version.version, canonical(version.schema)) for version in versions])


def _check_one(view: View, request: Request, body: Mapping[str, Any]) -> Answer:
    subject, number = request.path_params["subject"], _number(request)
    if number is None and not view.versions(subject):
        return _check(view, request, body, [])  # compatible: there is no earlier version
    version = view.version(subject, number)
    return _check(view, request, body, [(version.version, canonical(version.schema))])


def _check(view: View, request: Request, body: Mapping[str, Any], earlier: list[tuple[int, str]]) -> Answer:
    schema = _schema(body)
    if _flag(request, "normalize"):
        schema = normalised(schema)
    reasons = incompatibilities(view.effective_level(request.path_params["subject"]), schema, earlier)
    answer: dict[str, Any] = {"is_compatible": not reasons}
    if _flag(request, "verbose"):
        answer["messages"] = reasons
    return answer


def _by_id(view: View, request: Request) -> str:
    schema_id = _id(request)
    try:
        return view.schemas[schema_id]
    except KeyError:
        raise errors.schema_not_found(schema_id) from None


def _id(request: Request) -> int:
    number = _integer(request.path_params["id"])
    if number is None:
        raise HTTPException(404)
    return number


def _number(request: Request) -> int | None:
    """Return the path's version number; None: the latest."""
    text = request.path_params["version"]
    if text in ("latest", "-1"):
        return None
    number = _integer(text)
    if not number:
        raise errors.invalid_version(text)
    return number


def _integer(text: str) -> int | None:
    """Return a number from 0 to 2^31 - 1; None: another text."""
    number = int(text) if re.fullmatch("[0-9]{1,10}", text) else 2**31
    return number if number < 2**31 else None


def _flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "").lower() == "true"


async def _body(request: Request) -> Mapping[str, Any]:
    raw = b""
    async for part in request.stream():
        raw += part
        if len(raw) > MAX_BODY:
            raise HTTPException(413, f"The request is longer than {MAX_BODY} bytes")
    if not raw:
        return {}
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise HTTPException(400, "The request's body is not JSON") from None
    if not isinstance(body, dict):
        raise HTTPException(400, "The request's body is not a JSON object")
    return body


def _schema(body: Mapping[str, Any]) -> str:
    """Return the canonical text of a request's schema."""
    kind = body.get("schemaType") or "AVRO"
    if kind != "AVRO":
        raise errors.invalid_schema(f"schema type {kind} is not supported, only AVRO")
    for part in ("references", "metadata", "ruleSet"):
        if body.get(part):
            raise errors.invalid_schema(f"'{part}' is not supported")
    text = body.get("schema")
    if not isinstance(text, str):
        raise errors.invalid_schema("the request has no text under 'schema'")
    return canonical(text)


def _json(request: Request, answer: Answer, status: int = 200) -> Response:
    REQUESTS.labels(request.method, status).inc()
    return Response(json.dumps(answer), status, media_type=CONTENT_TYPE)


async def _error_reply(request: Request, error: errors.RegistryError) -> Response:
    return _json(request, {"error_code": error.code, "message": error.message}, error.status)


async def _http_error_reply(request: Request, error: HTTPException) -> Response:
    message = f"HTTP {error.status_code} {error.detail}"
    return _json(request, {"error_code": error.status_code, "message": message}, error.status_code)


async def _unexpected_reply(request: Request, _: Exception) -> Response:
    return _json(request, {"error_code": 50001, "message": "Error in the schema registry; see its log"}, 500)
