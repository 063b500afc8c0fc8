"""Headless Chromium with chromedriver, both from the packages of the machine. Nothing is downloaded.

The console of each page is kept, with script errors, missing files and violations of the Content-Security-Policy.
"""

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
    """The size of a screen."""

    name: str
    width: int
    height: int


DESK = Screen("desk", 1440, 900)
PHONE = Screen("phone", 390, 844)


def programs() -> tuple[Path, Path] | None:
    """Return the paths of Chromium and chromedriver; None where one of them is not installed."""
    found = [shutil.which(name) for name in ("chromium", "chromedriver")]
    return None if None in found else (Path(str(found[0])), Path(str(found[1])))


@contextmanager
def chromium(browser: Path, driver: Path) -> Iterator[Chrome]:
    """Run a browser with an empty profile during the block."""
    with tempfile.TemporaryDirectory(prefix="q-chromium-", ignore_cleanup_errors=True) as profile:
        options = ChromeOptions()
        options.binary_location = str(browser)
        for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        chrome = Chrome(options=options, service=Service(executable_path=str(driver)))
        try:
            set_screen(chrome, DESK)
            yield chrome
        finally:
            chrome.quit()


def set_screen(chrome: Chrome, screen: Screen) -> None:
    """Set the size of the screen. A window cannot be as narrow as a phone."""
    chrome.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": screen.width, "height": screen.height, "deviceScaleFactor": 1, "mobile": screen is PHONE},
    )


def set_color_scheme(chrome: Chrome, scheme: str) -> None:
    """Prefer `light` or `dark`, without animations, from the next page on."""
    wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
    features = [{"name": name, "value": value} for name, value in wanted.items()]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def console_errors(chrome: Chrome, *wanted: HTTPStatus) -> list[str]:
    """Return the errors in the console since the last call.

    Chromium logs every response from 400 on, except that this leaves out the `wanted` statuses.
    """
    entries: list[dict[str, Any]] = chrome.get_log("browser")  # type: ignore[no-untyped-call]
    said = [f"{entry['source']}: {entry['message']}" for entry in entries if entry["level"] in ("SEVERE", "WARNING")]
    return [words for words in said if not any(f"a status of {status.value} " in words for status in wanted)]
