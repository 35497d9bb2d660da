"""Run one console with login over planted tables and a real log, for all tests in a browser."""

import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from browser import Chromium, Page
from console_process import console, insert_rows
from console_trajectories import HOSTILE, plant, put
from oidc_provider import CLIENT, OidcProvider, oidc_provider
from sample_records import dead_letter
from stack_fixtures import with_settings
from store_fixtures import StoreProcess, store_process
from waiting import wait_until

from stepstream.config import Settings
from stepstream.embedded.ports import free_block
from stepstream.jobs.clickhouse.migrate import migrate
from stepstream.services.console.access.passwords import digest_of
from stepstream.services.control.policy_versions import applied, record_key
from stepstream.topics.catalogue import CONSOLE_USERS, CONTROL_POLICIES, DEAD_LETTERS, DECISIONS, STEPS
from stepstream.topics.client import producer
from stepstream.topics.codec import Codec
from stepstream.topics.events import (
    Decision,
    new_console_user,
    new_decision,
    new_decision_alternative,
    new_decision_evidence,
)
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer

PASSWORD = "correct horse battery"
USERS = {"alma": ("admin", ""), "omar": ("operator", ""), "vic": ("viewer", "acme")}
"""Role and tenant of each user."""
LETTER = "letter-of-the-console"
BROKEN = b"bytes that are not Avro"
WAITING = "decision-of-the-console"
"""Decision of tenant `acme` that two people must approve."""

PAGES = (
    "overview",
    "trajectories",
    "trajectory?tenant=default&id=left",
    "compare?tenant=default&left=left&right=right",
    "review",
    "rewards",
    "tools?tool=get",
    "people",
    f"decisions?id={WAITING}",
    "curves",
    "fleet",
    "pipeline",
    "settings",
    "audit",
)
"""The address of every page, with something to show."""


@dataclass(frozen=True)
class World:
    """A console with its tables, its log, its provider, and a browser."""

    url: str
    settings: Settings
    store: StoreProcess
    provider: OidcProvider
    chromium: Chromium

    @asynccontextmanager
    async def person(self, name: str, path: str = "overview") -> AsyncIterator[Page]:
        """Open a page as a user who has logged in; at the end, check for faults and for requests elsewhere."""
        async with self.chromium.page(f"{self.url}/login") as page:
            await page.wait_until("document.querySelector('.login')")
            await page.evaluate(LOG_IN % {"name": name, "password": PASSWORD})
            await open_path(page, self.url, path)
            yield page
            assert page.faults == []
            assert {address for address in page.requests if not address.startswith((self.url, "data:"))} == set()


LOG_IN = """(async () => {
  const { csrf } = await (await fetch('/api/session')).json();
  const reply = await fetch('/api/login', {
    method: 'POST', headers: { 'Content-Type': 'application/json', 'X-CSRF-Token': csrf },
    body: JSON.stringify({ name: '%(name)s', password: '%(password)s' }),
  });
  if (!reply.ok) throw new Error(await reply.text());
})()"""


async def shown(page: Page, name: str) -> str:
    """Wait until a page is drawn; return its text."""
    await page.wait_until(f"document.querySelector('main')?.dataset.page === '{name}'")
    return str(await page.evaluate("document.querySelector('main').innerText"))


async def open_path(page: Page, url: str, path: str) -> str:
    """Load an address of the console; return its text."""
    await page.go(f"{url}/{path}")
    return await shown(page, path.partition("?")[0])


@pytest.fixture(scope="session")
def console_world(
    registry_settings: Settings, chromium: Chromium, console_packages: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """One console for the session; a test that changes something uses rows of its own."""
    folder = tmp_path_factory.mktemp("console-world")
    store = store_process(folder)
    port = free_block(1)
    with ExitStack() as stack:
        provider = stack.enter_context(oidc_provider(console_packages, f"http://127.0.0.1:{port}/oidc/callback"))
        settings = with_settings(
            registry_settings,
            clickhouse={"url": store.url},
            store={"port": store.settings.store.port},
            paths={"data": folder},
            console={
                "port": port,
                "login": True,
                "oidc_issuer": provider.issuer,
                "oidc_role_claim": "groups",
                "oidc_tenant_claim": "tenant",
                **CLIENT,
            },
        )
        store.start()
        stack.callback(store.stop)
        migrate(settings)
        insert_rows(settings)
        plant(settings)
        _write_log(settings)
        url = stack.enter_context(console(settings, folder, port))
        wait_until(lambda: _knows_users(url), "the console has read its users")
        yield World(url, settings, store, provider, chromium)


def _knows_users(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/api/session") as reply:
        token = json.load(reply)["csrf"]
    headers = {"Content-Type": "application/json", "X-CSRF-Token": token}
    body = json.dumps({"name": "alma", "password": PASSWORD}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/api/login", body, headers)) as reply:
            return bool(reply.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 503:
            raise
        return False


def _write_log(settings: Settings) -> None:
    """Write the users, a record that is no event, and the dead letter about it."""
    raw = producer(settings.kafka, {"acks": "all"})
    placed: list[tuple[int | None, int | None]] = []
    raw.produce(STEPS, BROKEN, b"console", on_delivery=lambda _, sent: placed.append((sent.partition(), sent.offset())))
    raw.flush(60)
    [(partition, offset)] = placed
    assert partition is not None
    assert offset is not None
    letter = dead_letter(
        event_id=LETTER,
        occurred_at_us=now_us(),
        key=b"console",
        partition=partition,
        offset=offset,
        value_bytes=len(BROKEN),
        value_sha256=hashlib.sha256(BROKEN).hexdigest(),
    )
    put(settings, ("dead-letters", letter))
    digest = digest_of(PASSWORD)
    with closing(Codec(settings)) as codec:
        events = EventProducer(settings.kafka, codec, "test")
        events.send(DEAD_LETTERS, "console", letter)
        for name, (role, tenant) in USERS.items():
            record = new_console_user(
                event_id=new_event_id(),
                occurred_at_us=now_us(),
                name=name,
                role=role,
                tenant=tenant,
                password_digest=digest,
            )
            events.send(CONSOLE_USERS, name, record)
        events.send(DECISIONS, "acme", _decision())
        policy = applied(
            [], name="console", document='tenant = "acme"', author="alma", event_id=new_event_id(), now_us=now_us()
        )
        events.send(CONTROL_POLICIES, record_key("acme", "console"), policy)
        events.flush(60)


def _decision() -> Decision:
    """Return `WAITING`, with evidence, a proposal that lost, and text of an agent that is hostile."""
    return new_decision(
        event_id=WAITING,
        occurred_at_us=now_us(),
        tenant="acme",
        agent="console",
        model="demo",
        action="canary",
        lever="weights",
        target="2",
        share=0.05,
        rule="new_version",
        reason=f"version 2 was never tried {HOSTILE}",
        evidence=[new_decision_evidence(name="success", value=0.5, low=0.4, high=0.6, n=100)],
        lost=[new_decision_alternative(rule="gradient", lever="weights", action="train", reason="learning runs")],
        policy_hash="0123456789abcdef",
        cost=10.0,
        blast_radius=0.3,
        approvals=2,
        roles=["operator"],
        watched_until_us=now_us() + 3_600_000_000,
    )
