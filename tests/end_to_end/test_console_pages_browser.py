"""Test the console's pages about trajectories in a real browser, with hostile text, by keyboard and on a phone."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from browser import Page, chromium_path, open_page
from console_process import console
from console_trajectories import plant
from store_fixtures import store_process

from stepstream.jobs.clickhouse.migrate import migrate

_PATHS = (
    "/trajectories",
    "/trajectory?tenant=default&id=left",
    "/trajectory?tenant=default&id=hostile",
    "/compare?tenant=default&left=left&right=right",
    "/review",
    "/rewards",
    "/tools?tool=get",
    "/people",
)
_COUNT_STREAMS = """
window.EventSource = class extends EventSource {
  constructor(address) { super(address); this.count(1); }
  close() { super.close(); this.count(-1); }
  count(change) { sessionStorage.streams = Number(sessionStorage.streams ?? 0) + change; }
};
"""
_OPEN_STREAMS = "Number(sessionStorage.streams)"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    chromium_path()
    folder = tmp_path_factory.mktemp("console-pages")
    store = store_process(folder)
    store.start()
    migrate(store.settings)
    plant(store.settings)
    with console(store.settings, folder) as address:
        yield address
    store.stop()


@pytest_asyncio.fixture
async def tab(url: str, tmp_path: Path) -> AsyncIterator[Page]:
    async with open_page(f"{url}/trajectories", tmp_path) as page:
        await shown(page, "trajectories")
        yield page


async def shown(page: Page, name: str) -> str:
    """Wait until a page is drawn; return its text."""
    await page.wait_until(f"document.querySelector('main').dataset.page === '{name}'")
    return str(await page.evaluate("document.querySelector('main').innerText"))


async def open_path(page: Page, url: str, path: str) -> str:
    await page.call("Page.navigate", url=f"{url}{path}")
    await page.wait_until("document.readyState === 'complete'")
    return await shown(page, path[1:].partition("?")[0])


async def test_filters_links_and_keys_lead_to_a_trajectory(tab: Page) -> None:
    assert await tab.evaluate("document.querySelectorAll('main tbody tr').length") == 5
    assert "U+202E" in await tab.evaluate("document.querySelector('main tbody').textContent")
    await tab.evaluate("""(() => {
        const field = document.querySelector('.filters [name=text]');
        field.value = 'apples';
        field.dispatchEvent(new Event('change', { bubbles: true }));
    })()""")
    await tab.wait_until("document.querySelectorAll('main tbody tr').length === 1")
    assert "text=apples" in await tab.evaluate("location.search")
    await tab.evaluate("document.dispatchEvent(new KeyboardEvent('keydown', { key: 'j', bubbles: true }))")
    assert await tab.evaluate("document.activeElement.textContent") == "left"
    await tab.evaluate("document.activeElement.click()")
    text = await shown(tab, "trajectory")
    for part in (
        "buy apples",
        "not trainable",
        "Attempts of its group",
        "Sub-agents and hand-offs",
        "email: 1 redacted",
    ):
        assert part in text
    assert await tab.evaluate("document.querySelector('.steps .redaction').textContent") == "<EMAIL:3f9a21bc>"
    assert tab.faults == []


async def test_hostile_text_is_text(tab: Page, url: str) -> None:
    text = await open_path(tab, url, "/trajectory?tenant=default&id=hostile")
    assert "<script>window.hacked = 1</script>" in text
    assert "U+202E" in text
    assert await tab.evaluate("window.hacked") is None
    assert "996,000 more characters" in text
    await tab.evaluate("[...document.querySelectorAll('button')].find((one) => one.textContent === 'Show all').click()")
    await tab.wait_until("document.querySelector('main').textContent.includes('x'.repeat(1000000))")
    assert tab.faults == []


async def test_the_first_difference_is_marked(tab: Page, url: str) -> None:
    assert "Step 1, in the answer." in await open_path(tab, url, "/compare?tenant=default&left=left&right=right")
    marked = "[...document.querySelectorAll('mark.difference')].map((mark) => mark.textContent)"
    assert await tab.evaluate(marked) == ["apples", "pears"]


async def test_a_missing_trajectory_says_what_to_do(tab: Page, url: str) -> None:
    await tab.call("Page.navigate", url=f"{url}/trajectory?tenant=default&id=nobody")
    await tab.wait_until("document.querySelector('main .notice')?.textContent.includes('check the id')")
    assert "No trajectory of the last 90 days matches" in await open_path(tab, url, "/trajectories?agent=nobody")


async def test_a_page_that_is_left_or_hidden_holds_no_connection(tab: Page, url: str) -> None:
    """A browser opens six to a host: a seventh page would wait until Chromium drops the first one, after a minute."""
    await tab.call("Page.addScriptToEvaluateOnNewDocument", source=_COUNT_STREAMS)
    await open_path(tab, url, "/people")
    assert await tab.evaluate(_OPEN_STREAMS) == 1
    await open_path(tab, url, "/rewards")
    assert await tab.evaluate(_OPEN_STREAMS) == 1
    await tab.evaluate("history.back()")
    await tab.wait_until("location.pathname === '/people' && document.querySelector('main')?.dataset.page === 'people'")
    await tab.wait_until(f"{_OPEN_STREAMS} === 1")
    for hidden in (True, False):
        await tab.evaluate(
            f"Object.defineProperty(document, 'hidden', {{ value: {str(hidden).lower()}, configurable: true }});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        assert await tab.evaluate(_OPEN_STREAMS) == int(not hidden)
    assert tab.faults == []


@pytest.mark.parametrize("width", [1280, 390])
async def test_pages_fit_a_screen_and_a_phone(tab: Page, url: str, width: int) -> None:
    await tab.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 900
    )
    for path in _PATHS:
        await open_path(tab, url, path)
        assert await tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
    assert tab.faults == []
