"""Chromium by its driver, where both are installed."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1000,900"
).split()

#: A test that needs it is left out where it is not there.
NEEDS_BROWSER = pytest.mark.skipif(
    not (shutil.which("chromedriver") and shutil.which("chromium")),
    reason="Chromium and its driver are not installed (Debian: chromium, chromium-driver)",
)


LOGS = {"goog:loggingPrefs": {"browser": "ALL"}}


class Browser:
    """As much of a WebDriver client as is needed here (W3C WebDriver, by HTTP)."""

    def __init__(self, port: int, profile: Path) -> None:
        self.base = f"http://127.0.0.1:{port}"
        options = {"args": [*FLAGS, f"--user-data-dir={profile}"], "binary": shutil.which("chromium")}
        capabilities = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options, **LOGS}}
        self.session = self._post("/session", {"capabilities": capabilities})["sessionId"]

    def _post(self, path: str, body: dict):
        request = urllib.request.Request(
            self.base + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def close(self) -> None:
        request = urllib.request.Request(f"{self.base}/session/{self.session}", method="DELETE")
        urllib.request.urlopen(request, timeout=60).close()

    def open(self, url: str) -> None:
        self._post(f"/session/{self.session}/url", {"url": url})

    def log(self) -> list[dict]:
        """What has been said in the console since it was asked last: errors, and what a policy has blocked."""
        return self._post(f"/session/{self.session}/se/log", {"type": "browser"})

    def emulate(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        body = {"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}}
        self._post(f"/session/{self.session}/goog/cdp/execute", body)

    def run_async(self, script: str):
        return self._post(f"/session/{self.session}/execute/async", {"script": script, "args": []})

    def run(self, script: str, *arguments):
        return self._post(f"/session/{self.session}/execute/sync", {"script": script, "args": [*arguments]})


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5):
                break
            time.sleep(0.2)
        found = Browser(port, tmp_path_factory.mktemp("profile"))
        try:
            yield found
        finally:
            found.close()  # the driver, when it ends, leaves the browser running
    finally:
        driver.terminate()
        driver.wait(30)
