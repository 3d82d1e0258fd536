"""A real browser shows the page of a run: without complaint, without the network, and on a phone."""

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lit_trainer.reporting.page import write_page
from lit_trainer.reporting.run import Run
from tests.reporting.folders import SECTIONS, make_run

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
IN_CI = os.environ.get("CI") == "true"
SECONDS = 60
REQUEST = "Network.requestWillBeSent"
VIEWS = [(1200, "light"), (1200, "dark"), (400, "dark"), (400, "light")]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None and not IN_CI, reason="there is no chromium to look at the page with"),
]

LOOK = """
({
  width: document.documentElement.scrollWidth,
  sections: [...document.querySelectorAll("section")].filter(each => each.offsetHeight > 30).map(each => each.id),
  charts: [...document.querySelectorAll("figure svg")].filter(each => each.getBoundingClientRect().height > 100).length,
  ink: getComputedStyle(document.querySelector("figure svg text")).fill,
  ground: getComputedStyle(document.body).backgroundColor,
})
"""


STARTER = """
import os, sys
from fcntl import F_DUPFD, fcntl

ends = [fcntl(int(end), F_DUPFD, 10) for end in sys.argv[1:3]]
for end, expected in zip(ends, (3, 4)):
    os.dup2(end, expected)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Starts the browser, which reads commands from descriptor 3 and writes answers to 4."""


class Browser:
    """A browser without a window, spoken to over a pipe in the protocol of its developer tools."""

    def __init__(self, folder: Path) -> None:
        assert BROWSER is not None, "CI needs a chromium for this test"
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}", "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", STARTER, str(commands), str(answers), BROWSER, *flags],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        os.set_blocking(self._answers, False)
        self._buffer, self._number = b"", 0
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Log", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path: Path, width: int, colours: str) -> dict[str, Any]:
        """Shows a page; returns what is to be seen of it."""
        before = len(self.events)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events[before:]):
            self.events.append(self._receive())
        return self.call("Runtime.evaluate", expression=LOOK, returnByValue=True)["result"]["value"]

    def picture(self) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def close(self) -> None:
        with suppress(OSError, AssertionError):
            self.call("Browser.close")
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            assert time.monotonic() < end, "the browser does not answer"
            try:
                self._buffer += os.read(self._answers, 1 << 20)
            except BlockingIOError:
                time.sleep(0.01)
            assert self._buffer or self._process.poll() is None, "the browser has ended"
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.mark.parametrize("kind", ["multi_class", "values"])
def test_a_page_is_whole_at_any_width_and_in_light_and_dark(browser: Browser, tmp_path: Path, kind: Any) -> None:
    run = Run.read(make_run(tmp_path, kind))
    write_page(run, tmp_path / "report.html")
    browser.events.clear()
    seen = {(width, colours): browser.open(tmp_path / "report.html", width, colours) for width, colours in VIEWS}
    for (width, _), found in seen.items():
        assert found["width"] <= width, "it is wider than the window"
        assert found["sections"] == [name for name in SECTIONS if kind != "values" or name != "classes"]
        assert found["charts"] >= 10
    light, dark = (seen[1200, colours] for colours in ("light", "dark"))
    assert light["ground"] != dark["ground"]
    assert light["ink"] != dark["ink"]
    complaints = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
    assert not [event for event in browser.events if event.get("method") in complaints]
    asked = {event["params"]["request"]["url"] for event in browser.events if event.get("method") == REQUEST}
    assert {url for url in asked if not url.startswith("data:")} == {(tmp_path / "report.html").as_uri()}
    assert browser.picture().startswith(b"\x89PNG")
