"""Test login at an OpenID Connect provider: a certified one, and answers that an attacker would send."""

import json
import time
from collections.abc import Callable, Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import HTTPCookieProcessor, HTTPRedirectHandler, build_opener

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, OctKey, RSAKey
from oidc_provider import CLIENT, OidcProvider, oidc_provider
from pydantic import ValidationError

from stepstream.config import ConsoleSettings
from stepstream.services.console.access.identity import NoAccess, user_of_claims
from stepstream.services.console.access.oidc import FLOW_S, LoginFailed, OidcClient
from stepstream.services.console.access.oidc_login import redirect_uri
from stepstream.services.console.users import User

RETURN = "http://127.0.0.1:8088/oidc/callback"
KEY = b"k" * 32


def config(**fields: Any) -> ConsoleSettings:
    declared = {"login": True, "oidc_issuer": "https://login.example", "oidc_client_id": "console"}
    return ConsoleSettings(**declared | fields)


@pytest.fixture(scope="module")
def provider(console_packages: Path) -> Iterator[OidcProvider]:
    with oidc_provider(console_packages, RETURN) as running:
        yield running


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return time.time() + self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(provider: OidcProvider, clock: Clock) -> OidcClient:
    return OidcClient(config(oidc_issuer=provider.issuer, oidc_role_claim="groups", **CLIENT), RETURN, KEY, clock)


class Stop(HTTPRedirectHandler):
    """Follows redirects up to the console's address."""

    def redirect_request(self, request: Any, *args: Any) -> Any:
        address = args[-1]
        return None if address.startswith(RETURN) else super().redirect_request(request, *args)


def browse(address: str) -> dict[str, str]:
    """Return the query string with which the provider leads back."""
    opener = build_opener(Stop, HTTPCookieProcessor(CookieJar()))
    try:
        with opener.open(address) as reply:
            raise AssertionError(f"the provider shows a page: {reply.read()}")
    except OSError as error:
        location = error.headers["Location"]  # type: ignore[attr-defined]
        error.close()  # type: ignore[attr-defined]
        return {name: values[0] for name, values in parse_qs(urlsplit(location).query).items()}


def test_a_person_logs_in_at_a_certified_provider(provider: OidcProvider, client: OidcClient) -> None:
    provider.logs_in(sub="1", preferred_username="ada", groups=["staff", "operator"])
    begun = client.begin("/curves?since=7d")
    query = parse_qs(urlsplit(begun.address).query)
    assert (query["response_type"], query["code_challenge_method"]) == (["code"], ["S256"])
    assert begun.cookie not in begun.address
    user, target = client.finish(begun.cookie, browse(begun.address))
    assert (user, target) == (User("oidc:ada", "operator", ""), "/curves?since=7d")


def test_a_person_whom_the_provider_refuses_does_not_get_in(provider: OidcProvider, client: OidcClient) -> None:
    provider.logs_in()
    begun = client.begin("/")
    with pytest.raises(LoginFailed, match="access_denied"):
        client.finish(begun.cookie, browse(begun.address))


def test_an_answer_counts_once_and_for_its_own_login(provider: OidcProvider, client: OidcClient, clock: Clock) -> None:
    provider.logs_in(sub="1", preferred_username="ada", groups=["admin"])
    begun, other = client.begin("/"), client.begin("/")
    answer, foreign = browse(begun.address), browse(other.address)
    wrong: list[tuple[str, dict[str, str], str]] = [
        ("", answer, "in this browser"),
        (other.cookie, answer, "another login"),
        (begun.cookie[:-1] + "?", answer, "in this browser"),
        (begun.cookie, answer | {"state": ""}, "another login"),
        (begun.cookie, answer | {"iss": "https://elsewhere.example"}, "another provider"),
        # The verifier of one login does not open the code of another.
        (begun.cookie, answer | {"code": foreign["code"]}, "did not confirm"),
    ]
    for cookie, given, message in wrong:
        with pytest.raises(LoginFailed, match=message):
            client.finish(cookie, given)
    assert client.finish(begun.cookie, answer)[0].name == "oidc:ada"
    with pytest.raises(LoginFailed, match="did not confirm"):
        client.finish(begun.cookie, answer)
    clock.now = FLOW_S + 60
    with pytest.raises(LoginFailed, match=f"more than {FLOW_S} s"):
        client.finish(other.cookie, foreign)


def test_an_id_token_of_another_key_audience_or_login_is_refused(
    provider: OidcProvider, client: OidcClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, stranger = (RSAKey.generate_key(2048, {"kid": kid}) for kid in ("own", "stranger"))
    monkeypatch.setattr(client, "_key_set", lambda newest=False: KeySet([own]))
    now = int(time.time())
    good = {"iss": provider.issuer, "sub": "1", "aud": "console", "exp": now + 60, "iat": now, "nonce": "n"}

    def claims(changed: dict[str, Any], key: Any = own, alg: str = "RS256", kid: str = "own") -> Any:
        token = jwt.encode({"alg": alg, "kid": kid}, good | changed, key, algorithms=[alg])
        return client._id_claims({"id_token": token}, "n")

    assert claims({})["sub"] == "1"
    attacks: list[Callable[[], Any]] = [
        lambda: claims({"aud": "another"}),
        lambda: claims({"aud": ["another", "console"], "azp": "another"}),
        lambda: claims({"iss": "https://elsewhere.example"}),
        lambda: claims({"nonce": "another"}),
        lambda: claims({"exp": now - 3600}),
        lambda: claims({}, stranger),
        lambda: claims({}, stranger, kid="stranger"),
        lambda: claims({}, OctKey.import_key(json.dumps(own.as_dict(private=False))), "HS256"),
    ]
    for attack in attacks:
        with pytest.raises(Exception, match=r".+") as refused:
            attack()
        assert type(refused.value).__module__.startswith("joserfc"), refused.value


def test_a_provider_with_another_name_or_none_is_an_error(provider: OidcProvider) -> None:
    for issuer, message in (
        (provider.issuer.replace("127.0.0.1", "localhost"), "calls itself"),
        ("http://127.0.0.1:1", "does not answer"),
    ):
        with pytest.raises(LoginFailed, match=message):
            OidcClient(config(oidc_issuer=issuer), RETURN, KEY).begin("/")


@pytest.mark.parametrize(
    ("claims", "fields", "expected"),
    [
        ({"roles": ["viewer", "admin"]}, {}, User("oidc:7", "admin", "")),
        ({"roles": "operator", "preferred_username": "ada"}, {}, User("oidc:ada", "operator", "")),
        ({"realm": {"roles": ["viewer"]}}, {"oidc_role_claim": "realm.roles"}, User("oidc:7", "viewer", "")),
        (
            {"https://x.example/groups": ["cn=ml,o=x"], "email": "a@x", "org": ["acme"]},
            {
                "oidc_role_claim": "https://x.example/groups",
                "oidc_roles": ["cn=ml,o=x=operator", "staff=viewer"],
                "oidc_name_claim": "email",
                "oidc_tenant_claim": "org",
            },
            User("oidc:a@x", "operator", "acme"),
        ),
        ({"roles": ["viewer"], "org": "*"}, {"oidc_tenant_claim": "org"}, User("oidc:7", "viewer", "")),
    ],
)
def test_claims_give_name_role_and_tenant(claims: Any, fields: Any, expected: User) -> None:
    assert user_of_claims({"sub": "7", **claims}, config(**fields)) == expected


@pytest.mark.parametrize(
    ("claims", "fields"),
    [
        ({}, {}),
        ({"roles": ["root", 1, None]}, {}),
        ({"roles": ["admin"]}, {"oidc_roles": ["staff=viewer"]}),
        ({"roles": ["admin"]}, {"oidc_tenant_claim": "org"}),
        ({"roles": ["admin"], "org": ""}, {"oidc_tenant_claim": "org"}),
        ({"roles": ["admin"], "org": ["acme", "other"]}, {"oidc_tenant_claim": "org"}),
    ],
)
def test_claims_without_role_or_tenant_give_no_access(claims: Any, fields: Any) -> None:
    with pytest.raises(NoAccess):
        user_of_claims({"sub": "7", **claims}, config(**fields))


def test_settings_that_would_not_be_safe_are_refused() -> None:
    for fields in (
        {"login": False},
        {"oidc_client_id": ""},
        {"oidc_scopes": ["profile"]},
        {"oidc_issuer": "http://login.example"},
        {"oidc_roles": ["staff=root"]},
    ):
        with pytest.raises(ValidationError):
            config(**fields)
    assert redirect_uri(config(public_url="https://c.example/")) == "https://c.example/oidc/callback"
    assert redirect_uri(config(port=9)) == "http://127.0.0.1:9/oidc/callback"
    assert redirect_uri(config(host="::1", port=9)) == "http://[::1]:9/oidc/callback"
