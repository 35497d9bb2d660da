"""Credentials are read from headers; an API key permits the scopes that its record names."""

from typing import Any

import pytest
from api_key_records import key_record, new_counts

from stepstream.config import GatewaySettings
from stepstream.services.gateway.api_keys import ApiKeys, Credentials, check_key, credentials_of, new_key
from stepstream.services.gateway.errors import Forbidden, KeysUnknown, Unauthorized
from stepstream.topics.events import ApiKey


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([(b"authorization", b"Bearer sk-abc")], ("", "", "", [(b"authorization", b"Bearer sk-abc")])),
        ([(b"authorization", b"Bearer any-key:s-1")], ("", "", "s-1", [])),
        ([(b"x-api-key", b"any-key:s-1")], ("", "", "s-1", [])),
        ([(b"authorization", b"Bearer any-key")], ("", "", "", [])),
        ([(b"authorization", b"Bearer id:real")], ("", "", "", [(b"authorization", b"Bearer id:real")])),
        ([(b"x-api-key", b"any-keys:real")], ("", "", "", [(b"x-api-key", b"any-keys:real")])),
        ([(b"authorization", b"Bearer sk-stepstream-ab12-s3-cr_t:s:1")], ("ab12", "s3-cr_t", "s:1", [])),
        ([(b"x-api-key", b"sk-stepstream-ab12-s")], ("ab12", "s", "", [])),
        ([(b"authorization", b"Basic dXNlcjpwYXNz")], ("", "", "", [(b"authorization", b"Basic dXNlcjpwYXNz")])),
        (
            [(b"x-stepstream-key", b"sk-stepstream-ab12-s"), (b"authorization", b"Bearer upstreams")],
            ("ab12", "s", "", [(b"authorization", b"Bearer upstreams")]),
        ),
        ([(b"x-stepstream-key", b"nonsense")], ("", "", "", [])),
    ],
)
def test_credentials_are_split_into_key_session_and_upstream_headers(
    headers: list[tuple[bytes, bytes]], expected: tuple[str, str, str, list[tuple[bytes, bytes]]]
) -> None:
    credentials = credentials_of(headers)
    assert (credentials.key_id, credentials.secret, credentials.session, credentials.upstream) == expected
    assert "secret" not in repr(credentials)


def key(**fields: Any) -> tuple[Credentials, ApiKey]:
    key_id, text, digest = new_key()
    credentials = credentials_of([(b"authorization", f"Bearer {text}:session".encode())])
    assert credentials.key_id == key_id
    return credentials, key_record(**({"key_id": key_id, "digest": digest} | fields))


def test_a_valid_key_gives_its_tenant_for_its_scopes_only() -> None:
    credentials, record = key()
    assert check_key(credentials, record, "calls").tenant == "acme"
    with pytest.raises(Forbidden, match="lacks the scope feedback; it has: calls"):
        check_key(credentials, record, "feedback")


@pytest.mark.parametrize("fields", [{"revoked": True}, {"digest": "0" * 64}, {"digest": ""}])
def test_an_invalid_key_is_refused_without_its_secret_in_the_message(fields: dict[str, Any]) -> None:
    credentials, record = key(**fields)
    with pytest.raises(Unauthorized) as caught:
        check_key(credentials, record, "calls")
    assert credentials.secret not in str(caught.value)
    with pytest.raises(Unauthorized):
        check_key(credentials, None, "calls")


class Keys(dict[str, Any]):
    """A table of keys, as followed from the topic."""

    current = True


def test_a_call_is_authorized_by_the_table_of_keys() -> None:
    credentials, record = key()
    keys = Keys({credentials.key_id: record})
    api_keys = ApiKeys(keys, new_counts(), required=True)
    assert api_keys.authorize(credentials, "calls").tenant == "acme"
    assert [api_keys.has_scope(credentials, scope) for scope in ("calls", "verdicts")] == [True, False]
    assert not api_keys.has_scope(Credentials(), "calls")
    assert ApiKeys(keys, new_counts(), required=False).authorize(Credentials(), "calls").tenant is None
    with pytest.raises(Unauthorized, match="requires an API key"):
        api_keys.authorize(Credentials(), "calls")


def test_an_unknown_key_is_no_verdict_before_the_topic_is_read() -> None:
    credentials, _ = key()
    keys = Keys()
    api_keys = ApiKeys(keys, new_counts(), required=False)
    with pytest.raises(Unauthorized):
        api_keys.authorize(credentials, "calls")
    keys.current = False
    with pytest.raises(KeysUnknown):
        api_keys.authorize(credentials, "calls")


@pytest.mark.parametrize(
    ("host", "required"), [("127.0.0.1", False), ("::1", False), ("0.0.0.0", True), ("::", True), ("10.0.0.1", True)]
)
def test_keys_are_required_as_soon_as_other_machines_reach_the_gateway(host: str, required: bool) -> None:
    assert GatewaySettings(host=host).keys_required is required
    assert GatewaySettings(host=host, require_key=True).keys_required
