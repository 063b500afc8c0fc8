"""`make screenshots`: pictures of every page, on desktop and phone, light and dark.

python -m tests.e2e.screenshots FOLDER [NAME ...]
"""

import argparse
import sys
from itertools import product
from pathlib import Path

from tests.e2e.browser import DESK, PHONE, Browser, Screen, chromium, programs
from tests.e2e.sites import PAGES, run_site

TALLEST = 4000
"""Pixels of the tallest picture."""
ADDRESSES = {"front": "/", "refused": "/refused/", **{name: f"/admin/{path}" for name, path in PAGES.items()}}


def shoot(browser: Browser, screen: Screen, path: str, file: Path) -> None:
    browser.set_screen(screen)
    browser.open(path)
    height = min(int(browser.run("return document.scrollingElement.scrollHeight")), TALLEST)
    browser.set_screen(Screen(screen.name, screen.width, max(height, screen.height)))
    browser.chrome.save_screenshot(str(file))


def main() -> int:
    parser = argparse.ArgumentParser(description="Take pictures of every page.")
    parser.add_argument("folder", type=Path, help="where to save the pictures")
    parser.add_argument("names", nargs="*", help=f"pages to take; default: all of {', '.join(ADDRESSES)}")
    chosen = parser.parse_args()
    found = programs()
    if found is None:
        print("There is no Chromium on this machine: apt-get install chromium chromium-driver", file=sys.stderr)
        return 1
    chosen.folder.mkdir(parents=True, exist_ok=True)
    with chromium(*found) as chrome, run_site() as site:
        browser = Browser(chrome, site)
        browser.sign_in("admin")
        for name in chosen.names or ADDRESSES:
            for screen, scheme in product((DESK, PHONE), ("light", "dark")):
                browser.set_color_scheme(scheme)
                file = f"{name.replace(' ', '-')}-{screen.name}-{scheme}.png"
                shoot(browser, screen, ADDRESSES[name], chosen.folder / file)
            print(name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
