"""A headless Firefox, driven through WebDriver BiDi: JSON over a WebSocket."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, BrowserError, end, find

NAMES = ("firefox", "firefox-esr")
LISTENING = "WebDriver BiDi listening on "
KEYS = {"ArrowLeft": "\ue012", "ArrowUp": "\ue013", "ArrowRight": "\ue014"}

NEEDED = pytest.mark.skipif(find(NAMES) is None, reason="needs Firefox")


class Firefox(Browser):
    """The browser at the other end of a WebSocket (of `websockets.sync`)."""

    def __init__(self, socket: Any) -> None:
        super().__init__()
        self._socket = socket
        asked = {"alwaysMatch": {"acceptInsecureCerts": True}}
        self.call("session.new", capabilities=asked)
        self.call(
            "session.subscribe", events=["browsingContext.load", "log.entryAdded"]
        )
        [tab] = self.call("browsingContext.getTree")["contexts"]
        self._tab = tab["context"]

    def _send(self, command: dict[str, Any]) -> None:
        self._socket.send(json.dumps(command))

    def _next(self, deadline: float) -> dict[str, Any]:
        seconds = max(0, deadline - time.monotonic())
        try:
            answer: dict[str, Any] = json.loads(self._socket.recv(seconds))
        except TimeoutError:
            raise BrowserError("the browser does not answer") from None
        return answer

    def open(self, url: str) -> None:
        self._events.clear()
        self.call(
            "browsingContext.navigate", context=self._tab, url=url, wait="complete"
        )

    def follow(self, expression: str) -> None:
        self._events.clear()
        self.evaluate(expression)
        self._wait_for("browsingContext.load")

    def evaluate(self, expression: str) -> Any:
        answer = self.call(
            "script.evaluate",
            expression=expression,
            target={"context": self._tab},
            awaitPromise=True,
            userActivation=True,
        )
        if "exceptionDetails" in answer:
            raise BrowserError(answer["exceptionDetails"]["text"])
        return _plain(answer["result"])

    def complaints(self) -> list[str]:
        entries = (
            event["params"]
            for event in self._events
            if event.get("method") == "log.entryAdded"
        )
        return [entry["text"] for entry in entries if entry["level"] == "error"]

    def add_script(self, script: str) -> Any:
        function = f"() => {{ {script} }}"
        return self.call("script.addPreloadScript", functionDeclaration=function)

    def remove_script(self, added: Any) -> None:
        self.call("script.removePreloadScript", **added)

    def press(self, key: str) -> None:
        value = KEYS.get(key, key)
        strokes = [{"type": kind, "value": value} for kind in ("keyDown", "keyUp")]
        keys = {"type": "key", "id": "keys", "actions": strokes}
        self.call("input.performActions", context=self._tab, actions=[keys])

    def resize(self, width: int, height: int, scale: float, *, phone: bool) -> None:
        self.call(
            "browsingContext.setViewport",
            context=self._tab,
            viewport={"width": width, "height": height},
            devicePixelRatio=scale,
        )

    def screenshot(self) -> bytes:
        shot = self.call("browsingContext.captureScreenshot", context=self._tab)
        return base64.b64decode(shot["data"])


def _plain(value: dict[str, Any]) -> Any:
    """Return a value of the page, which the protocol sends with its type."""
    kind, inner = value["type"], value.get("value") or ()
    if kind == "array":
        return [_plain(each) for each in inner]
    if kind == "object":
        return {name: _plain(each) for name, each in inner}
    return value.get("value")


@contextlib.contextmanager
def running(preferences: Mapping[str, Any] = {}) -> Iterator[Firefox]:
    """A browser with these preferences, which ends with the block."""
    client = pytest.importorskip("websockets.sync.client")
    path = find(NAMES)
    assert path is not None
    with contextlib.ExitStack() as undo:
        home = undo.enter_context(
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        )
        lines = (
            f"user_pref({json.dumps(name)}, {json.dumps(value)});\n"
            for name, value in preferences.items()
        )
        Path(home, "user.js").write_text("".join(lines))
        process = subprocess.Popen(
            [path, "--headless", "--remote-debugging-port=0", "--profile", home],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        undo.callback(end, process)
        assert process.stderr is not None
        with process.stderr as said:  # (Firefox ignores the SIGPIPE of later writes)
            line = next((line for line in said if line.startswith(LISTENING)), None)
        if line is None:
            raise BrowserError("the browser has not started")
        address = line.removeprefix(LISTENING).strip() + "/session"
        with client.connect(address, max_size=None, proxy=None) as socket:
            browser = Firefox(socket)
            yield browser
            with contextlib.suppress(BrowserError):
                browser.call("browser.close")
