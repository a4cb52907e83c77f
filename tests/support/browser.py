"""A real headless Chromium, driven over a pipe by its own DevTools protocol: standard library only.

with Browser.start(folder) as browser:
    page = browser.open(path, width=390, dark=True)
    page.texts(), page.requests, page.console, page.screenshot(), page.pdf()
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)

# Boxes of text as drawn: every text node of the page that is rendered, cut by nothing, with the box that scrolls it.
_BOXES = """
(() => {
  const out = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n; (n = walk.nextNode());) {
    const e = n.parentElement;
    if (!n.data.trim() || !e.checkVisibility() || /^(title|desc|style)$/i.test(e.tagName)) continue;
    const r = document.createRange();
    r.selectNodeContents(n);
    const scroller = e.closest(".scroll");
    for (const b of r.getClientRects())
      if (b.width && b.height)
        out.push({text: n.data.trim().slice(0, 80), left: b.left, top: b.top, right: b.right, bottom: b.bottom,
                  in_svg: !!e.ownerSVGElement, scrolls: !!scroller, size: parseFloat(getComputedStyle(e).fontSize) *
                  (e.ownerSVGElement ? e.ownerSVGElement.getScreenCTM().a : 1)});
  }
  return out;
})()
"""


@dataclass
class Page:
    """One loaded page, and what the browser said while loading it."""

    browser: Browser
    session: str
    requests: list[str] = field(default_factory=list)
    """Every address asked for, the page itself first."""
    console: list[str] = field(default_factory=list)
    """Console output, exceptions, and refusals by the content security policy."""

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        done = self.browser.call("Runtime.evaluate", self.session, expression=script, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def boxes(self) -> list[dict[str, Any]]:
        """Where each piece of visible text is drawn, in CSS pixels."""
        return list(self.evaluate(_BOXES))

    def screenshot(self) -> bytes:
        """The whole page as PNG, however long."""
        done = self.browser.call("Page.captureScreenshot", self.session, format="png", captureBeyondViewport=True)
        return base64.b64decode(done["data"])

    def pdf(self) -> bytes:
        """The page as a printer gets it, on A4."""
        done = self.browser.call("Page.printToPDF", self.session, paperWidth=8.27, paperHeight=11.69)
        return base64.b64decode(done["data"])

    def media(self, *, kind: str = "", dark: bool = False) -> None:
        """Show the page as on `print`, or dark."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.browser.call("Emulation.setEmulatedMedia", self.session, media=kind, features=features)


class Browser:
    """One Chromium process; `start` ends it, with all its children."""

    def __init__(self, process: subprocess.Popen[bytes], write: int, read: int) -> None:
        self._process, self._write, self._read = process, write, read
        self._buffer, self._last_id = b"", 0
        self._events: list[dict[str, Any]] = []

    @classmethod
    @contextlib.contextmanager
    def start(cls, profile: Path) -> Iterator[Browser]:
        """A fresh browser with an empty profile folder."""
        their_read, our_write = os.pipe()
        our_read, their_write = os.pipe()
        # the protocol fixes descriptors 3 and 4; moved up first, so that neither move can hit the other
        high_read, high_write = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (their_read, their_write))
        shell = f'exec chromium {" ".join(_FLAGS)} --user-data-dir="$1" about:blank 3<&{high_read} 4>&{high_write}'
        process = subprocess.Popen(
            ["bash", "-c", shell, "bash", str(profile)],
            pass_fds=(high_read, high_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for fd in (their_read, their_write, high_read, high_write):
            os.close(fd)
        try:
            yield cls(process, our_write, our_read)
        finally:
            os.close(our_write)
            os.close(our_read)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """Load a file and wait until it is there."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable", session)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            session,
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        page.media(dark=dark)
        self._events.clear()
        self.call("Page.navigate", session, url=path.resolve().as_uri())
        seen = self._until("Page.loadEventFired")
        page.requests = [e["params"]["request"]["url"] for e in seen if e["method"] == "Network.requestWillBeSent"]
        said = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        page.console = [json.dumps(e["params"]) for e in seen if e["method"] in said]
        return page

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """One request of the protocol; what the browser says meanwhile is kept."""
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            got = self._next()
            if got.get("id") == self._last_id:
                assert "error" not in got, f"{method}: {got['error']}"
                result: dict[str, Any] = got["result"]
                return result
            self._events.append(got)

    def _until(self, method: str) -> list[dict[str, Any]]:
        while not any(e["method"] == method for e in self._events):
            self._events.append(self._next())
        return list(self._events)

    def _next(self, limit_s: float = 60) -> dict[str, Any]:
        end = time.monotonic() + limit_s
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, end - time.monotonic()))
            assert ready, "the browser said nothing for a minute"
            more = os.read(self._read, 1 << 20)
            assert more, "the browser ended"
            self._buffer += more
        raw, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(raw)
        return found
