"""A headless Chromium, driven over its own debugging protocol. Nothing to install but the browser."""

import asyncio
import base64
import itertools
import json
import shutil
from contextlib import asynccontextmanager

import aiohttp

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)

_START_TIMEOUT_S = 60.0
_CALL_TIMEOUT_S = 60.0
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
)  # fmt: skip


class Page:
    """One tab. What its console and its network said is in `problems`."""

    def __init__(self, socket):
        self._socket = socket
        self._ids = itertools.count(1)
        self._waiting = {}
        self.problems = []
        self.requested = []

    async def listen(self):
        async for message in self._socket:
            event = json.loads(message.data)
            if "id" in event:
                self._waiting.pop(event["id"]).set_result(event)
            elif event["method"] == "Network.requestWillBeSent":
                self.requested.append(event["params"]["request"]["url"])
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                self.problems.append(event["params"]["entry"]["text"])
            elif event["method"] == "Runtime.exceptionThrown":
                self.problems.append(str(event["params"]["exceptionDetails"]))

    async def command(self, method, **params):
        number = next(self._ids)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        answer = await asyncio.wait_for(waiting, _CALL_TIMEOUT_S)
        assert "error" not in answer, answer
        return answer["result"]

    async def evaluate(self, script):
        """The value of an expression on the page; promises are waited for."""
        found = await self.command("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script, timeout_s=60.0):
        """Wait until an expression is true."""
        async with asyncio.timeout(timeout_s):
            while not await self.evaluate(script):  # noqa: ASYNC110 - a page announces nothing
                await asyncio.sleep(0.05)

    async def open(self, url, *, width=1280, height=900, scheme="light"):
        """Load a page at a size and in a colour scheme."""
        await self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        await self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        await self.command("Emulation.setScrollbarsHidden", hidden=True)
        await self.command("Page.navigate", url=url)
        await self.until(f"location.href === {url!r} && document.readyState === 'complete'")

    async def press(self, key, code):
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            await self.command(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text
            )

    async def choose(self, selector, *files):
        """Put files into a file input."""
        root = (await self.command("DOM.getDocument"))["root"]["nodeId"]
        node = (await self.command("DOM.querySelector", nodeId=root, selector=selector))["nodeId"]
        await self.command("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    async def screenshot(self):
        """The whole page as a PNG."""
        shot = await self.command("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])


@asynccontextmanager
async def browsing(folder):
    """A tab of a browser that ends with the block."""
    process = await asyncio.create_subprocess_exec(
        CHROMIUM, *_FLAGS, f"--user-data-dir={folder}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            while not (port := _port(folder)):  # noqa: ASYNC110 - it writes a file when it listens
                await asyncio.sleep(0.05)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                tab = next(one for one in await response.json() if one["type"] == "page")
            async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                listening = asyncio.create_task(page.listen())
                for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
                    await page.command(f"{domain}.enable")
                yield page
                listening.cancel()
    finally:
        process.kill()
        await process.wait()


def _port(folder):
    try:
        return (folder / "DevToolsActivePort").read_text().split("\n")[0]
    except OSError:
        return None
