"""The page that compares says what the other packages do, as they are installed."""

import re
from importlib.metadata import version

import pytest

for package in ("limits", "throttled", "pyrate_limiter", "django_ratelimit", "django_smart_ratelimit", "flask_limiter"):
    pytest.importorskip(package)

from tests.peers.__main__ import PAGE, PART, measure, tables  # noqa: E402 — see above
from tests.peers.shows import PACKAGES  # noqa: E402
from tests.support.pages import part  # noqa: E402


@pytest.mark.thorough("processes")
def test_the_page_says_what_the_packages_do() -> None:
    """It runs them all; `python -m tests.peers --write` fills the page again."""
    text = part(PAGE, PART)
    for name in PACKAGES:
        told = re.search(rf"\| {re.escape(name)} ([\w.]+) \|", text)
        assert told is not None, name
        if name != "django-quota" and told[1] != version(name):
            pytest.skip(f"The page is about {name} {told[1]}, and {version(name)} is installed")
    assert tables(measure()) == text
