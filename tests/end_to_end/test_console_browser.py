"""The console in a real browser: the numbers it shows, charts that are drawn, and a store that comes and goes."""

from pathlib import Path

import pytest
from browser import chromium, page
from console_process import console, fill
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
    chromium()


async def test_shows_what_the_store_holds(own_store: StoreProcess, tmp_path: Path) -> None:
    migrate(own_store.settings)
    fill(own_store.settings)
    with console(own_store.settings, tmp_path) as url:
        async with page(url, tmp_path) as shown:
            await shown.until("document.getElementById('tile-success').textContent === '80.0 %'")
            text = await shown.evaluate("document.body.innerText")
            assert "v1, eval: 37.6 % to 96.4 % of 5" in text
            assert "20 steps, 20 trajectories in total" in text
            assert "newest published v1" in text
            assert "largest 0; bound" in text
            rows = "document.querySelectorAll('#table-%s tbody tr').length"
            counts = {
                name: await shown.evaluate(rows % name)
                for name in ("workers", "checkpoints", "trajectories", "feedback", "dead-letters", "alarms")
            }
            assert counts.pop("trajectories") == 12
            assert counts == {"workers": 1, "checkpoints": 2, "feedback": 1, "dead-letters": 1, "alarms": 1}
            assert await shown.evaluate("document.querySelector('#alarms:not([hidden])').innerText") == (
                "1 active alarm\na, demo: length rose"
            )
            said = await shown.evaluate("document.getElementById('chart-components').ariaLabel")
            assert "success (success) v1: 0.50" in said
            for chart in ("success", "components", "steps", "staleness"):
                assert await shown.until(DRAWN % chart) > 500, chart
            said = await shown.evaluate("document.getElementById('chart-success').ariaLabel")
            assert "eval v1: 80.0 %" in said
            theme = await shown.evaluate("document.documentElement.dataset.theme")
            await shown.evaluate("document.getElementById('theme').click()")
            assert await shown.evaluate("document.documentElement.dataset.theme") != theme
            assert await shown.until(DRAWN % "success") > 500
            assert shown.faults == []


async def test_tells_that_the_store_is_away_and_recovers(tmp_path: Path) -> None:
    store = store_process(tmp_path)
    with console(store.settings, tmp_path) as url:
        async with page(url, tmp_path) as shown:
            notice = "document.getElementById('notice').textContent"
            await shown.until(f"{notice}.includes('Store unreachable')")
            assert "STEPSTREAM_CLICKHOUSE_URL" in await shown.evaluate(notice)
            store.start()
            migrate(store.settings)
            fill(store.settings)
            await shown.until("document.getElementById('tile-success').textContent === '80.0 %'")
            assert await shown.evaluate("document.getElementById('notice').hidden") is True
            assert await shown.evaluate("document.getElementById('status').dataset.state") == "live"
            store.kill()
            await shown.until("document.getElementById('status').dataset.state === 'down'")
            # What was known stays, marked as old.
            assert await shown.evaluate("document.getElementById('tile-success').textContent") == "80.0 %"
            assert await shown.evaluate("document.querySelector('main').classList.contains('stale')")
