"""Drive a headless Chromium over the DevTools protocol: one browser, and pages that share nothing."""

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from required_tools import require_tool
from waiting import TIMEOUT_S, wait_until

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "--window-size=1280,900",
)


class Page:
    """One page; `faults` collects the errors of its console and scripts, `requests` the addresses it asked."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._calls = 0
        self.faults: list[str] = []
        self.requests: list[str] = []

    async def call(self, method: str, **params: Any) -> Any:
        """Send one command of the protocol; return its result."""
        self._calls += 1
        await self._socket.send_json({"id": self._calls, "method": method, "params": params})
        while True:
            message = json.loads(await self._socket.receive_str(timeout=TIMEOUT_S))
            if message.get("id") == self._calls:
                assert "error" not in message, message["error"]
                return message["result"]
            self._note(message)

    async def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        reply = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    async def wait_until(self, script: str) -> Any:
        """Wait until an expression is truthy; return its value."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (value := await self.evaluate(script)):
            if time.monotonic() > deadline:
                text = await self.evaluate("document.body.innerText")
                pytest.fail(f"not true after {TIMEOUT_S:g} s: {script}\nfaults: {self.faults}\npage:\n{text}")
            await asyncio.sleep(0.05)
        return value

    async def go(self, url: str) -> None:
        """Load an address; return when its document is complete."""
        await self.call("Page.navigate", url=url)
        await self.wait_until("location.href !== 'about:blank' && document.readyState === 'complete'")

    async def resize(self, width: int, height: int = 900) -> None:
        """Change the size of the window in CSS pixels; below 900 wide it is a phone's."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 900
        )

    async def press(self, *keys: str) -> None:
        """Press and release keys, each a single character or a name, as `Enter`."""
        for key in keys:
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
            await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def _note(self, message: Any) -> None:
        match message.get("method"), message.get("params"):
            case "Runtime.exceptionThrown", params:
                self.faults.append(params["exceptionDetails"].get("text", "exception"))
            case "Log.entryAdded", {"entry": {"level": "error"} as entry}:
                self.faults.append(f"{entry['text']} {entry.get('url', '')}")
            case "Runtime.consoleAPICalled", {"type": "error"} as params:
                self.faults.append(str([each.get("value", each.get("description")) for each in params["args"]]))
            case "Network.requestWillBeSent", params:
                self.requests.append(params["request"]["url"])


@dataclass(frozen=True)
class Chromium:
    """A running browser."""

    port: int

    @asynccontextmanager
    async def page(self, url: str) -> AsyncIterator[Page]:
        """Open a page without cookies of others, and close it."""
        address = f"127.0.0.1:{self.port}"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{address}/json/version") as reply:
                browser_address = (await reply.json())["webSocketDebuggerUrl"]
            async with session.ws_connect(browser_address, max_msg_size=0) as browser_socket:
                browser = Page(browser_socket)
                context = (await browser.call("Target.createBrowserContext"))["browserContextId"]
                target = await browser.call("Target.createTarget", url="about:blank", browserContextId=context)
                page_address = f"ws://{address}/devtools/page/{target['targetId']}"
                async with session.ws_connect(page_address, max_msg_size=0) as socket:
                    page = Page(socket)
                    for domain in ("Runtime", "Log", "Page", "Network"):
                        await page.call(f"{domain}.enable")
                    await page.go(url)
                    yield page
                await browser.call("Target.disposeBrowserContext", browserContextId=context)


@contextmanager
def running_chromium(folder: Path) -> Iterator[Chromium]:
    """Run a browser with its profile in `folder`; skip the test if Chromium is missing."""
    profile = folder / "chromium"
    process = subprocess.Popen(
        [require_tool("Chromium"), *_FLAGS, f"--user-data-dir={profile}", "about:blank"], stderr=subprocess.DEVNULL
    )
    port_file = profile / "DevToolsActivePort"

    def ready() -> bool:
        assert process.poll() is None, "Chromium ended"
        return port_file.exists() and port_file.read_text().count("\n") > 0

    try:
        wait_until(ready, "Chromium has opened its port")
        yield Chromium(int(port_file.read_text().splitlines()[0]))
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """A browser that the session shares."""
    with running_chromium(tmp_path_factory.mktemp("browser")) as browser:
        yield browser
