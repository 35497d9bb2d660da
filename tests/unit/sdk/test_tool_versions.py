"""Test the versions of tools that a harness pins: read from responses of clients, kept for the trajectory."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from stepstream import sdk
from stepstream.config import Settings
from stepstream.services.apply_harness import tool_versions as header_of
from stepstream.topics.events import new_harness, new_harness_tool

TOOLS = [
    new_harness_tool(name="search & find", version="1.2+b"),
    new_harness_tool(name="get", version="2"),
    new_harness_tool(name="other"),
]
HEADER = header_of({**new_harness(event_id="", occurred_at_us=0, tenant="t", agent="a", version=""), "tools": TOOLS})
PINNED = {"search & find": "1.2+b", "get": "2"}


@pytest.fixture(autouse=True)
def sink() -> Iterator[None]:
    sdk.configure(Settings(), sink=sdk.MemorySink())
    yield
    sdk.close()


@pytest.mark.parametrize(
    "response",
    [
        {"X-Stepstream-Tool-Versions": HEADER},
        [(b"x-stepstream-tool-versions", HEADER.encode())],
        httpx2.Response(200, headers={"x-stepstream-tool-versions": HEADER}),
        SimpleNamespace(headers={"x-stepstream-tool-versions": HEADER}),
    ],
    ids=["mapping", "pairs", "httpx", "object"],
)
def test_pinned_versions_are_read_as_the_gateway_writes_them(response: Any) -> None:
    assert sdk.tool_versions(response) == PINNED


@pytest.mark.parametrize("response", [None, 7, {}, {"x-stepstream-tool-versions": ""}, SimpleNamespace(headers=None)])
def test_a_response_that_pins_nothing_or_cannot_be_read_gives_nothing(response: Any) -> None:
    assert sdk.tool_versions(response) == {}


def test_a_trajectory_keeps_the_versions_of_its_newest_response_only() -> None:
    with sdk.trajectory("t-1", agent="a") as t:
        assert sdk.current().tool_versions == {}
        own = {"x-stepstream-trajectory": t.id}
        sdk.tool_versions({**own, "x-stepstream-tool-versions": HEADER})
        assert sdk.current().tool_versions == PINNED
        sdk.tool_versions({"x-stepstream-trajectory": "another", "x-stepstream-tool-versions": "get=3"})
        assert t.tool_versions == PINNED
        sdk.tool_versions(own)
        assert t.tool_versions == {}


def test_an_event_hook_of_a_client_keeps_them_up_to_date() -> None:
    with sdk.trajectory("t-1", agent="a") as t:
        headers = {"x-stepstream-trajectory": t.id, "x-stepstream-tool-versions": HEADER}
        transport = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=headers))
        with httpx2.Client(transport=transport, event_hooks={"response": [sdk.tool_versions]}) as client:
            client.get("http://gateway/")
        assert t.tool_versions == PINNED
