"""Fuzz the registry: every request gets an answer below 500."""

import random
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

from fuzzing import fuzz
from mutations import json_bytes, mutated, mutated_bytes

from stepstream.services.registry.app import create_app
from stepstream.services.registry.view import Fold

FIELDS = [{"name": "f", "type": ["null", "string"], "default": None}, {"name": "g", "type": "int"}]
SCHEMA = {"type": "record", "name": "R", "namespace": "n", "fields": FIELDS}
PATHS = [
    "/subjects", "/subjects/s/versions", "/subjects/s", "/config", "/config/s", "/schemas/ids/1", "/mode/s",
    "/compatibility/subjects/s/versions/latest", "/subjects/s/versions/1/schema", "/schemas/ids/x/versions",
]  # fmt: skip


class UnchangedLog:
    """A log that takes no records."""

    def __init__(self) -> None:
        self.view = Fold().view()

    async def refresh(self) -> None:
        return

    async def write(self, decide: Callable[[Any], Any]) -> Any:
        return decide(self.view).answer


def test_the_registry_answers_any_request() -> None:
    app = create_app(UnchangedLog())

    def target(rng: random.Random) -> None:
        schema = json_bytes(mutated([SCHEMA], rng), rng).decode(errors="replace")
        document = {"schema": schema, "compatibility": "FULL"}
        body = json_bytes(document if rng.random() < 0.7 else mutated([document], rng), rng)
        path = rng.choice(PATHS)
        if rng.random() < 0.2:
            path = "/" + mutated_bytes(path.encode(), rng).decode(errors="replace")
        query = urlencode({rng.choice(("permanent", "normalize", "deleted", "x")): rng.choice(("true", "", "\0"))})
        scope = {
            "type": "http", "http_version": "1.1", "method": rng.choice(("GET", "POST", "PUT", "DELETE")), "path": path,
            "raw_path": quote(path).encode(), "query_string": query.encode(), "root_path": "", "scheme": "http",
            "headers": [(b"content-type", b"application/json")], "client": ("c", 1), "server": ("s", 1),
        }  # fmt: skip
        assert status_of(app, scope, body) < 500

    fuzz(target)


def status_of(app: Any, scope: dict[str, Any], body: bytes) -> int:
    """Run an ASGI application without an event loop; it must not wait for anything."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    try:
        app(scope, receive, send).send(None)
    except StopIteration:
        return int(sent[0]["status"])
    raise AssertionError("the application waits")
