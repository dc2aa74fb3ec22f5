"""A headless Chromium, driven through the DevTools protocol over two pipes.

`Browser` and `Page` do not depend on the protocol: `firefox` drives another browser
with them.
"""

import base64
import contextlib
import functools
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest
from links import cut_short

from aiozerocopy.broadcast import Broadcast

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 15.0

OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-sync",
    "--mute-audio",
    "--hide-scrollbars",
    "--enable-unsafe-swiftshader",
    "--remote-debugging-pipe",
)
# Machines that run tests have no GPU: the processor draws WebGL.
NO_GPU = ("--disable-gpu",)
# Everything is drawn as on a GPU: slower, but with the colours that users see.
AS_GPU = (
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--ignore-gpu-blocklist",
    "--enable-gpu-rasterization",
)


@functools.cache
def find(names: tuple[str, ...] = NAMES) -> str | None:
    """Return the path of the first of these programs that is on the PATH and starts.

    (On Ubuntu, one of them may be a script that asks for a snap.)
    """
    for path in filter(None, map(shutil.which, names)):
        asked = subprocess.run([path, "--version"], capture_output=True, check=False)
        if asked.returncode == 0:
            return path
    return None


NEEDED = pytest.mark.skipif(find() is None, reason="needs Chromium")


class BrowserError(Exception):
    """An error from the browser, or no answer in time."""


class Browser(ABC):
    """A browser with one page, which takes commands as JSON.  All calls block."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._events: list[dict[str, Any]] = []

    # -- the protocol -------------------------------------------------------------

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command, and return its result."""
        number = next(self._ids)
        self._send({"id": number, "method": method, "params": params})
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._next(deadline)
            if answer.get("id") != number:
                self._events.append(answer)
            elif "error" in answer:
                raise BrowserError(f"{method}: {answer}")
            else:
                result: dict[str, Any] = answer["result"]
                return result

    @abstractmethod
    def _send(self, command: dict[str, Any]) -> None: ...

    @abstractmethod
    def _next(self, deadline: float) -> dict[str, Any]:
        """Return the browser's next message."""

    def _wait_for(self, method: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while method not in (event.get("method") for event in self._events):
            self._events.append(self._next(deadline))

    # -- the page -----------------------------------------------------------------

    @abstractmethod
    def open(self, url: str) -> None:
        """Go to this address, and return when it has loaded."""

    @abstractmethod
    def follow(self, expression: str) -> None:
        """Run an expression that leads to another page; return when that has loaded."""

    @abstractmethod
    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression; a promise is awaited."""

    def wait_until(self, condition: str) -> Any:
        """Return the value of an expression in the page as soon as it is true."""
        seconds = PATIENCE - 3
        return self.evaluate(f"""new Promise((resolve, reject) => {{
            const end = performance.now() + {seconds * 1000};
            const look = () => {{
                const value = ({condition});
                if (value) resolve(value);
                else if (performance.now() < end) setTimeout(look, 10);
                else reject(new Error({json.dumps(condition)} + " is not: "
                    + document.body.innerText));
            }};
            look();
        }})""")

    @abstractmethod
    def complaints(self) -> list[str]:
        """Return the errors on the page's console since it was opened."""

    @abstractmethod
    def add_script(self, script: str) -> Any:
        """Each page runs this script before its own, until `remove_script`."""

    @abstractmethod
    def remove_script(self, added: Any) -> None: ...

    @abstractmethod
    def press(self, key: str) -> None:
        """Press the key of this name."""

    @abstractmethod
    def resize(self, width: int, height: int, scale: float, *, phone: bool) -> None:
        """Set the size of the window, in CSS pixels."""

    @abstractmethod
    def screenshot(self) -> bytes:
        """Return what the page shows, as a PNG."""


class Chromium(Browser):
    def __init__(self, to: int, back: int) -> None:
        super().__init__()
        self._to, self._back = to, back
        self._data = b""
        self._session = ""
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        self._session = self.call(
            "Target.attachToTarget", targetId=page["targetId"], flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def _send(self, command: dict[str, Any]) -> None:
        if self._session:
            command["sessionId"] = self._session
        rest = json.dumps(command).encode() + b"\0"
        while rest:
            rest = rest[os.write(self._to, rest) :]

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._data:
            seconds = max(0, deadline - time.monotonic())
            if not select.select([self._back], [], [], seconds)[0]:
                raise BrowserError("the browser does not answer")
            piece = os.read(self._back, 1 << 20)
            if not piece:
                raise BrowserError("the browser is gone")
            self._data += piece
        message, _, self._data = self._data.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def open(self, url: str) -> None:
        self._events.clear()
        answer = self.call("Page.navigate", url=url)
        if "errorText" in answer:
            raise BrowserError(f"{url}: {answer['errorText']}")
        self._wait_for("Page.loadEventFired")

    def follow(self, expression: str) -> None:
        self._events.clear()
        self.evaluate(expression)
        self._wait_for("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        answer = self.call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
        )
        if "exceptionDetails" in answer:
            raise BrowserError(json.dumps(answer["exceptionDetails"], indent=1))
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        found = []
        for event in self._events:
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(event["params"]["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded":
                entry = event["params"]["entry"]
                if entry["level"] == "error":
                    found.append(entry["text"])
        return found

    def add_script(self, script: str) -> Any:
        return self.call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def remove_script(self, added: Any) -> None:
        self.call("Page.removeScriptToEvaluateOnNewDocument", **added)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def resize(self, width: int, height: int, scale: float, *, phone: bool) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=phone,
        )

    def screenshot(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])


@contextlib.contextmanager
def running(drawing: Sequence[str] = NO_GPU) -> Iterator[Browser]:
    """A browser, which ends with the block."""
    path = find()
    assert path is not None
    with contextlib.ExitStack() as undo:
        home = undo.enter_context(
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        )
        theirs = contextlib.ExitStack()
        undo.enter_context(theirs)
        read_fd, to = os.pipe()
        back, write_fd = os.pipe()
        undo.callback(os.close, to)
        undo.callback(os.close, back)
        theirs.callback(os.close, read_fd)
        theirs.callback(os.close, write_fd)
        # Chromium expects these pipes as fds 3 and 4.
        command = [path, *OPTIONS, *drawing, f"--user-data-dir={home}", "about:blank"]
        script = f'exec 5<&{read_fd} 6>&{write_fd} 3<&5 4>&6 5<&- 6>&-; exec "$@"'
        process = subprocess.Popen(
            ["/bin/bash", "-c", script, "bash", *command],
            pass_fds=(read_fd, write_fd),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        undo.callback(end, process)
        theirs.close()
        browser = Chromium(to, back)
        yield browser
        with contextlib.suppress(BrowserError):
            browser.call("Browser.close")


def end(process: subprocess.Popen[Any]) -> None:
    try:
        process.wait(timeout=3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Page:
    """The browser's page, with calls for tasks."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser

    async def do(self, call: Callable[..., Any], *args: Any) -> Any:
        return await anyio.to_thread.run_sync(partial(call, *args))

    async def open(self, url: str) -> None:
        await self.do(self.browser.open, url)

    async def until(self, condition: str) -> Any:
        return await self.do(self.browser.wait_until, condition)

    async def tell(self, expression: str) -> Any:
        return await self.do(self.browser.evaluate, expression)

    @asynccontextmanager
    async def changed_by(self, script: str) -> AsyncIterator[None]:
        """In this block, each page runs this script before its own."""
        added = await self.do(self.browser.add_script, script)
        try:
            yield
        finally:
            await self.do(self.browser.remove_script, added)

    async def says(self, state: str) -> str:
        """Return the notice that the page shows once it is in this state."""
        # (one expression reads both, as the state may soon change)
        is_there = f"document.body.dataset.state === '{state}'"
        [text] = await self.until(
            f"{is_there} && [document.getElementById('notice').innerText]"
        )
        assert isinstance(text, str)
        return text


@asynccontextmanager
async def publishing(
    hub: Broadcast, picture: Any, pixel_format: str = ""
) -> AsyncIterator[None]:
    """Publish ``picture``, or what it returns for a number, 30 times a second."""

    async def publish() -> None:
        while True:
            frame = picture(hub.sequence) if callable(picture) else picture
            await hub.publish(frame, pixel_format=pixel_format)
            await anyio.sleep(1 / 30)

    async with cut_short(publish):
        yield
