"""The page that compares says what the other packages do, as they are installed."""

from __future__ import annotations

import re
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

for package in ("limits", "throttled", "pyrate_limiter", "django_ratelimit", "django_smart_ratelimit", "flask_limiter"):
    pytest.importorskip(package)

from tests.peers import report  # noqa: E402 — see above
from tests.peers.shows import PACKAGES  # noqa: E402


@pytest.fixture
def found() -> dict[str, Any]:
    """Figures as `measure` returns them, with none measured."""
    site: dict[str, Any] = {
        "status": 429,
        "retry_after": True,
        "draft_headers": False,
        "legacy_headers": True,
        "left": 7,
    }
    sites = {"django-quota": {**site, "wait": {"told": 50, "then": True}, "async": [200, 429]}, "limits": site}
    sites = {name: {**each, "of_one_network": 10, "forging": 10} for name, each in sites.items()}
    return {
        "versions": dict.fromkeys(PACKAGES, "1.0"),
        "visitors": sites,
        "limiters": {
            "limits": {"race": 50, "seconds": 1.0, "worst": 10},
            "throttled-py": {"race": 53, "seconds": 3.0, "worst": None},
            "djangorestframework": {"race": 90, "seconds": 3.0, "worst": 10},
        },
        "outage": [dict.fromkeys(sites, 200)] * 2,
        "month": {"limits": "an error"},
        "lines": {"limits": 5_000, "django-quota": 33_000},
    }


def test_the_tables_show_what_was_found_and_fill_the_page(found: dict[str, Any], tmp_path: Path) -> None:
    text = report.tables(found)
    assert "| a refusal | 429, `Retry-After`, `X-RateLimit-*` | 429," in text
    assert "| limits 1.0 | 50 | 10 |\n| throttled-py 1.0 | 50 | — |" in text
    assert "| djangorestframework 1.0 | more than 50 | 10 |" in text
    assert "| limits 1.0 | 5,000 |\n| django-quota 1.0 | more than 30,000 |" in text
    page = Path(shutil.copy(report.PAGE, tmp_path))
    report.write(text, page)
    assert report.shown(page) == text


@pytest.mark.thorough("processes")
def test_the_page_says_what_the_packages_do() -> None:
    """It runs them all; `python -m tests.peers --write` fills the page again."""
    text = report.shown()
    for name in PACKAGES:
        told = re.search(rf"\| {re.escape(name)} ([\w.]+) \|", text)
        assert told is not None, name
        if name != "django-quota" and told[1] != version(name):
            pytest.skip(f"The page is about {name} {told[1]}, and {version(name)} is installed")
    assert report.tables(report.measure()) == text
