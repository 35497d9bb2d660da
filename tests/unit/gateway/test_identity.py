"""The identity of a call comes from its headers, its session, its trace and its API key's tenant."""

import pytest
from api_key_records import key_grant

from stepstream.config import GatewaySettings
from stepstream.services.gateway.errors import BadRequest
from stepstream.services.gateway.identity import identify

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("header", "value", "error"),
    [
        (b"x-stepstream-step", b"-1", "whole number"),
        (b"x-stepstream-step", b"99999999999", "whole number"),
        (b"x-stepstream-consent", b"yes", "train, analyse, none"),
        (b"x-stepstream-trajectroy", b"t", "unknown header"),
        (b"x-stepstream-task", b"\xff", "UTF-8"),
        (b"x-stepstream-task*", b"Jos%C3%A9", "must begin with"),
        (b"x-stepstream-task*", b"UTF-8''%ff", "UTF-8"),
        (b"x-stepstream-trajectory*", b"UTF-8''a%0d%0ab", "cannot be printed"),
        (b"x-stepstream-task", b"t" * 300, "longer than"),
        (b"x-stepstream-apply-harness", b"yes", "true or false"),
    ],
)
def test_an_invalid_header_is_refused(header: bytes, value: bytes, error: str) -> None:
    with pytest.raises(BadRequest, match=error):
        identify([(header, value)], GatewaySettings())


def test_a_header_or_a_key_opts_in_to_the_harness_and_the_header_decides() -> None:
    def applies(value: bytes, **fields: bool) -> bool:
        headers = [(b"x-stepstream-apply-harness", value)] if value else []
        return identify(headers, GatewaySettings(), "", key_grant(**fields)).applies_harness

    assert [applies(b""), applies(b"true"), applies(b"false")] == [False, True, False]
    by_key = {"applies_harness": True}
    assert [applies(b"", **by_key), applies(b"false", **by_key)] == [True, False]


def test_missing_headers_have_the_defaults_of_the_settings() -> None:
    identity = identify([(b"x-stepstream-trajectory", b"")], GatewaySettings(tenant="acme"))
    assert (identity.trajectory_id, identity.step_index, identity.tenant, identity.consent) == (
        "",
        None,
        "acme",
        "train",
    )


def test_a_header_overrides_the_session_and_a_keys_tenant_the_header() -> None:
    headers = [(b"x-stepstream-trajectory", b"t"), (b"x-stepstream-tenant", b"claimed"), (b"x-stepstream-key", b"k")]
    identity = identify(headers, GatewaySettings(), "session", key_grant(tenant="acme", consent="analyse"))
    assert (identity.trajectory_id, identity.tenant, identity.consent) == ("t", "acme", "analyse")
    assert identify([], GatewaySettings(), "session").trajectory_id == "session"
    with pytest.raises(BadRequest, match="session is longer"):
        identify([], GatewaySettings(), "s" * 300)
    with pytest.raises(BadRequest, match="cannot be printed"):
        identify([], GatewaySettings(), "s\r\nset-cookie: x")


@pytest.mark.parametrize(
    ("header", "trace"),
    [
        (f"00-{TRACE}-b7ad6b7169203331-01", TRACE),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", ""),
        ("00-short-b7ad6b7169203331-01", ""),
        ("", ""),
    ],
)
def test_the_trace_id_comes_from_traceparent(header: str, trace: str) -> None:
    assert identify([(b"traceparent", header.encode())], GatewaySettings()).trace_id == trace
