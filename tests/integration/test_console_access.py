"""Test login, roles, tenants and the audit of the console over HTTP, with users on a real log."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
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
from stepstream.jobs.clickhouse.migrate import migrate
from stepstream.topics.catalogue import CONSOLE_ACTIONS
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer

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
    yield with_settings(
        registry_settings,
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
    with closing(Codec(settings)) as codec, EventConsumer(settings.kafka, codec) as events:
        events.follow([CONSOLE_ACTIONS])
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
