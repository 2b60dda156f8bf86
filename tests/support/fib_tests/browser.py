"""A real browser driven through its debugging pipe: messages of JSON, each ended by a NUL."""

from __future__ import annotations

import base64
import json
import os
import re
import select
import shutil
import subprocess
import sys
import time
import zlib
from typing import TYPE_CHECKING, Any, Optional

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

_KEYS = {
    "Enter": ("Enter", 13, "\r"),
    "Tab": ("Tab", 9, ""),
    "Escape": ("Escape", 27, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
    "ArrowUp": ("ArrowUp", 38, ""),
    "Space": ("Space", 32, " "),
}

# The browser reads from descriptor 3 and writes to 4, whatever they are here.
_LAUNCH = """
import fcntl, os, sys
here = [fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3]]
os.dup2(here[0], 3), os.dup2(here[1], 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One headless browser with one tab, and everything that it complained about or asked for."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        options = [
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--no-first-run", "--disable-background-networking", "--disable-extensions"),
            *(
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                f"--user-data-dir={profile}",
            ),
            *("--remote-debugging-pipe", "about:blank"),
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(to_browser), str(from_browser), CHROMIUM, *options],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._left = b""
        self._last = 0
        self._session: Optional[str] = None
        self.problems: list[str] = []
        self.requests: list[str] = []
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        targets = self.call("Target.getTargets")["targetInfos"]
        tab = next(one["targetId"] for one in targets if one["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=tab, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Give a command and wait for its answer."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self._write, content) :]
        deadline = time.monotonic() + 60
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._last:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser went away"
            self._left += piece
        message, _, self._left = self._left.partition(b"\0")
        found = json.loads(message)
        self._listen(found.get("method", ""), found.get("params", {}))
        return found

    def _listen(self, method: str, params: Any) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded":
            self.problems.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.problems.append(str([one.get("value") for one in params["args"]]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, path: Path, fragment: str = "") -> None:
        """Open a page and wait until it has unpacked its data."""
        self.problems.clear()
        self.requests.clear()
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=path.as_uri() + fragment)
        self.wait("document.documentElement?.dataset.ready === 'yes'")

    def run(self, script: str) -> Any:
        """Return the value of an expression on the page."""
        done = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, (script, done["exceptionDetails"])
        return done["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until the page shows its address, and an expression is true and does not throw."""
        shown = "(document.body.dataset.shown ?? location.hash) === location.hash"
        tried = f"try {{ return {shown} && !!({condition}) }} catch {{ return false }}"
        met = f"(() => {{ {tried} }})()"
        deadline = time.monotonic() + 30
        while not self.run(met):
            assert time.monotonic() < deadline, (condition, self.problems)
            time.sleep(0.02)

    def press(self, *keys: str) -> None:
        """Press keys: names such as ``Tab``, or characters."""
        for key in keys:
            code, number, text = _KEYS.get(key, ("", ord(key[0].upper()), key))
            event = {"key": text if key == "Space" else key, "code": code}
            event["windowsVirtualKeyCode"] = number
            down = {**event, "type": "keyDown", "text": text} if text else event
            self.call("Input.dispatchKeyEvent", **{"type": "rawKeyDown", **down})
            self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def click(self, selector: str) -> None:
        """Click with the mouse in the middle of an element."""
        place = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], **button)

    def size(self, width: int, height: int = 900) -> None:
        """Give the window a size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def prefer(self, scheme: str) -> None:
        """Say that the system is ``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def close(self) -> None:
        """End the browser."""
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@pytest.fixture(scope="session")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def browser(one_browser: Browser) -> Browser:
    """A real browser, with a light system and a wide window."""
    one_browser.prefer("light")
    one_browser.size(1280)
    return one_browser


@pytest.fixture
def unpack() -> Any:
    """Reads what a page carries: ``unpack(page, "data")``."""

    def read(page: str, name: str) -> Any:
        found = re.search(rf'<script type="application/octet-stream" id="{name}">([^<]*)<', page)
        assert found is not None
        return json.loads(zlib.decompress(base64.b64decode(found[1], validate=True)))

    return read
