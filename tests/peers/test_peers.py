"""The page that compares says what the other packages do, as they are installed."""

import re
from importlib.metadata import version
from importlib.util import find_spec

import pytest

from tests.peers.__main__ import PAGE, PART, measure, tables
from tests.peers.shows import PACKAGES
from tests.support.pages import part


@pytest.mark.thorough("processes")
@pytest.mark.skipif(not all(map(find_spec, PACKAGES.values())), reason="not all of the packages are installed")
def test_the_page_says_what_the_packages_do() -> None:
    """It runs them all; `python -m tests.peers --write` fills the page again."""
    text = part(PAGE, PART)
    for name in PACKAGES:
        told = re.search(rf"\| {re.escape(name)} ([\w.]+) \|", text)
        assert told is not None, name
        if name != "django-quota" and told[1] != version(name):
            pytest.skip(f"The page is about {name} {told[1]}, and {version(name)} is installed")
    assert tables(measure()) == text
