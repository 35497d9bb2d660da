"""Test the refusal of requests from pages of other sites."""

import ast
from pathlib import Path
from typing import Any

import pytest

import stepstream.services.http_server
from stepstream.config import HttpSettings, is_loopback
from stepstream.services.same_site import SameSite, is_permitted_host


async def status_of(headers: dict[str, str], **settings: Any) -> int:
    statuses = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> Any:
        raise AssertionError

    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await SameSite(answer, HttpSettings(**settings))({"type": "http", "headers": encoded}, receive, send)
    return int(statuses[0])


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8123",
        "localhost",
        "localhost:80",
        "[::1]:8080",
        "192.168.1.7:8080",
        "store",
        "gateway.stepstream.svc",
        "gateway.ns.svc.cluster.local:80",
        "box.local",
        "kafka.internal:1",
    ],
)
async def test_addresses_and_private_names_are_hosts(host: str) -> None:
    assert await status_of({"host": host}) == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.com", "127.0.0.1.evil.com:8123", "[::1", "a.b", "xn--a.com"]
)
async def test_a_name_that_resolves_to_this_machine_is_no_host(host: str) -> None:
    """DNS rebinding."""
    assert await status_of({"host": host}) == 403


async def test_the_hosts_of_the_settings_are_permitted() -> None:
    assert await status_of({"host": "Api.Example.com:443"}, allowed_hosts=["api.example.com"]) == 200
    assert await status_of({"host": "b.example.com"}, allowed_hosts=[".example.com"]) == 200
    assert await status_of({"host": "badexample.com"}, allowed_hosts=[".example.com"]) == 403


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:8080", "file://", "http://127.0.0.1"],
)
async def test_a_page_of_another_origin_is_refused(origin: str) -> None:
    assert await status_of({"host": "127.0.0.1:8080", "origin": origin}) == 403


@pytest.mark.parametrize("host", [{"host": "127.0.0.1:8080"}, {}])
@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "null"])
async def test_an_origin_that_names_no_site_is_refused(origin: str, host: dict[str, str]) -> None:
    assert await status_of({**host, "origin": origin}) == 403


async def test_pages_of_the_service_and_of_the_settings_are_permitted() -> None:
    assert await status_of({"host": "127.0.0.1:8080", "origin": "http://127.0.0.1:8080"}) == 200
    origin = "https://app.example.com"
    assert await status_of({"host": "gateway:8080", "origin": origin}, allowed_origins=[origin + "/"]) == 200


async def test_a_program_without_origin_is_served() -> None:
    assert await status_of({"host": "127.0.0.1:8080"}) == 200
    assert await status_of({}) == 200


SERVERS = [
    path
    for path in Path(stepstream.services.http_server.__file__).parent.rglob("*.py")
    if "uvicorn.Server(" in path.read_text()
]


@pytest.mark.parametrize("path", SERVERS, ids=lambda path: path.parent.name)
def test_every_service_has_the_limits_and_refuses_pages_of_other_sites(path: Path) -> None:
    tree = ast.walk(ast.parse(path.read_text()))
    names = {ast.unparse(node.func) for node in tree if isinstance(node, ast.Call)}
    assert "ServerConfig" in names
    assert "uvicorn.Config" not in names


def test_the_services_that_serve_http_are_found() -> None:
    assert {path.parent.name for path in SERVERS} == {"gateway", "inference", "registry", "store", "console"}


def test_loopback_addresses() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.com"))
    assert not is_permitted_host("")
