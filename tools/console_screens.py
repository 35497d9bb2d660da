"""Take pictures of the console's pages: `.venv/bin/python tools/console_screens.py ADDRESS FOLDER`.

The console runs without login, over data of `make demo-control`, `make demo` or your own. Chromium draws the pages,
each once in light, three in dark, one as on a phone; the time from the request to the drawn page is printed. Two
attempts of one group, one that succeeded and one that failed, are looked up for the pages that show trajectories.
"""

import asyncio
import base64
import json
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from browser import Chromium, Page, running_chromium

DARK = ("curves", "decisions", "trajectory")
PHONE = "overview"
_DRAWN = """
new MutationObserver((_, observer) => {
  if (!document.querySelector('main')?.dataset.page) return;
  window.drawnAt = performance.now();
  observer.disconnect();
}).observe(document, { subtree: true, childList: true, attributes: true });
"""


def addresses(console: str) -> dict[str, str]:
    """Return the address of every page by its name."""

    def get(path: str) -> Any:
        with urllib.request.urlopen(f"{console}{path}", timeout=60) as reply:
            return json.load(reply)

    def attempts(outcome: str) -> list[Any]:
        found: list[Any] = get(f"/api/trajectories?since=90d&outcome={outcome}")["trajectories"]
        return found

    succeeded = attempts("success")
    tenant, left = succeeded[0]["tenant"], succeeded[0]["trajectory_id"]
    right = left
    for failed in attempts("failure"):
        group = get(f"/api/trajectory?tenant={failed['tenant']}&id={failed['trajectory_id']}")["group"]
        if better := [row["trajectory_id"] for row in group if row["success"]]:
            tenant, left, right = failed["tenant"], better[0], failed["trajectory_id"]
            break
    tools = [row["tool"] for row in get("/api/tools?since=7d")["tools"]]
    return {
        "overview": "/overview?since=7d",
        "curves": "/curves?since=7d",
        "trajectories": "/trajectories?since=7d",
        "trajectory": f"/trajectory?tenant={tenant}&id={left}",
        "compare": f"/compare?tenant={tenant}&left={left}&right={right}",
        "review": "/review",
        "rewards": "/rewards",
        "tools": f"/tools?since=7d&tool={tools[0] if tools else ''}",
        "people": "/people",
        "fleet": "/fleet?since=7d",
        "decisions": "/decisions?since=7d",
        "pipeline": "/pipeline?since=7d",
        "settings": "/settings",
        "audit": "/audit",
    }


async def take(page: Page, address: str, theme: str, width: int, most: int) -> tuple[bytes, float]:
    """Return a picture of a page, and the milliseconds from the request to the drawn page."""
    await page.resize(width)
    await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    await page.go(address)
    await page.wait_until("document.querySelector('main')?.dataset.page")
    drawn = await page.evaluate("window.drawnAt")
    await page.wait_until("!document.querySelector('main [aria-busy=true]')")
    height = min(most, await page.evaluate("document.documentElement.scrollHeight"))
    await page.resize(width, height)
    await asyncio.sleep(0.5)  # charts draw again after the window has changed
    picture = await page.call("Page.captureScreenshot", format="png")
    return base64.b64decode(picture["data"]), float(drawn)


async def pictures(chromium: Chromium, console: str) -> AsyncIterator[tuple[str, bytes]]:
    """Yield the name and the content of every picture."""
    paths = addresses(console)
    async with chromium.page(f"{console}/overview") as page:
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=_DRAWN)
        plan = [(name, "light", 1280, 1100, name) for name in paths]
        plan += [(name, "dark", 1280, 1100, f"{name}-dark") for name in DARK]
        plan += [(PHONE, "light", 390, 1400, f"{PHONE}-phone")]
        for name, theme, width, most, picture in plan:
            content, drawn_ms = await take(page, console + paths[name], theme, width, most)
            print(f"{picture:<18} {drawn_ms:5.0f} ms {len(content) / 1000:6.0f} kB")
            yield f"{picture}.png", content
        if page.faults:
            raise SystemExit("\n".join(page.faults))


async def save_pictures(chromium: Chromium, console: str, folder: Path) -> None:
    """Write every picture as soon as it is taken."""
    async for name, content in pictures(chromium, console):
        (folder / name).write_bytes(content)


def main(console: str, folder: str) -> None:
    """Take the pictures."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, running_chromium(Path(profile)) as chromium:
        asyncio.run(save_pictures(chromium, console.rstrip("/"), Path(folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
