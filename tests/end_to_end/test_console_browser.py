"""Test the console in a real browser: its numbers, its charts, and a store that stops and returns."""

from pathlib import Path

import pytest
from browser import chromium_path, open_page
from console_process import console, insert_rows
from store_fixtures import StoreProcess, store_process

from stepstream.jobs.clickhouse.migrate import migrate

# Pixels of a chart's canvas that are drawn on.
DRAWN = """(() => {
  const canvas = document.querySelector('#chart-%s canvas');
  if (!canvas) return 0;
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  let drawn = 0;
  for (let at = 3; at < data.length; at += 4) drawn += data[at] > 0;
  return drawn;
})()"""


@pytest.fixture(autouse=True)
def _browser() -> None:
    chromium_path()


async def test_the_overview_shows_the_tables(own_store: StoreProcess, tmp_path: Path) -> None:
    migrate(own_store.settings)
    insert_rows(own_store.settings)
    with console(own_store.settings, tmp_path) as url:
        async with open_page(url, tmp_path) as tab:
            await tab.wait_until("document.querySelector('main').dataset.page === 'overview'")
            text = await tab.evaluate("document.body.innerText")
            assert "v1, eval: 37.6 % to 96.4 % of 5" in text
            assert "20 steps, 20 trajectories in this range" in text
            assert "largest 0; bound" in text
            assert await tab.evaluate("document.querySelector('#alarms').innerText") == (
                "1 active alarm\na, demo: length rose"
            )
            assert await tab.wait_until(DRAWN % "steps") > 500
            theme = await tab.evaluate("document.documentElement.dataset.theme")
            await tab.evaluate("document.getElementById('theme').click()")
            assert await tab.evaluate("document.documentElement.dataset.theme") != theme
            assert await tab.wait_until(DRAWN % "steps") > 500
            assert tab.faults == []


async def test_every_page_opens_by_keyboard_and_link(own_store: StoreProcess, tmp_path: Path) -> None:
    migrate(own_store.settings)
    insert_rows(own_store.settings)
    shown = {
        "curves": "37.6 % to 96.4 %",
        "fleet": "demo v1",
        "pipeline": "Newest dead letters",
        "settings": "console.host",
        "overview": "1 active alarm",
    }
    with console(own_store.settings, tmp_path) as url:
        async with open_page(url, tmp_path) as tab:
            await tab.wait_until("document.querySelector('main').dataset.page === 'overview'")
            for page, text in shown.items():
                await tab.evaluate(
                    f"for (const key of 'g{page[0]}') document.dispatchEvent(new KeyboardEvent('keydown', {{key}}))"
                )
                await tab.wait_until(f"document.querySelector('main').dataset.page === '{page}'")
                assert text in await tab.evaluate("document.querySelector('main').innerText"), page
                assert await tab.evaluate("location.pathname") == f"/{page}"
            # A filter is in the address, and the address alone shows it again.
            await tab.call("Page.navigate", url=f"{url}/settings?text=console.session_hours")
            await tab.wait_until("document.querySelector('main')?.dataset.page === 'settings'")
            assert await tab.evaluate("document.querySelectorAll('tbody tr').length") == 1
            await tab.call("Page.navigate", url=f"{url}/nothing")
            await tab.wait_until("document.querySelector('main')?.innerText.includes('There is no page nothing')")
            assert tab.faults == []


async def test_the_console_reports_an_unreachable_store_and_recovers(tmp_path: Path) -> None:
    store = store_process(tmp_path)
    with console(store.settings, tmp_path) as url:
        async with open_page(url, tmp_path) as tab:
            await tab.wait_until("document.querySelector('main').innerText.includes('Store unreachable')")
            assert "STEPSTREAM_CLICKHOUSE_URL" in await tab.evaluate("document.querySelector('main').innerText")
            store.start()
            migrate(store.settings)
            insert_rows(store.settings)
            await tab.wait_until("document.querySelector('main').innerText.includes('80.0 %')")
            assert await tab.evaluate("document.getElementById('status').dataset.state") == "live"
            store.kill()
            await tab.wait_until("document.getElementById('status').dataset.state === 'down'")
            # The last numbers stay, marked as old.
            assert "80.0 %" in await tab.evaluate("document.querySelector('main').innerText")
            assert await tab.evaluate("document.querySelector('main').classList.contains('stale')")
