"""A headless Chromium, driven over its own pipe: open a page, run JavaScript in it, take pictures of it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # a page that asks for anything gets nothing
)


def program() -> str | None:
    """Return the path of a Chromium; None: there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab of a headless Chromium."""

    def __init__(self, to: int, answers: int) -> None:
        self._to, self._answers, self._unread = os.fdopen(to, "wb", 0), answers, bytearray()
        self._count = 0
        self.messages: list[dict[str, Any]] = []  # events since the page was opened: errors, requests
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    _session: str | None = None

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the Chrome DevTools Protocol and return its result."""
        self._count += 1
        whole = {"id": self._count, "method": method, "params": params}
        whole |= {"sessionId": self._session} if self._session is not None else {}
        self._to.write(json.dumps(whole).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.messages.append(answer)

    def look(self, width: int, height: int = 900, dark: bool = False, touch: bool = False) -> None:
        """Set the size of the window and the colours that the user prefers."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self.send("Emulation.setTouchEmulationEnabled", enabled=touch)
        value = "dark" if dark else "light"
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def open(self, page: Path) -> None:
        """Open a file and wait until it is loaded."""
        self.messages.clear()
        self.send("Page.navigate", url=page.absolute().as_uri())
        while not any(message.get("method") == "Page.loadEventFired" for message in self.messages):
            self.messages.append(self._read())

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited."""
        done = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def point(self, x: float, y: float) -> None:
        """Move the mouse."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def tap(self, x: float, y: float) -> None:
        """Touch the screen."""
        self.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def picture(self, whole: bool = True) -> bytes:
        """Return a PNG of the page, or of what the window shows of it."""
        return base64.b64decode(self.send("Page.captureScreenshot", captureBeyondViewport=whole)["data"])

    def pdf(self) -> bytes:
        """Return the page as it is printed."""
        return base64.b64decode(self.send("Page.printToPDF", printBackground=False)["data"])

    def errors(self) -> list[str]:
        """Return the errors of the page so far: exceptions, and what its policy refuses."""
        self.run("1")  # what the page has reported is before the answer
        found = [m for m in self.messages if m.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")]
        return [json.dumps(message["params"]) for message in found]

    def requests(self) -> list[str]:
        """Return the addresses that the page has asked for."""
        asked = [m for m in self.messages if m.get("method") == "Network.requestWillBeSent"]
        return [message["params"]["request"]["url"] for message in asked]

    def _read(self) -> dict[str, Any]:
        while (end := self._unread.find(b"\0")) < 0:
            piece = os.read(self._answers, 1 << 20)
            assert piece, "the browser has ended"
            self._unread += piece
        message: dict[str, Any] = json.loads(self._unread[:end])
        del self._unread[: end + 1]
        return message

    def close(self) -> None:
        self._to.close()
        os.close(self._answers)


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser with a profile of its own, and end it."""
    path = program()
    assert path is not None, "there is no Chromium (apt install chromium)"
    there, to = os.pipe()
    answers, back = os.pipe()
    with tempfile.TemporaryDirectory(prefix="ftslurm-browser-", ignore_cleanup_errors=True) as profile:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        words = [path, *OPTIONS, *sandbox, f"--user-data-dir={profile}", "about:blank"]
        command = ["bash", "-c", f'exec "$@" 3<&{there} 4>&{back}', "bash", *words]
        process = subprocess.Popen(
            command,
            pass_fds=(there, back),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there)
        os.close(back)
        tab: Browser | None = None
        try:
            tab = Browser(to, answers)
            yield tab
            tab._session = None
            tab.send("Browser.close")
        finally:
            if tab is not None:
                tab.close()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
