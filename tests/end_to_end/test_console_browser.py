"""Test the console in a real browser: every page, live changes, filters, keys, roles, tenants, actions, accessibility.

All tests share one console, store, log and browser (`console_world`).
"""

import json
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest_asyncio
from browser import Chromium, Page
from console_process import console, insert_rows
from console_trajectories import attempt, put
from console_world import BROKEN, PAGES, WAITING, World, open_path, shown
from sample_records import SECOND_US
from store_fixtures import store_process

from stepstream.config import Settings
from stepstream.jobs.clickhouse.migrate import migrate
from stepstream.topics.catalogue import APPROVALS, CURATION, FEEDBACK, STEPS
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import Event, EventConsumer
from stepstream.topics.ids import now_us

# Pixels of a chart's canvas that are drawn on.
DRAWN = """(() => {
  const canvas = document.querySelector('#chart-%s canvas');
  if (!canvas) return 0;
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  let drawn = 0;
  for (let at = 3; at < data.length; at += 4) drawn += data[at] > 0;
  return drawn;
})()"""
COUNT_STREAMS = """
window.EventSource = class extends EventSource {
  constructor(address) { super(address); this.count(1); }
  close() { super.close(); this.count(-1); }
  count(change) { sessionStorage.streams = Number(sessionStorage.streams ?? 0) + change; }
};
"""
OPEN_STREAMS = "Number(sessionStorage.streams)"
VERSIONS = (
    "[...document.querySelectorAll('main [aria-label=Versions] tbody td:first-child')]"
    ".map((one) => one.textContent.trim()).join(' ')"
)
NAVIGATION = "[...document.querySelectorAll('nav a')].map((link) => link.textContent)"
EXCESS_PX = "document.documentElement.scrollWidth - innerWidth"
HIDDEN_SECTIONS = (
    "[...document.querySelectorAll('main section')].filter((one) => !one.offsetHeight).map((one) => one.ariaLabel)"
)
SERIOUS = """(async () => {
  const { violations } = await axe.run(document, { resultTypes: ['violations'], preload: false, ...%s });
  return violations.filter(({ impact }) => ['serious', 'critical'].includes(impact)).flatMap(({ id, nodes }) =>
    nodes.map(({ target, failureSummary }) => `${id}: ${target} ${failureSummary}`));
})()"""
CONTRAST = {"runOnly": ["color-contrast"]}
LAYOUT = {"runOnly": ["color-contrast", "scrollable-region-focusable", "target-size", "meta-viewport"]}
"""Rules whose result depends on the width; the others judge the document, which is the same on every screen."""


@pytest_asyncio.fixture
async def admin(console_world: World) -> AsyncIterator[Page]:
    async with console_world.person("alma") as page:
        yield page


async def click(page: Page, selector: str, text: str = "") -> None:
    """Click the first element that a selector finds and whose text is `text`."""
    find = f"[...document.querySelectorAll({selector!r})].find((one) => one.textContent.trim().includes({text!r}))"
    await page.wait_until(f"!!{find}")
    await page.evaluate(f"{find}.click()")


async def choose(page: Page, name: str, value: str) -> None:
    """Choose an option of a filter, once it is offered."""
    select = f"document.querySelector('select[name={name}]')"
    await page.wait_until(f"[...{select}?.options ?? []].some((one) => one.value === '{value}')")
    await page.evaluate(
        f"(() => {{ const it = {select}; it.value = '{value}'; it.dispatchEvent(new Event('change')); }})()"
    )


async def test_the_overview_shows_the_tables(admin: Page, console_world: World) -> None:
    text = await open_path(admin, console_world.url, "overview?model=demo")
    assert "v1, eval: 37.6 % to 96.4 % of 5" in text
    assert "largest 0; bound" in text
    assert "a, demo: length rose" in await admin.evaluate("document.querySelector('#alarms').innerText")
    assert await admin.wait_until(DRAWN % "steps") > 500
    theme = await admin.evaluate("document.documentElement.dataset.theme")
    await click(admin, "#theme")
    assert await admin.evaluate("document.documentElement.dataset.theme") != theme
    assert await admin.wait_until(DRAWN % "steps") > 500


async def test_every_page_opens_by_keyboard_and_link(admin: Page, console_world: World) -> None:
    opened = {
        "c": ("curves", "37.6 % to 96.4 %"),
        "f": ("fleet", "demo v1"),
        "p": ("pipeline", "Newest dead letters"),
        "s": ("settings", "console.host"),
        "t": ("trajectories", "hostile"),
        "v": ("review", "quality"),
        "r": ("rewards", "length"),
        "u": ("tools", "Tools"),
        "e": ("people", "hostile"),
        "d": ("decisions", "Policy console of acme"),
        "a": ("audit", "/api/login"),
        "o": ("overview", "1 active alarm"),
    }
    for key, (page, text) in opened.items():
        await admin.press("g", key)
        assert text in await shown(admin, page), page
        assert await admin.evaluate("location.pathname") == f"/{page}"
    await admin.press("?")
    assert await admin.evaluate("document.querySelector('#help').open") is True
    await admin.press("Escape")
    # A filter is in the address, and the address alone shows it again.
    await open_path(admin, console_world.url, "settings?text=console.session_hours")
    assert await admin.evaluate("document.querySelectorAll('tbody tr').length") == 1
    await admin.go(f"{console_world.url}/nothing")
    await admin.wait_until("document.querySelector('main')?.innerText.includes('There is no page nothing')")


async def test_a_page_follows_the_tables(admin: Page, console_world: World) -> None:
    await open_path(admin, console_world.url, "trajectories?agent=latecomer")
    await admin.wait_until("document.querySelector('#status').dataset.state === 'live'")
    put(console_world.settings, *attempt("late", ["here"], now_us() - 60 * SECOND_US, agent="latecomer"))
    await admin.wait_until("document.querySelectorAll('main tbody tr').length === 1")


async def test_filters_links_and_keys_lead_to_a_trajectory(admin: Page, console_world: World) -> None:
    await open_path(admin, console_world.url, "trajectories")
    assert "U+202E" in await admin.evaluate("document.querySelector('main tbody').textContent")
    await admin.press("/")
    assert await admin.evaluate("document.activeElement.name") == "text"
    await admin.press(*"apples", "Enter")
    await admin.wait_until("document.querySelectorAll('main tbody tr').length === 1")
    assert "text=apples" in await admin.evaluate("location.search")
    await admin.evaluate("document.activeElement.blur()")
    await admin.press("j")
    assert await admin.evaluate("document.activeElement.textContent") == "left"
    await admin.press("Enter")
    text = await shown(admin, "trajectory")
    for part in (
        "buy apples",
        "not trainable",
        "Attempts of its group",
        "Sub-agents and hand-offs",
        "email: 1 redacted",
    ):
        assert part in text
    assert await admin.evaluate("document.querySelector('.steps .redaction').textContent") == "<EMAIL:3f9a21bc>"


async def test_the_filters_by_tenant_and_harness_choose_rows(admin: Page, console_world: World) -> None:
    begin = now_us() - 1800 * SECOND_US  # older than the others, which pages show first
    for version, (tenant, harness) in enumerate([("default", "h1"), ("globex", "h1"), ("globex", "h2")], 1):
        fields: Any = {"tenant": tenant, "harness_version": harness, "model": "filtered", "success": True}
        put(console_world.settings, *attempt(f"filtered-{version}", ["here"], begin, version=version, **fields))
    await open_path(admin, console_world.url, "curves?model=filtered&since=1h")
    steps = [("", "", "v3 v2 v1"), ("harness", "h1", "v2 v1"), ("tenant", "globex", "v2"), ("harness", "", "v3 v2")]
    for name, value, versions in steps:
        if name:
            await choose(admin, name, value)
            assert f"{name}={value}" in await admin.evaluate("location.search") or not value
        await admin.wait_until(f"{VERSIONS} === '{versions}'")
    await choose(admin, "tenant", "default")
    await admin.wait_until(f"{VERSIONS} === 'v1'")
    offered = "[...document.querySelectorAll('select[name=harness] option')].map((one) => one.value)"
    assert await admin.evaluate(offered) == ["", "h1"]
    await open_path(admin, console_world.url, "trajectories")
    await admin.evaluate("document.querySelector('input[name=tenant]').focus()")
    await admin.press(*"globex", "Enter")
    names = "[...document.querySelectorAll('main tbody td:first-child')].map((one) => one.textContent.trim()).join(' ')"
    await admin.wait_until(f"{names} === 'filtered-3 filtered-2'")


async def test_hostile_text_is_text(admin: Page, console_world: World) -> None:
    text = await open_path(admin, console_world.url, "trajectory?tenant=default&id=hostile")
    assert "<script>window.hacked = 1</script>" in text
    assert "U+202E" in text
    assert await admin.evaluate("window.hacked") is None
    assert "996,000 more characters" in text
    await click(admin, "button", "Show all")
    await admin.wait_until("document.querySelector('main').textContent.includes('x'.repeat(1000000))")


async def test_the_first_difference_is_marked(admin: Page, console_world: World) -> None:
    text = await open_path(admin, console_world.url, "compare?tenant=default&left=left&right=right")
    assert "Step 1, in the answer." in text
    marked = "[...document.querySelectorAll('mark.difference')].map((mark) => mark.textContent)"
    assert await admin.evaluate(marked) == ["apples", "pears"]


async def test_a_missing_trajectory_says_what_to_do(admin: Page, console_world: World) -> None:
    text = await open_path(admin, console_world.url, "trajectories?agent=nobody")
    assert "No trajectory of the last 90 days matches" in text
    await admin.go(f"{console_world.url}/trajectory?tenant=default&id=nobody")
    await admin.wait_until("document.querySelector('main .notice')?.textContent.includes('check the id')")
    [fault] = admin.faults
    assert "404" in fault or "400" in fault
    admin.faults.clear()


async def test_a_page_that_is_left_or_hidden_holds_no_connection(admin: Page, console_world: World) -> None:
    """A browser opens six to a host: a seventh page would wait until Chromium drops the first one, after a minute."""
    await admin.call("Page.addScriptToEvaluateOnNewDocument", source=COUNT_STREAMS)
    for path in ("people", "rewards"):
        await open_path(admin, console_world.url, path)
        assert await admin.evaluate(OPEN_STREAMS) == 1
    await admin.evaluate("history.back()")
    await admin.wait_until("location.pathname === '/people'")
    await shown(admin, "people")
    await admin.wait_until(f"{OPEN_STREAMS} === 1")
    for hidden in ("true", "false"):
        await admin.evaluate(
            f"Object.defineProperty(document, 'hidden', {{ value: {hidden}, configurable: true }});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        assert await admin.evaluate(OPEN_STREAMS) == (0 if hidden == "true" else 1)


async def test_pages_fit_the_screen_and_are_accessible(
    admin: Page, console_world: World, console_packages: Path
) -> None:
    axe = (console_packages / "node_modules" / "axe-core" / "axe.min.js").read_text()
    found = {}
    await admin.call("Page.setBypassCSP", enabled=True)  # axe makes a style element
    for path in PAGES:
        await admin.resize(1280)
        await open_path(admin, console_world.url, path)
        assert await admin.evaluate(EXCESS_PX) <= 0, path
        await admin.evaluate(axe)
        found[path] = await admin.evaluate(SERIOUS % "{}")
        await click(admin, "#theme")
        found[f"{path}, other colours"] = await admin.evaluate(SERIOUS % json.dumps(CONTRAST))
        await admin.resize(390)
        await admin.wait_until(f"{EXCESS_PX} <= 0")  # charts are drawn again
        assert await admin.evaluate(HIDDEN_SECTIONS) == [], path
        found[f"{path}, phone"] = await admin.evaluate(SERIOUS % json.dumps(LAYOUT))
    faults = [f"{path}: {fault}" for path, found_there in found.items() for fault in found_there]
    assert not faults, "\n".join(faults)


async def test_people_see_what_their_role_and_tenant_allow(console_world: World) -> None:
    async with console_world.person("omar") as operator:
        assert {"Settings", "Audit"}.isdisjoint(await operator.evaluate(NAVIGATION))
        assert "Fleet" in await operator.evaluate(NAVIGATION)
        await open_path(operator, console_world.url, "trajectory?tenant=default&id=left")
        assert await operator.evaluate("document.querySelectorAll('.verdict').length") > 0
        await operator.go(f"{console_world.url}/settings")
        await operator.wait_until("document.querySelector('main').innerText.includes('does not include')")
    async with console_world.person("vic", "trajectories") as viewer:
        rows = "[...document.querySelectorAll('main tbody td:first-child')].map((cell) => cell.textContent.trim())"
        assert await viewer.evaluate(rows) == ["secret"]
        assert {"Fleet", "Pipeline", "Settings", "Audit"}.isdisjoint(await viewer.evaluate(NAVIGATION))
        await open_path(viewer, console_world.url, "trajectory?tenant=acme&id=secret")
        assert await viewer.evaluate("document.querySelectorAll('.verdict').length") == 0
        assert "ada" not in await open_path(viewer, console_world.url, "people")
        for path, status in (
            ("/api/fleet", 403),
            ("/api/settings", 403),
            ("/api/trajectory?tenant=default&id=left", 400),
        ):
            reply = await viewer.evaluate(f"fetch('{path}').then((reply) => reply.status)")
            assert reply == status, path
        viewer.faults.clear()  # the browser notes these answers


async def test_a_person_logs_in_at_the_provider_and_leaves(console_world: World) -> None:
    console_world.provider.logs_in(sub="7", preferred_username="petra", groups=["viewer"], tenant="acme")
    async with console_world.chromium.page(f"{console_world.url}/people") as page:
        await click(page, "a.button", "Log in with 127.0.0.1")
        await shown(page, "people")
        assert await page.evaluate("document.querySelector('.who').textContent") == "oidc:petra · acme"
        await click(page, "#logout")
        await page.wait_until("document.querySelector('.login')")
    async with console_world.chromium.page(console_world.url) as page:
        console_world.provider.logs_in(sub="8", preferred_username="nobody", groups=[], tenant="acme")
        await click(page, "a.button", "Log in with")
        await page.wait_until("document.querySelector('.login .notice')?.textContent.includes('gives you no role')")
        assert page.faults == []


async def test_a_wrong_password_is_said_at_the_form(console_world: World) -> None:
    async with console_world.chromium.page(f"{console_world.url}/curves?since=7d") as page:
        await page.wait_until("document.activeElement?.name === 'name'")
        await page.press(*"nobody", "Tab", *"wrong password", "Enter")
        await page.wait_until("document.querySelector('.login .notice')?.textContent.includes('name or password')")
        assert await page.evaluate("document.cookie") == ""


async def test_a_verdict_is_feedback_on_the_log(console_world: World) -> None:
    async with console_world.person("omar", "trajectory?tenant=default&id=right") as page:
        await click(page, "details.verdict summary", "Judge this trajectory")
        await page.evaluate("""(() => {
            const form = document.querySelector('form[aria-label="Verdict on the trajectory"]');
            form.querySelector('[name=scale][value="2"]').click();
            form.querySelector('[name=tag][value="wrong tool"]').click();
            form.querySelector('[name=correction]').value = 'buy plums';
            form.querySelector('button').click();
        })()""")
        await page.wait_until("document.querySelector('#toasts').innerText.includes('is on the log')")
    said = [event.record for event in on_log(console_world.settings, FEEDBACK) if event.key.endswith("right")]
    assert [(row["name"], row["value"], row["category"], row["demonstration"], row["source"]) for row in said] == [
        ("review", 0.25, None, "buy plums", "person:omar"),
        ("review_tag", None, "wrong tool", None, "person:omar"),
    ]


async def test_a_held_trajectory_is_released(console_world: World) -> None:
    async with console_world.person("omar", "people") as page:
        await click(page, "button.release", "Release")
        await page.wait_until("document.querySelector('#toasts').innerText.includes('hostile is released')")
    [decision] = [event.record for event in on_log(console_world.settings, CURATION) if event.key.endswith("hostile")]
    assert (decision["trajectory_id"], decision["action"], decision["tenant"]) == ("hostile", "release", "default")


async def test_a_dead_letter_is_sent_again(console_world: World) -> None:
    async with console_world.person("omar", "pipeline") as page:
        await click(page, "button.redrive", "Send again")
        await page.wait_until("document.querySelector('#toasts').innerText.includes('1 sent again')")
    assert [event.value for event in on_log(console_world.settings, STEPS)].count(BROKEN) == 2
    async with console_world.person("alma", "audit") as page:
        text = await page.evaluate("document.querySelector('main').innerText")
        assert "/api/dead-letters/redrive" in text
        assert "omar" in text


async def test_a_decision_is_answered_and_its_policy_frozen_by_role(console_world: World) -> None:
    path, policy = f"decisions?id={WAITING}", 'section[aria-label="Policy console of acme"]'
    async with console_world.person("vic", path) as viewer:
        text = await viewer.evaluate("document.querySelector('main').innerText")
        for part in ("0.4000 to 0.6000", "learning runs", "2 of operator must approve", "It applies to tenant acme"):
            assert part in text
        assert await viewer.evaluate("document.querySelectorAll('.approve, .reject, .undo, .freeze').length") == 0
        assert await viewer.evaluate("window.hacked") is None
    async with console_world.person("omar", path) as operator:
        await operator.evaluate("document.querySelector('#decision-comment').value = 'read the report'")
        await click(operator, "button.approve", "Approve")
        await operator.wait_until("document.querySelector('#toasts').innerText.includes('You approved the decision')")
        await operator.wait_until("document.querySelector('main').innerText.includes('1 of 2 approved')")
        await click(operator, "button.approve", "Approve")
        await operator.wait_until("document.querySelector('#toasts').innerText.includes('another person must approve')")
        await click(operator, f"{policy} button.freeze", "Freeze")
        await operator.wait_until(f"document.querySelector('{policy}').innerText.includes('nothing is started')")
        await click(operator, f"{policy} button.freeze", "Unfreeze")
        await operator.wait_until(f"!document.querySelector('{policy}').innerText.includes('nothing is started')")
        operator.faults.clear()  # the browser notes the refused answer
    async with console_world.person("alma", path) as admin:
        await click(admin, "button.approve", "Approve")
        await admin.wait_until("document.querySelector('.card h2').textContent.endsWith(': approved')")
        await click(admin, "button.undo", "Undo")
        await admin.wait_until("document.querySelector('#toasts').innerText.includes('is not the canary any more')")
        admin.faults.clear()
    answers = [one.record for one in on_log(console_world.settings, APPROVALS) if one.record["decision_id"] == WAITING]
    assert [(one["author"], one["comment"], bool(one["refused"])) for one in answers] == [
        ("omar", "read the report", False),
        ("omar", "read the report", True),
        ("alma", "", False),
    ]


async def test_the_console_reports_an_unreachable_store_and_recovers(chromium: Chromium, tmp_path: Path) -> None:
    store = store_process(tmp_path)
    with console(store.settings, tmp_path) as url:
        async with chromium.page(url) as page:
            await page.wait_until("document.querySelector('main').innerText.includes('Store unreachable')")
            assert "STEPSTREAM_CLICKHOUSE_URL" in await page.evaluate("document.querySelector('main').innerText")
            store.start()
            migrate(store.settings)
            insert_rows(store.settings)
            await page.wait_until("document.querySelector('main').innerText.includes('80.0 %')")
            assert await page.evaluate("document.getElementById('status').dataset.state") == "live"
            store.kill()
            await page.wait_until("document.getElementById('status').dataset.state === 'down'")
            # The last numbers stay, marked as old.
            assert "80.0 %" in await page.evaluate("document.querySelector('main').innerText")
            assert await page.evaluate("document.querySelector('main').classList.contains('stale')")


def on_log(settings: Settings, topic: str) -> list[Event]:
    """Return the events of a topic."""
    found: list[Event] = []
    with closing(Codec(settings)) as codec, EventConsumer(settings.kafka, codec) as events:
        events.follow([topic])
        while not events.is_caught_up():
            found += events.poll(100, 0.2)
    return found
