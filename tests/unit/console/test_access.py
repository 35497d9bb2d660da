"""Test who is admitted to the console: passwords, sessions, roles, tokens, guesses."""

from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from stepstream.config import ConsoleSettings, Settings, load
from stepstream.core.process import Fatal
from stepstream.services.console.__main__ import check_access
from stepstream.services.console.access.attempts import FREE_ATTEMPTS, Attempts
from stepstream.services.console.access.gate import Gate, Refused
from stepstream.services.console.access.passwords import digest_of, is_password
from stepstream.services.console.access.sessions import action_token, new_session, sign, verify
from stepstream.services.console.endpoints import Endpoint
from stepstream.services.console.users import LOCAL, User
from stepstream.topics.events import ConsoleUser, new_console_user

PASSWORD = "correct horse battery"
DIGEST = digest_of(PASSWORD)
KEY = b"k" * 32


def user(name: str = "ada", role: str = "viewer", tenant: str = "", **fields: Any) -> ConsoleUser:
    fields = {"password_digest": DIGEST} | fields
    return new_console_user(event_id="e", occurred_at_us=0, name=name, role=role, tenant=tenant, **fields)


def settings(**console: Any) -> Settings:
    return load({f"STEPSTREAM_CONSOLE_{name}".upper(): str(value) for name, value in console.items()})


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Console:
    """A gate with users that a test changes, and a clock that it moves."""

    def __init__(self, *records: ConsoleUser, **console: Any) -> None:
        self.users: dict[str, ConsoleUser] | None = {record["name"]: record for record in records}
        self.clock = Clock()
        own = settings(**{"login": True, "session_key": "k" * 32} | console)
        self.gate = Gate(own, lambda: self.users, self.clock)

    def request(self, cookie: str = "", token: str = "") -> Request:
        headers = [(b"cookie", f"stepstream={cookie}".encode()), (b"x-csrf-token", token.encode())]
        return Request({"type": "http", "method": "GET", "path": "/", "headers": headers, "query_string": b""})


def endpoint(**fields: Any) -> Endpoint:
    declared: dict[str, Any] = {"path": "/api/x", "role": "viewer", "installation": False, "read": lambda call: {}}
    return Endpoint(**declared | fields)


def test_a_digest_accepts_its_password_only() -> None:
    assert DIGEST.startswith("$argon2id$v=19$m=65536,t=3,p=4$")
    assert is_password(PASSWORD, DIGEST)
    assert not is_password(PASSWORD + "x", DIGEST)
    assert not is_password(PASSWORD, None)
    assert not is_password("x" * 2000, DIGEST)
    assert digest_of(PASSWORD) != DIGEST  # salted


def test_a_session_is_valid_until_its_end_and_unchanged() -> None:
    session = new_session("ada", "c", 100.0)
    cookie = sign(session, KEY)
    assert verify(cookie, KEY, 99.9) == session
    assert verify(cookie, KEY, 100.0) is None
    assert verify(cookie, b"another", 99.9) is None
    for forged in ("", ".", "x", cookie[:-1], "A" + cookie[1:], cookie + "é", cookie.replace(".", "")):
        assert verify(forged, KEY, 99.9) is None, forged
    assert action_token(cookie, KEY) != cookie.rpartition(".")[2]  # the cookie does not reveal the token


def test_a_login_gives_the_role_and_tenant_of_the_record() -> None:
    console = Console(user(role="operator", tenant="acme"))
    assert console.gate.user_of(console.request()) is None
    cookie = console.gate.log_in("ada", PASSWORD)
    assert console.gate.user_of(console.request(cookie)) == User("ada", "operator", "acme")
    console.clock.now += 13 * 3600
    assert console.gate.user_of(console.request(cookie)) is None


@pytest.mark.parametrize(
    "changed",
    [user(role="admin"), user(tenant="acme"), user(password_digest="other"), user(removed=True), user(role="root")],
    ids=["role", "tenant", "password", "removed", "unknown role"],
)
def test_a_change_of_the_user_ends_the_sessions(changed: ConsoleUser) -> None:
    console = Console(user())
    cookie = console.gate.log_in("ada", PASSWORD)
    console.users = {"ada": changed}
    assert console.gate.user_of(console.request(cookie)) is None
    console.users = None  # not read yet after a restart
    assert console.gate.user_of(console.request(cookie)) is None


def test_a_wrong_name_and_a_wrong_password_look_alike() -> None:
    console = Console(user(), user("gone", removed=True, password_digest=""))
    answers = set()
    for name, password in (("ada", "wrong"), ("nobody", PASSWORD), ("gone", PASSWORD), ("gone", "")):
        with pytest.raises(Refused) as refused:
            console.gate.log_in(name, password)
        answers.add((refused.value.status, str(refused.value)))
    assert answers == {(401, "name or password is wrong")}
    console.users = None
    with pytest.raises(Refused) as refused:
        console.gate.log_in("ada", PASSWORD)
    assert refused.value.status == 503


def test_guesses_become_slow() -> None:
    attempts = Attempts()
    for _ in range(FREE_ATTEMPTS - 1):
        attempts.fail("ada", 0.0)
    assert attempts.wait_s("ada", 0.0) == 0
    waits = []
    for _ in range(12):
        attempts.fail("ada", 0.0)
        waits.append(attempts.wait_s("ada", 0.0))
    assert waits[:4] == [1, 2, 4, 8]
    assert waits[-1] == 900
    assert attempts.wait_s("bob", 0.0) == 0
    assert attempts.wait_s("ada", 900.0) == 0
    attempts.succeed("ada")
    attempts.fail("ada", 0.0)
    assert attempts.wait_s("ada", 0.0) == 0


def test_a_name_that_fails_for_weeks_waits_on() -> None:
    attempts = Attempts()
    for _ in range(2000):
        attempts.fail("ada", 0.0)
    assert attempts.wait_s("ada", 0.0) == 900


def test_the_gate_refuses_a_name_that_failed_too_often() -> None:
    console = Console(user())
    for _ in range(FREE_ATTEMPTS):
        with pytest.raises(Refused):
            console.gate.log_in("ada", "wrong")
    with pytest.raises(Refused) as refused:
        console.gate.log_in("ada", PASSWORD)
    assert refused.value.status == 429
    console.clock.now += 1
    console.gate.log_in("ada", PASSWORD)


def test_an_endpoint_admits_its_role_and_those_above() -> None:
    console = Console(*(user(role, role) for role in ("viewer", "operator", "admin")), user("one", "admin", "acme"))
    cookies = {name: console.gate.log_in(name, PASSWORD) for name in ("viewer", "operator", "admin", "one")}

    def status(name: str, token: str | None = None, **fields: Any) -> int:
        cookie = cookies.get(name, "")
        try:
            console.gate.admit(console.request(cookie, token or ""), endpoint(**fields))
        except Refused as refused:
            return refused.status
        return 200

    assert status("nobody") == 401
    assert [status(name) for name in cookies] == [200, 200, 200, 200]
    assert [status(name, role="operator") for name in cookies] == [403, 200, 200, 200]
    assert [status(name, role="admin") for name in cookies] == [403, 403, 200, 200]
    assert [status(name, installation=True) for name in cookies] == [200, 200, 200, 403]
    action: dict[str, Any] = {"read": None, "act": lambda call: None, "role": "operator"}
    tokens = {name: console.gate.token_of(console.request(cookie)) for name, cookie in cookies.items()}
    assert [status(name, **action) for name in cookies] == [403, 403, 403, 403]
    assert [status(name, tokens["viewer"], **action) for name in cookies] == [403, 403, 403, 403]
    assert [status(name, tokens[name], **action) for name in cookies] == [403, 200, 200, 200]
    assert [status(name, tokens[name] + "é", **action) for name in cookies] == [403, 403, 403, 403]
    with pytest.raises(Refused):  # a login also carries a token
        console.gate.check_token(console.request(token="é"))


def test_the_cookie_is_hardened() -> None:
    def header(**console: Any) -> str:
        response = Response()
        Console(**console).gate.set_cookie(response, "c")
        return response.headers["set-cookie"]

    plain = header()
    assert plain.startswith("stepstream=c;")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(plain.split("; "))
    assert "Secure" not in plain
    assert header(public_url="https://console.example").startswith("__Host-stepstream=c;")
    assert "; Secure" in header(public_url="https://console.example")
    assert "Domain" not in header(public_url="https://console.example")


def test_without_login_only_this_machine_reaches_the_console() -> None:
    assert Console(login=False).gate.user_of(Console().request()) == LOCAL
    check_access(ConsoleSettings())
    check_access(ConsoleSettings(host="::1"))
    check_access(ConsoleSettings(host="0.0.0.0", login=True))
    for host in ("0.0.0.0", "::", "10.0.0.1", "console"):
        with pytest.raises(Fatal, match="STEPSTREAM_CONSOLE_LOGIN"):
            check_access(ConsoleSettings(host=host))


def test_a_session_of_the_provider_ends_with_its_settings() -> None:
    provider = {"oidc_issuer": "https://login.example", "oidc_client_id": "console"}
    console = Console(user("oidc:ada", "admin"), **provider)
    ada = User("oidc:ada", "operator", "acme")
    cookie = console.gate.begin_oidc(ada)
    assert console.gate.user_of(console.request(cookie)) == ada
    for changed in ({}, provider | {"oidc_role_claim": "groups"}, provider | {"oidc_tenant_claim": "org"}):
        assert Console(**changed).gate.user_of(console.request(cookie)) is None
    console.clock.now += 13 * 3600
    assert console.gate.user_of(console.request(cookie)) is None
