"""Headless Chromium of this machine's packages, driven by its own chromedriver. Nothing is downloaded.

What a page writes to the console is kept: a script's error, a violation of the Content-Security-Policy, a file that is
not there.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--lang=en-US",
)


@dataclass(frozen=True)
class Screen:
    """What a page is looked at on."""

    name: str
    width: int
    height: int


DESK = Screen("desk", 1280, 900)
PHONE = Screen("phone", 375, 812)


def programs() -> tuple[Path, Path] | None:
    """Find Chromium and its driver; None where one of them is not installed."""
    found = [shutil.which(name) for name in ("chromium", "chromedriver")]
    return None if None in found else (Path(str(found[0])), Path(str(found[1])))


@contextmanager
def chromium(browser: Path, driver: Path) -> Iterator[Chrome]:
    """Run a browser with an empty profile for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="q-chromium-", ignore_cleanup_errors=True) as profile:
        options = ChromeOptions()
        options.binary_location = str(browser)
        for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        chrome = Chrome(options=options, service=Service(executable_path=str(driver)))
        try:
            look_on(chrome, DESK)
            yield chrome
        finally:
            chrome.quit()


def look_on(chrome: Chrome, screen: Screen) -> None:
    """Give the page a screen of this size, and no less: a window has a least width that a phone is under."""
    chrome.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": screen.width, "height": screen.height, "deviceScaleFactor": 1, "mobile": screen is PHONE},
    )


def prefer(chrome: Chrome, scheme: str) -> None:
    """Prefer `light` or `dark` pages that do not move, from the next page on: this one may fade from one to another."""
    wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
    features = [{"name": name, "value": value} for name, value in wanted.items()]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def complaints(chrome: Chrome, *wanted: HTTPStatus) -> list[str]:
    """Return what pages have written to the console since this was last asked: errors, violations, missing files.

    Chromium writes down every answer from 400 on; those of the `wanted` statuses are what a test is about.
    """
    entries: list[dict[str, Any]] = chrome.get_log("browser")  # type: ignore[no-untyped-call]
    said = [f"{entry['source']}: {entry['message']}" for entry in entries if entry["level"] in ("SEVERE", "WARNING")]
    return [words for words in said if not any(f"a status of {status.value} " in words for status in wanted)]
