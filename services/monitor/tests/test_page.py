"""The page and the table show what the monitor saw, in a real browser and a terminal."""

import base64
import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import websocket
from rich.console import Console

from isolator_core import http_server
from isolator_core.errors import UserError
from isolator_monitor import top
from isolator_monitor.monitor import Monitor
from isolator_monitor.view import View
from isolator_testing.tools import require

WAIT_SECONDS = 60.0


@pytest.fixture
def url(scene: Callable[[], View]) -> Iterator[str]:
    monitor = Monitor(scene, 1.0, legacy=False)
    with http_server.make_server("127.0.0.1", 0, monitor.answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        assert monitor.update()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Browser:
    """One tab of Chromium, by its DevTools protocol."""

    def __init__(self, connection: websocket.WebSocket) -> None:
        self._connection = connection
        self._number = 0
        self.errors: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv())
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.errors.append(json.dumps(message["params"]))
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result

    def value(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression)["result"].get("value")

    def wait(self, expression: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not self.value(expression):
            assert time.monotonic() < deadline, self.value("document.body.innerText")
            time.sleep(0.05)

    def size(self, width: int, height: int, *, phone: bool) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    profile = tmp_path / "profile"
    process = subprocess.Popen(
        [
            require("chromium", package="chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--disable-dev-shm-usage", f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank",
        ],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        found = profile / "DevToolsActivePort"
        deadline = time.monotonic() + WAIT_SECONDS
        while not found.exists() or not found.read_text().strip():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        port = found.read_text().splitlines()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=WAIT_SECONDS) as answer:
            tab = next(target for target in json.load(answer) if target["type"] == "page")
        connection = websocket.create_connection(
            tab["webSocketDebuggerUrl"], timeout=WAIT_SECONDS, suppress_origin=True
        )
        made = Browser(connection)
        for domain in ("Runtime", "Log", "Page"):
            made.call(f"{domain}.enable")
        yield made
        connection.close()
    finally:
        process.terminate()
        process.wait(WAIT_SECONDS)


@pytest.mark.parametrize(("width", "height", "phone"), [(1280, 800, False), (390, 844, True)])
def test_page(url: str, browser: Browser, width: int, height: int, phone: bool) -> None:
    browser.size(width, height, phone=phone)
    browser.call("Page.navigate", url=url)
    browser.wait("document.querySelectorAll('#rows tr').length === 4")
    text = browser.value("document.body.innerText")
    for words in (
        "4 containers, read",
        "0 · Tesla T4",
        "9.00 GiB of 15.00 GiB in use, 61 % busy",
        "limits add up to 15.60 GiB",
        "0.29 GiB of 15.00 GiB in use\n",
        "train-resnet-0\nresearch, container main",
        "3.90 GiB of 4.05 GiB",
        "12 % of 30 %",
        "no_mounts: nothing is mounted at /usr/local/vgpu/libvgpu.so and /etc/ld.so.preload",
        "<img src=x>",
    ):
        assert words in text
    assert browser.value("document.querySelector('.card .problem').textContent") == "limits add up to 15.60 GiB"
    fill = browser.value("parseFloat(document.querySelector('#rows tr:nth-child(2) .bar span').style.width)")
    assert fill == pytest.approx(100 * 3.9 * 1024 / 4147, abs=0.1)
    assert browser.value("document.querySelectorAll('img').length") == 0
    # Nothing sticks out to the side, and nothing was loaded from elsewhere or blocked.
    assert browser.value("document.documentElement.scrollWidth") <= width
    origins = browser.value("performance.getEntriesByType('resource').map(e => new URL(e.name).origin).join()")
    assert set(origins.split(",")) == {url}
    assert browser.errors == []
    kept = os.environ.get("SCREENSHOTS")
    if kept:
        # innerHeight is the window's; the picture is of the whole page.
        browser.size(width, browser.value("document.documentElement.scrollHeight"), phone=phone)
        data = browser.call("Page.captureScreenshot", format="png")["data"]
        (Path(kept) / f"page-{'phone' if phone else 'desk'}.png").write_bytes(base64.b64decode(data))


def test_page_says_when_the_monitor_is_gone(url: str, browser: Browser) -> None:
    browser.call("Page.navigate", url=url)
    browser.wait("document.querySelectorAll('#rows tr').length === 4")
    browser.value("window.fetch = () => Promise.reject(new TypeError('Failed to fetch'))")
    browser.wait("document.getElementById('state').className === 'wrong'")


def test_top_shows_one_picture(url: str) -> None:
    output = io.StringIO()
    Console(file=output, width=160).print(top.picture(top.fetch(url)))
    text = output.getvalue()
    for words in ("Tesla T4", "9.00 GiB of 15.00 GiB", "15.60 GiB", "research/train-resnet-0", "12 % of 30 %"):
        assert words in text
    assert "no_mounts" in text


def test_top_says_what_is_wrong() -> None:
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:1 does not answer: .*refused"):
        top.fetch("http://127.0.0.1:1")
    with pytest.raises(UserError, match="nowhere does not answer: unknown url type"):
        top.fetch("nowhere")


def test_top_in_a_terminal(url: str) -> None:
    """It draws, draws again, and ends by Ctrl-C with status 0."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "isolator_monitor", "top", "--url", url, "--interval", "0.1"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "160", "LINES": "40"},
    )
    os.close(slave)
    try:
        seen = b""
        deadline = time.monotonic() + WAIT_SECONDS
        while seen.count(b"train-resnet-0") < 2:
            assert time.monotonic() < deadline, seen
            seen += os.read(master, 4096)
        process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + WAIT_SECONDS
        with suppress(OSError):
            while os.read(master, 4096):
                assert time.monotonic() < deadline, "it goes on drawing"
        assert process.wait(WAIT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
