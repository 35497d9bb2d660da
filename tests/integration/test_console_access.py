"""Test login, roles, tenants and the audit of the console over HTTP, with users on a real log."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from console_process import console
from stack_fixtures import with_settings
from store_fixtures import store_process
from waiting import TIMEOUT_S, wait_until

from stepstream.cli.console import console as command
from stepstream.config import Settings, environment_of
from stepstream.crypto.signatures import create_key
from stepstream.jobs.clickhouse.migrate import migrate
from stepstream.services.control.signatures import TrustedKeys
from stepstream.topics.catalogue import APPROVALS, CONSOLE_ACTIONS, DECISIONS
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import Decision, new_decision, new_decision_evidence
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer

PASSWORD = "correct horse battery"


class Browser:
    """A caller with a cookie jar of one cookie."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc
        self.cookie = ""
        self.token = ""

    def call(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        with closing(http.client.HTTPConnection(self._address, timeout=TIMEOUT_S)) as connection:
            sent = {"Cookie": self.cookie, "X-CSRF-Token": self.token, "Content-Type": "application/json"} | headers
            text = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", path, text, sent)
            reply = connection.getresponse()
            content = reply.read()
            if cookie := reply.getheader("Set-Cookie"):
                self.cookie = cookie.partition(";")[0]
            return reply.status, json.loads(content) if content.startswith(b"{") else content

    def open(self) -> Any:
        """Read the session, as the page does."""
        _, session = self.call("/api/session")
        self.token = session["csrf"]
        return session["user"]

    def log_in(self, name: str, password: str = PASSWORD) -> int:
        self.open()
        status, _ = self.call("/api/login", {"name": name, "password": password})
        self.open()
        return status


@pytest.fixture(scope="module")
def own_settings(registry_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    folder = tmp_path_factory.mktemp("console")
    store = store_process(folder)
    store.start()
    migrate(store.settings)
    public = create_key(folder / "approvals.pem")
    yield with_settings(
        registry_settings,
        control={"signing_key": str(folder / "approvals.pem"), "trusted_keys": [public]},
        clickhouse={"url": store.url},
        store={"port": store.settings.store.port},
        paths={"data": folder},
        console={"login": True},
    )
    store.stop()


def users(settings: Settings, *words: str) -> Any:
    result = CliRunner().invoke(
        command, ["users", *words, "--json"], env={**environment_of(settings), "STEPSTREAM_CONSOLE_PASSWORD": PASSWORD}
    )
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def actions(settings: Settings) -> list[Any]:
    return on_log(settings, CONSOLE_ACTIONS)


def on_log(settings: Settings, topic: str) -> list[Any]:
    with closing(Codec(settings)) as codec, EventConsumer(settings.kafka, codec) as events:
        events.follow([topic])
        found: list[Any] = []
        while not events.is_caught_up():
            found += [event.record for event in events.poll(100, 0.2) if event.record is not None]
    return found


def test_people_log_in_with_roles_and_leave(own_settings: Settings, tmp_path: Path) -> None:
    users(own_settings, "add", "ada", "--role", "admin")
    users(own_settings, "add", "vera", "--tenant", "acme")
    # Other tests of this log have users of their own.
    listed = {row["name"]: (row["role"], row["tenant"]) for row in users(own_settings, "list")}
    assert (listed["ada"], listed["vera"]) == (("admin", ""), ("viewer", "acme"))
    with console(own_settings, tmp_path) as url:
        stranger = Browser(url)
        assert stranger.open() is None
        assert stranger.call("/api/overview")[0] == 401
        assert stranger.call("/api/events")[0] == 401
        assert stranger.call("/metrics")[0] == 200
        assert stranger.log_in("ada", "wrong password") in {401, 503}
        ada, vera = Browser(url), Browser(url)
        wait_until(lambda: ada.log_in("ada") == 200, "the console has read its users")
        assert vera.log_in("vera") == 200
        assert ada.open() == {"name": "ada", "role": "admin", "tenant": ""}
        assert vera.open() == {"name": "vera", "role": "viewer", "tenant": "acme"}
        assert vera.call("/api/overview")[0] == 200
        # Another site's page has neither the token nor permission to read it.
        assert ada.call("/api/logout", {}, **{"X-CSRF-Token": ""})[0] == 403
        assert ada.call("/api/logout", {}, Origin="https://elsewhere.example")[0] == 403
        assert ada.call("/api/logout", {}, **{"Content-Type": "text/plain"})[0] == 200
        assert ada.open() is None
        # A removed user is out at once.
        users(own_settings, "remove", "vera")
        wait_until(lambda: vera.call("/api/overview")[0] == 401, "the removal arrives")
        assert vera.log_in("vera") == 401
    logins = [(row["user"], row["state"]) for row in actions(own_settings) if row["action"] == "/api/login"]
    assert ("ada", "done") in logins
    assert ("vera", "done") in logins


def knows(browser: Browser, name: str) -> bool:
    return browser.log_in(name) == 200


def planted_decision(settings: Settings, **fields: Any) -> Decision:
    """Write a decision of the tenant `shop` that two people must approve within an hour."""
    values: dict[str, Any] = {
        "agent": "till",
        "model": "m",
        "action": "canary",
        "lever": "weights",
        "target": "2",
        "evidence": [new_decision_evidence(name="success", value=0.5, low=0.4, high=0.6, n=100)],
        "approvals": 2,
        "roles": ["operator"],
        "watched_until_us": now_us() + 3_600_000_000,
        **fields,
    }
    decision = new_decision(event_id=new_event_id(), occurred_at_us=now_us(), tenant="shop", **values)
    with closing(Codec(settings)) as codec:
        producer = EventProducer(settings.kafka, codec, "test", linger_ms=0)
        producer.send(DECISIONS, "shop", decision)
        producer.flush(TIMEOUT_S)
    return decision


def test_people_answer_undo_and_freeze_by_role(own_settings: Settings, tmp_path: Path) -> None:
    roles = {"olga": "operator", "adam": "admin", "viola": "viewer", "otto": "operator"}
    for name, role in roles.items():
        users(own_settings, "add", name, "--role", role, "--tenant", "other" if name == "otto" else "shop")
    replaced = planted_decision(own_settings)["event_id"]
    waiting = planted_decision(own_settings)["event_id"]
    late = planted_decision(own_settings, agent="late", watched_until_us=now_us() - 1)["event_id"]
    with console(own_settings, tmp_path) as url:
        people = {name: Browser(url) for name in roles}
        for name, browser in people.items():
            wait_until(partial(knows, browser, name), "the console knows the user")
        olga, adam, viola, otto = people.values()

        def answer(person: Browser, decision_id: str, verdict: str = "approved") -> tuple[int, str]:
            body = {"id": decision_id, "verdict": verdict, "comment": "sound"}
            status, reply = person.call("/api/decisions/answer", body)
            return status, reply.get("error", "")

        status, page = viola.call(f"/api/decisions?id={waiting}")
        assert (status, page["decision"]["state"], page["decision"]["may_answer"]) == (200, "awaiting", False)
        assert page["decision"]["evidence"][0]["low"] == 0.4
        assert [one["window"] for one in page["decision"]["effect"]] == ["before", "since"]
        # Each answer that does not count is refused with its reason.
        for person, decision_id, fault in (
            (viola, waiting, "it needs one of the roles operator; yours is viewer"),
            (olga, replaced, f"it is no longer current: decision {waiting} replaced it"),
            (olga, late, "it could be answered until"),
            (otto, waiting, f"there is no decision {waiting}"),
        ):
            status, error = answer(person, decision_id)
            assert (status, fault in error) == (400, True), error
        assert answer(olga, waiting, "maybe")[0] == 400
        assert olga.call("/api/decisions/answer", {"id": waiting}, **{"X-CSRF-Token": ""})[0] == 403
        assert answer(olga, waiting) == (200, "")
        status, error = answer(olga, waiting)
        assert (status, "another person must approve" in error) == (400, True)
        assert answer(adam, waiting) == (200, "")
        assert "olga, adam approved it already" in answer(adam, waiting, "rejected")[1]
        # An undo is refused, too, if nothing can be taken back.
        assert viola.call("/api/decisions/undo", {"id": waiting})[0] == 403
        status, reply = olga.call("/api/decisions/undo", {"id": waiting})
        assert (status, "is not the canary any more" in reply["error"]) == (400, True)
        assert otto.call("/api/decisions/undo", {"id": waiting})[0] == 400
        # The kill switch holds for the person's tenant only.
        assert viola.call("/api/decisions/freeze", {"frozen": True})[0] == 403
        assert otto.call("/api/decisions/freeze", {"frozen": True, "tenant": "shop"})[0] == 400
        assert olga.call("/api/decisions/freeze", {"frozen": "yes"})[0] == 400
        assert olga.call("/api/decisions/freeze", {"frozen": True})[1]["changed"] == ["default"]
        page = viola.call(f"/api/decisions?id={waiting}")[1]
        assert (page["decision"]["state"], page["policies"][0]["frozen"]) == ("approved", True)
        assert "It applies to tenant shop" in page["policies"][0]["sentences"][0]
        assert olga.call("/api/decisions/freeze", {"frozen": False})[1]["changed"] == ["default"]
        # The other tenant sees neither decisions nor policies.
        page = otto.call("/api/decisions")[1]
        assert (page["decisions"], page["policies"]) == ([], [])
        assert otto.call(f"/api/decisions?id={waiting}")[0] == otto.call("/api/decisions?state=x")[0] == 400
    answers = [one for one in on_log(own_settings, APPROVALS) if one["decision_id"] in {waiting, replaced, late}]
    assert [(one["author"], one["role"], bool(one["refused"])) for one in sorted(answers, key=by_time)] == [
        ("viola", "viewer", True),
        *[("olga", "operator", True)] * 3,
        ("olga", "operator", False),
        ("olga", "operator", True),
        ("adam", "admin", False),
        ("adam", "admin", True),
    ]
    keys = TrustedKeys(own_settings.control.trusted_keys)
    assert [keys.fault(one) for one in answers] == [""] * 8, "the console signs each answer"
    done = {(row["user"], row["action"], row["state"]) for row in actions(own_settings)}
    assert {("otto", "/api/decisions/answer", "failed"), ("olga", "/api/decisions/freeze", "done")} <= done


def by_time(record: Any) -> tuple[int, str]:
    return record["occurred_at_us"], record["event_id"]
