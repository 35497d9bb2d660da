"""Drive a headless Chromium with one page over the DevTools protocol."""

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from required_tools import require_tool
from waiting import TIMEOUT_S

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
    "--window-size=1400,1600",
)


def chromium_path() -> str:
    """Return the path of Chromium; skip the test if it is missing."""
    return require_tool("Chromium")


class Page:
    """One page; `faults` collects the errors of its console and scripts."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._calls = 0
        self.faults: list[str] = []

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
            await asyncio.sleep(0.1)
        return value

    def _note(self, message: Any) -> None:
        if message.get("method") == "Runtime.exceptionThrown":
            self.faults.append(message["params"]["exceptionDetails"].get("text", "exception"))
        elif message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.faults.append(message["params"]["entry"]["text"])


@asynccontextmanager
async def open_page(url: str, folder: Path) -> AsyncIterator[Page]:
    """Open a page in a new browser with its profile in `folder`."""
    profile = folder / "chromium"
    process = subprocess.Popen(
        [chromium_path(), *_FLAGS, f"--user-data-dir={profile}", "about:blank"], stderr=subprocess.DEVNULL
    )
    try:
        port = await _port(profile / "DevToolsActivePort", process)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as reply:
                target = next(each for each in await reply.json() if each["type"] == "page")
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                opened = Page(socket)
                for domain in ("Runtime", "Log", "Page"):
                    await opened.call(f"{domain}.enable")
                await opened.call("Page.navigate", url=url)
                await opened.wait_until("location.href !== 'about:blank' && document.readyState === 'complete'")
                yield opened
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


async def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + TIMEOUT_S
    while not (file.exists() and file.read_text().count("\n")):
        assert process.poll() is None, "Chromium ended"
        assert time.monotonic() < deadline, "Chromium did not start"
        await asyncio.sleep(0.05)
    return int(file.read_text().splitlines()[0])
