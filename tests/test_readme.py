"""What the README shows is run: its settings, its views, its sessions, its commands."""

from __future__ import annotations

import asyncio
import doctest
import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.checks import run_checks
from django.http import HttpRequest
from django.test import RequestFactory, override_settings

from django_quota import quota
from django_quota.algorithms import ALGORITHMS
from django_quota.decorators import limited
from django_quota.testing import freeze

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"(<!-- run: (\w+) -->\n)?```(\w+)\n(.*?)```", README, re.DOTALL)
SETTINGS = next(text for _, name, _, text in BLOCKS if name == "settings")


def visitor(**data: str) -> HttpRequest:
    request = RequestFactory().post("/", data) if data else RequestFactory().get("/")
    request.user = AnonymousUser()
    return request


@pytest.fixture
def shown_settings() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(SETTINGS, names)
    return names


@pytest.fixture
def tour(redis_cache: Any, settings: Any, shown_settings: dict[str, Any]) -> dict[str, Any]:
    """Run the Python blocks and the sessions of the README in their order, on a real Redis; return what they define."""
    settings.QUOTA = shown_settings["QUOTA"]
    names: dict[str, Any] = {"request": visitor()}
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    for _, run_as, language, text in BLOCKS:
        if language == "python" and not run_as:
            exec(text, names)
        elif language == "pycon":
            session = parser.get_doctest(text, {}, "README.md", "README.md", 0)
            session.globs = names
            result = runner.run(session, clear_globs=False)
            assert result.failed == 0, text
    return names


def test_the_settings_that_it_shows_pass_the_checks(shown_settings: dict[str, Any]) -> None:
    assert "django_quota" in shown_settings["INSTALLED_APPS"]
    with override_settings(QUOTA=shown_settings["QUOTA"], CACHES=shown_settings["CACHES"]):
        assert run_checks(tags=["django_quota"]) == []


def test_every_snippet_of_the_tour_runs_and_prints_what_it_shows(tour: dict[str, Any]) -> None:
    views = [name for name, value in tour.items() if limited(value)]
    assert sorted(views) == [
        "export", "front_page", "gentle", "lookup", "members", "report", "search", "sms_code",
    ]  # fmt: skip


def test_every_view_of_the_tour_limits_as_it_says(tour: dict[str, Any]) -> None:
    with freeze(1_800_000_000_000_000):
        assert [tour["members"](visitor()).status_code for _ in range(11)] == [200] * 10 + [429]
        assert [tour["search"](visitor()).status_code for _ in range(11)] == [200] * 10 + [429]
        assert [tour["export"](visitor()).status_code for _ in range(11)] == [200] * 10 + [429]
        assert [tour["sms_code"](visitor(phone="+49 1")).status_code for _ in range(2)] == [200, 429]
        assert tour["sms_code"](visitor(phone="+49 2")).status_code == 200
        assert asyncio.run(tour["report"](visitor())).status_code == 200
        assert asyncio.run(tour["Orders"].as_view()(visitor(a="b"))).headers["RateLimit"] == '"Orders";r=99;t=3600'
        ids = RequestFactory().get("/?id=1&id=2&id=3")
        ids.user = AnonymousUser()
        assert tour["lookup"](ids).headers["RateLimit"].startswith('"lookup";r=997;')


def test_the_refusal_that_it_shows_is_what_a_client_gets(redis_cache: Any, settings: Any) -> None:
    shown = next(text for _, _, language, text in BLOCKS if language == "console" and text.startswith("HTTP/1.1 429"))
    head, _, body = shown.partition("\n\n")
    lines = dict(line.split(": ", 1) for line in head.splitlines()[1:])
    limit_it: Any = quota("10/s; 500/h", key="global", name="search", algorithm="fixed_window")
    view = limit_it(lambda request: None)
    with freeze(1_800_000_000_000_000 - 3_558 * 1_000_000):
        limit = limited(view)
        assert limit is not None
        (rule,) = limit.rules(None)
        from django_quota import check

        for tick in range(500):
            with freeze(1_800_000_000_000_000 - (3_558 - tick) * 1_000_000):
                assert check(rule, "global")
    with freeze(1_800_000_000_000_000):
        response = view(visitor())
    assert {name: response.headers[name] for name in lines} == lines
    assert json.loads(response.content) == json.loads(body)


def test_every_make_target_that_it_names_exists() -> None:
    named = set(re.findall(r"make ([a-z]+)\b", README)) - {"and"}
    defined = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert named <= defined
    assert {"demo", "test", "serve", "lint", "bench"} <= named


def test_its_table_lists_the_algorithms_that_there_are() -> None:
    table = README.partition("## Algorithms")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(ALGORITHMS)


def test_every_path_that_it_links_to_exists() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
