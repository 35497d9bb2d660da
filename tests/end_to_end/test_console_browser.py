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


async def test_the_page_shows_the_tables(own_store: StoreProcess, tmp_path: Path) -> None:
    migrate(own_store.settings)
    insert_rows(own_store.settings)
    with console(own_store.settings, tmp_path) as url:
        async with open_page(url, tmp_path) as tab:
            await tab.wait_until("document.getElementById('tile-success').textContent === '80.0 %'")
            text = await tab.evaluate("document.body.innerText")
            assert "v1, eval: 37.6 % to 96.4 % of 5" in text
            assert "20 steps, 20 trajectories in total" in text
            assert "newest published v1" in text
            assert "largest 0; bound" in text
            rows = "document.querySelectorAll('#table-%s tbody tr').length"
            counts = {
                name: await tab.evaluate(rows % name)
                for name in ("workers", "checkpoints", "trajectories", "feedback", "dead-letters", "alarms")
            }
            assert counts.pop("trajectories") == 12
            assert counts == {"workers": 1, "checkpoints": 2, "feedback": 1, "dead-letters": 1, "alarms": 1}
            assert await tab.evaluate("document.querySelector('#alarms:not([hidden])').innerText") == (
                "1 active alarm\na, demo: length rose"
            )
            label = await tab.evaluate("document.getElementById('chart-components').ariaLabel")
            assert "success (success) v1: 0.50" in label
            for chart in ("success", "components", "steps", "staleness"):
                assert await tab.wait_until(DRAWN % chart) > 500, chart
            label = await tab.evaluate("document.getElementById('chart-success').ariaLabel")
            assert "eval v1: 80.0 %" in label
            theme = await tab.evaluate("document.documentElement.dataset.theme")
            await tab.evaluate("document.getElementById('theme').click()")
            assert await tab.evaluate("document.documentElement.dataset.theme") != theme
            assert await tab.wait_until(DRAWN % "success") > 500
            assert tab.faults == []


async def test_the_page_reports_an_unreachable_store_and_recovers(tmp_path: Path) -> None:
    store = store_process(tmp_path)
    with console(store.settings, tmp_path) as url:
        async with open_page(url, tmp_path) as tab:
            notice = "document.getElementById('notice').textContent"
            await tab.wait_until(f"{notice}.includes('Store unreachable')")
            assert "STEPSTREAM_CLICKHOUSE_URL" in await tab.evaluate(notice)
            store.start()
            migrate(store.settings)
            insert_rows(store.settings)
            await tab.wait_until("document.getElementById('tile-success').textContent === '80.0 %'")
            assert await tab.evaluate("document.getElementById('notice').hidden") is True
            assert await tab.evaluate("document.getElementById('status').dataset.state") == "live"
            store.kill()
            await tab.wait_until("document.getElementById('status').dataset.state === 'down'")
            # The last numbers stay, marked as old.
            assert await tab.evaluate("document.getElementById('tile-success').textContent") == "80.0 %"
            assert await tab.evaluate("document.querySelector('main').classList.contains('stale')")
