"""A real Chromium without a window, a console that it can open, and axe, which finds what keeps people out."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.support.fleets import SimulatedTopics
from tidegate.console.access import Access
from tidegate.console.app import build
from tidegate.console.server import ConsoleServer
from tidegate.console.settings import ConsoleSettings
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.poll import wait_until

AXE = Path(__file__).with_name("axe") / "axe.min.js"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PHONE, WIDE = (390, 844), (1400, 900)


@contextmanager
def served(topics: SimulatedTopics, settings: ConsoleSettings, port: int = 0) -> Iterator[str]:
    """Serve a console over simulated topics on a port, 0 for a free one; give its address."""
    server = ConsoleServer(build(settings, topics, Access(settings), "a key", SystemClock().now))
    with closing(socket.create_server(("127.0.0.1", port))) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        assert wait_until(lambda: server.started, 10)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.end()
        thread.join(timeout=10)
        assert not thread.is_alive()


@contextmanager
def chromium(profile: Path) -> Iterator[webdriver.Chrome]:
    """Start Debian's Chromium with a new profile."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.fail("Chromium is missing: `make test` installs it as root; or install chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    try:
        browser.set_page_load_timeout(30)
        browser.implicitly_wait(5)
        yield browser
    finally:
        browser.quit()


def resize(browser: webdriver.Chrome, size: tuple[int, int], scheme: str = "light") -> None:
    """Give the page the size of a screen, and a colour scheme."""
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def violations(browser: webdriver.Chrome) -> list[str]:
    """Return what axe finds on the page: rule, help, and the elements."""
    browser.execute_script(AXE.read_text("utf-8"))
    found: dict[str, Any] = browser.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    return [
        f"{each['id']}: {each['help']}: {[node['html'][:120] for node in each['nodes'][:3]]}"
        for each in found["violations"]
    ]


def complaints(browser: webdriver.Chrome) -> list[str]:
    """Return the warnings and errors in the browser's log, such as a script that the page may not run."""
    log: list[dict[str, str]] = browser.get_log("browser")  # type: ignore[no-untyped-call]
    return [each["message"] for each in log if each["level"] in {"WARNING", "SEVERE"}]
