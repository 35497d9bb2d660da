"""Test what an endpoint's call gives: bounded queries, checked parameters."""

from dataclasses import replace
from typing import Any

import pytest

from stepstream.services.console.api import ENDPOINTS
from stepstream.services.console.endpoints import BadRequest, Call, Services
from stepstream.services.console.users import User


class Store:
    """Notes the queries."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def query(self, sql: str, parameters: dict[str, Any], *, fresh_s: float) -> list[dict[str, Any]]:
        self.asked.append((sql, parameters))
        return [{"n": 1}]


def call(tenant: str = "", **parameters: str) -> tuple[Call, Store]:
    store = Store()
    services: Any = Services(None, store, None, None)  # type: ignore[arg-type]
    return Call(User("ada", "viewer", tenant), services, parameters), store


def test_every_query_is_bound_to_the_tenant() -> None:
    own, store = call("acme")
    assert own.query("SELECT {tenant:String}", limit=3) == [{"n": 1}]
    assert store.asked == [("SELECT {tenant:String}", {"limit": 3, "tenant": "acme"})]
    with pytest.raises(ValueError, match="not bound to the user's tenant"):
        own.query("SELECT 1")
    assert own.query_installation("SELECT 1") == []
    everyone, store = call()
    assert everyone.query_installation("SELECT 1") == [{"n": 1}]


@pytest.mark.parametrize(
    ("user", "named", "bound"), [("", "", ""), ("", "acme", "acme"), ("acme", "", "acme"), ("acme", "other", "acme")]
)
def test_only_a_user_of_all_tenants_chooses_one(user: str, named: str, bound: str) -> None:
    own, store = call(user)
    replace(own, parameters={"tenant": named}).query("SELECT {tenant:String}")
    assert store.asked[0][1] == {"tenant": bound}


def test_the_name_of_a_tenant_is_bounded() -> None:
    with pytest.raises(BadRequest, match="tenant is longer"):
        replace(call()[0], parameters={"tenant": "x" * 257}).query("SELECT {tenant:String}")


def test_a_range_ends_now_or_where_it_is_asked() -> None:
    since, until = call()[0].time_range()
    assert until - since == 24 * 3600 * 10**6
    assert call(since="15m", until="1700000000000")[0].time_range() == (
        (1_700_000_000 - 900) * 10**6,
        1_700_000_000 * 10**6,
    )
    for parameters in ({"since": "1y"}, {"since": "0m"}, {"since": "400d"}, {"until": "-1"}, {"until": "soon"}):
        with pytest.raises(BadRequest):
            call(**parameters)[0].time_range()


def test_parameters_are_bounded() -> None:
    assert call(limit="7")[0].integer("limit", 5, most=10) == 7
    assert call()[0].integer("limit", 5, most=10) == 5
    for text in ("11", "-1", "x", "1e3", "٣"):
        with pytest.raises(BadRequest):
            call(limit=text)[0].integer("limit", 5, most=10)
    with pytest.raises(BadRequest):
        call(text="x" * 201)[0].text("text")


def test_every_endpoint_reads_or_acts_below_api() -> None:
    paths = [endpoint.path for endpoint in ENDPOINTS]
    assert len(paths) == len(set(paths))
    for endpoint in ENDPOINTS:
        assert endpoint.path.startswith("/api/")
        assert (endpoint.read is None) != (endpoint.act is None)
        # A decision names the roles that may answer it; an answer by another role is refused on the log.
        assert endpoint.act is None or endpoint.role != "viewer" or endpoint.path == "/api/decisions/answer"
