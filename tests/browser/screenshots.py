"""`make screenshots`: pictures of every page, on a desk and on a phone, light and dark, to be looked at.

python -m tests.browser.screenshots FOLDER [NAME ...]
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path

from tests.browser.chromium import DESK, PHONE, Screen, chromium, look_on, prefer, programs
from tests.browser.sites import PAGES, served
from tests.browser.visits import Visits

TALLEST = 4000
"""Pixels of a page that are in its picture."""
ADDRESSES = {"front": "/", "refused": "/refused/", **{name: f"/admin/{path}" for name, path in PAGES.items()}}


def shoot(visits: Visits, screen: Screen, path: str, file: Path) -> None:
    """Take a picture of a whole page."""
    look_on(visits.chrome, screen)
    visits.open(path)
    height = min(int(visits.run("return document.scrollingElement.scrollHeight")), TALLEST)
    look_on(visits.chrome, Screen(screen.name, screen.width, max(height, screen.height)))
    visits.chrome.save_screenshot(str(file))


def main() -> int:
    """Take them all; return the exit status."""
    parser = argparse.ArgumentParser(description="Take pictures of every page.")
    parser.add_argument("folder", type=Path, help="where they go")
    parser.add_argument("names", nargs="*", help=f"the pages; all where none is named: {', '.join(ADDRESSES)}")
    chosen = parser.parse_args()
    unknown = set(chosen.names) - set(ADDRESSES)
    if unknown:
        parser.error(f"there is no page called {', '.join(sorted(unknown))}")
    found = programs()
    if found is None:
        print("There is no Chromium on this machine: apt-get install chromium chromium-driver", file=sys.stderr)
        return 1
    chosen.folder.mkdir(parents=True, exist_ok=True)
    with chromium(*found) as chrome, served() as site:
        visits = Visits(chrome, site)
        visits.sign_in("admin")
        for name in chosen.names or ADDRESSES:
            for screen, scheme in product((DESK, PHONE), ("light", "dark")):
                prefer(chrome, scheme)
                file = f"{name.replace(' ', '-')}-{screen.name}-{scheme}.png"
                shoot(visits, screen, ADDRESSES[name], chosen.folder / file)
            print(name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
