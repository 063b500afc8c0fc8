"""The README, the guide and the reference run as shown: settings, views, sessions, commands."""

from __future__ import annotations

import asyncio
import doctest
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django import urls
from django.contrib.auth.models import AnonymousUser, User
from django.core.checks import run_checks
from django.core.management import call_command, load_command_class
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory, override_settings

from django_quota import check, peek, quota
from django_quota.adapters import unobserve
from django_quota.testing import freeze, quota_kit
from django_quota.web.request_rules import limited

README_VERBS = ("status", "reset", "override", "sync", "rollup", "events", "sweep")
ROOT = Path(__file__).parents[2]
PAGES = [
    Path("README.md"),
    Path("SECURITY.md"),
    Path("CONTRIBUTING.md"),
    *sorted(path.relative_to(ROOT) for path in (ROOT / "docs").glob("*.md")),
]
TOUR = ("README.md", "docs/guide.md", "docs/rules.md")
"""The pages whose examples build on each other, in their order."""
INTEGRATIONS = (
    "docs/celery.md",
    "docs/channels.md",
    "docs/logins.md",
    "docs/ninja.md",
    "docs/opentelemetry.md",
    "docs/rest_framework.md",
    "docs/tasks.md",
)
"""Pages that are run with their packages, in tests/contrib."""


def read(page: str | Path) -> str:
    return (ROOT / page).read_text()


TEXT = "\n".join(map(read, TOUR))
BLOCKS = re.findall(r"(<!-- run: (\w+) -->\n)?```(\w+)\n(.*?)```", TEXT, re.DOTALL)
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
    """Run the Python blocks and sessions in their order, on a real Redis; return what they define."""
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
    assert unobserve(names["count_decision"])
    return names


def test_the_shown_settings_pass_the_checks(shown_settings: dict[str, Any]) -> None:
    assert "django_quota" in shown_settings["INSTALLED_APPS"]
    with override_settings(QUOTA=shown_settings["QUOTA"], CACHES=shown_settings["CACHES"]):
        assert run_checks(tags=["django_quota"]) == []


def test_every_snippet_of_the_tour_prints_what_it_shows(tour: dict[str, Any]) -> None:
    views = [name for name, value in tour.items() if limited(value)]
    assert sorted(views) == [
        "download", "export", "exports", "forgotten_password", "front_page", "gentle", "inbox", "lists", "log_in",
        "lookup", "members", "report", "search", "sign_in", "sms_code", "sms_code_api", "watch",
    ]  # fmt: skip


def test_a_typed_address_is_limited_in_any_case_and_stored_as_a_digest(tour: dict[str, Any], raw: Any) -> None:
    view, made = tour["forgotten_password"], RequestFactory()
    for number in range(6):
        email = ("Ann@example.org", " ann@Example.org", "ann@example.org\t")[number % 3]
        code = view(made.post("/", {"email": email}, REMOTE_ADDR="192.0.2.5")).status_code
        assert code == (200 if number < 5 else 429)
    assert view(made.post("/", {"email": "bob@example.org"}, REMOTE_ADDR="192.0.2.5")).status_code == 200
    assert not [key for key in raw.scan_iter() if b"example.org" in key.lower()]


def test_every_view_of_the_tour_has_the_limits_shown(tour: dict[str, Any]) -> None:
    with freeze(1_800_000_000_000_000):
        assert [tour["members"](visitor()).status_code for _ in range(11)] == [200] * 10 + [429]
        assert [tour["search"](visitor()).status_code for _ in range(11)] == [200] * 10 + [429]
        assert [tour["export"](visitor()).status_code for _ in range(11)] == [200] * 10 + [429]
        assert [tour["sms_code"](visitor(phone="+49 1")).status_code for _ in range(2)] == [200, 429]
        assert tour["sms_code"](visitor(phone="+49 2")).status_code == 200
        assert [tour["log_in"](visitor(username="ann")).status_code for _ in range(6)] == [200] * 5 + [429]
        assert [tour["sign_in"](visitor()).status_code for _ in range(6)] == [401] * 5 + [429]
        assert tour["download"](visitor()).headers["RateLimit"].startswith('"download";r=49999000;')
        tour["chat"](visitor()).getvalue()
        assert peek("90000/m", "user:43").remaining == 89_980
        assert asyncio.run(tour["report"](visitor())).status_code == 200
        assert asyncio.run(tour["Orders"].as_view()(visitor(a="b"))).headers["RateLimit"] == '"Orders";r=99;t=3600'
        ids = RequestFactory().get("/?id=1&id=2&id=3")
        ids.user = AnonymousUser()
        assert tour["lookup"](ids).headers["RateLimit"].startswith('"lookup";r=997;')


def test_the_shown_rules_for_a_whole_site_apply(memory_store: None, settings: Any) -> None:
    names: dict[str, Any] = {}
    exec(next(text for _, name, _, text in BLOCKS if name == "rules"), names)
    settings.QUOTA = {**settings.QUOTA, **names["QUOTA"]}
    settings.ROOT_URLCONF = "tests.support.urls_of_rules"
    settings.ALLOWED_HOSTS = ["*"]
    assert run_checks(tags=["django_quota"]) == []
    client = Client()
    with freeze(1_800_000_000_000_000):
        assert [client.get("/api/v1/items/").status_code for _ in range(11)] == [200] * 10 + [429]
        assert "RateLimit" not in client.get("/api/plain/").headers
        assert "RateLimit" not in client.get("/api/docs/old/style.css").headers
        assert "RateLimit" not in client.get("/api/v1/items/", REMOTE_ADDR="10.1.2.3").headers
        policies = client.get("/api/search/?a=1&b=2", HTTP_HOST="x.partners.example.com").headers["RateLimit"]
        assert policies.startswith('"api";r=0')
        reply = client.get("/api/search/?a=1&b=2", HTTP_HOST="x.partners.example.com", REMOTE_ADDR="10.1.2.3")
        assert reply.headers["RateLimit"].startswith('"search";r=2;t=1, "partners";r=9999;t=')


def test_a_client_gets_the_refusal_that_is_shown(redis_cache: Any, settings: Any) -> None:
    shown = next(text for _, _, language, text in BLOCKS if language == "console" and text.startswith("HTTP/1.1 429"))
    head, _, body = shown.partition("\n\n")
    lines = dict(line.split(": ", 1) for line in head.splitlines()[1:])
    limit_it: Any = quota("10/s; 500/h", key="global", name="search", algorithm="fixed_window")
    view = limit_it(lambda request: None)
    with freeze(1_800_000_000_000_000 - 3_558 * 1_000_000):
        limit = limited(view)
        assert limit is not None
        (rule,) = limit.rules(None)
        for tick in range(500):
            with freeze(1_800_000_000_000_000 - (3_558 - tick) * 1_000_000):
                assert check(rule, "global")
    with freeze(1_800_000_000_000_000):
        response = view(visitor())
    assert {name: response.headers[name] for name in lines} == lines
    assert json.loads(response.content) == json.loads(body)


@pytest.mark.usefixtures("database")
def test_the_override_made_in_code_takes_effect(tour: dict[str, Any]) -> None:
    user = User.objects.create(username="ann")
    tour["raise_for_a_day"](user)
    assert check("search", user).limit == 100


def commands() -> Iterator[list[str]]:
    """Find the commands of `manage.py` in the tour."""
    for _, _, language, text in BLOCKS:
        if language == "console":
            for line in re.findall(r"^\$ manage\.py (.*)$", text, re.MULTILINE):
                yield shlex.split(line, comments=True)


@pytest.mark.usefixtures("redis_cache", "database")
@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_shown_command_runs(words: list[str], settings: Any, shown_settings: dict[str, Any]) -> None:
    settings.QUOTA = shown_settings["QUOTA"]
    name, *arguments = words
    if "--follow" in arguments or "--exec" in arguments:  # these go on for ever: they are read, and not begun
        load_command_class("django_quota", name).create_parser("manage.py", name).parse_args(arguments)
    else:
        call_command(name, *arguments, stdout=StringIO())


def test_the_tour_names_every_command() -> None:
    named = set(re.findall(r"quota_[a-z]+", TEXT)) & {f"quota_{word}" for word in README_VERBS}
    there = {path.stem for path in (ROOT / "django_quota/management/commands").glob("quota_*.py")}
    assert named == there


@pytest.mark.usefixtures("redis_cache", "database")
def test_quota_status_prints_what_is_shown(settings: Any, shown_settings: dict[str, Any]) -> None:
    shown = next(text for _, _, language, text in BLOCKS if language == "console" and "quota_status" in text)
    settings.QUOTA = shown_settings["QUOTA"]
    first = 1_800_000_000_000_000
    ends = (first // 36_000_000 + 1) * 36_000_000 - 1 + 3_600_000_000  # of the slice that the first hit falls into
    for second in range(50):
        with freeze(first + second * 1_000_000):
            assert check("search", "user:42", 10)
    out = StringIO()
    with freeze(ends - 42_000_000):
        call_command("quota_status", "user:42", "--rule", "search", stdout=out)
    printed = out.getvalue().splitlines()
    assert shown.splitlines()[1:] == printed[: len(shown.splitlines()) - 1]


def test_every_named_make_target_exists() -> None:
    named = set(re.findall(r"make ([a-z-]+)\b", read("README.md") + read("CONTRIBUTING.md")))
    defined = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    assert named <= defined
    assert {"demo", "test", "test-all", "serve", "lint", "bench", "chaos", "screenshots", "messages"} <= named


def test_the_security_policy_is_linked_and_in_the_source_distribution() -> None:
    assert "](SECURITY.md)" in read("README.md")
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    assert "/SECURITY.md" in included["include"]


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]+))?\)", read(page)):
        path = ROOT / page.parent / target if target else ROOT / page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text()), anchor


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_path_and_module_that_a_page_names_exists(page: Path) -> None:
    text = read(page)
    for path in re.findall(r"`((?:django_quota|tests|example_project|docs)/[\w./*-]*)`", text):
        assert list(ROOT.glob(path.rstrip("/"))), path
    for name in re.findall(r"`(django_quota(?:\.\w+)+)`", text):
        resolve(name)


LAYERS = r"(?:core|engine|stores|services|web|admin|management|testing|middleware|models|signals|conf)"


def test_every_module_that_the_architecture_names_exists() -> None:
    page = read("docs/architecture.md")
    picture = read("docs/pictures/architecture.svg")
    named = set(re.findall(rf"`({LAYERS}(?:/[\w./]*)?(?::\w+)?)`", page)) | set(
        re.findall(r'class="module"[^>]*>([^<]+)', picture)
    )
    assert len(named) > 40
    for name in named - {"decide.lua"}:
        path, _, attribute = name.rstrip("/").partition(":")
        place = ROOT / "django_quota" / path
        assert place.is_dir() or place.is_file() or place.with_name(f"{place.name}.py").exists(), name
        assert not attribute or resolve(f"django_quota.{path.replace('/', '.')}.{attribute}"), name


def resolve(name: str) -> object:
    """Import a module, or what it defines. Raises `ImportError` or `AttributeError`."""
    path = name.split(".")
    for end in range(len(path), 0, -1):
        if find_spec_of(path[:end]):
            found: object = import_module(".".join(path[:end]))
            for attribute in path[end:]:
                found = getattr(found, attribute)
            return found
    raise ImportError(name)


def find_spec_of(path: list[str]) -> bool:
    module = ROOT.joinpath(*path)
    return module.with_suffix(".py").exists() or (module / "__init__.py").exists()


@pytest.mark.parametrize("page", [page for page in PAGES if str(page) not in (*TOUR, *INTEGRATIONS)], ids=str)
def test_the_python_that_a_page_shows_runs(page: Path) -> None:
    for text in re.findall(r"```python\n(.*?)```", read(page), re.DOTALL):
        exec(text, {})


def test_the_tests_that_the_guide_shows_pass(client: Client, settings: Any) -> None:
    shown = next(text for _, _, _, text in BLOCKS if text.startswith("def test_the_eleventh"))
    names: dict[str, Any] = {}
    exec(shown, names)
    search = quota(rule="search")(lambda request: HttpResponse())
    settings.ROOT_URLCONF = (urls.path("search/", search),)
    settings.QUOTA = {"RULES": {"search": {"rate": "10/m", "key": "ip"}}}
    with quota_kit() as kit:
        names["test_the_eleventh_search_is_refused"](client, kit)
    with_mixin = next(text for _, _, _, text in BLOCKS if "QuotaTestMixin" in text)
    exec(with_mixin, names)
    case = names["SearchTest"]("test_the_eleventh_search_is_refused")
    result = case.defaultTestResult()
    case(result)
    assert (result.testsRun, result.failures, result.errors) == (1, [], [])


def commands_of(page: Path) -> Iterator[list[str]]:
    """Find the commands of `manage.py` that a page shows."""
    for text in re.findall(r"```console\n(.*?)```", read(page), re.DOTALL):
        for line in re.findall(r"^\$ manage\.py (.*)$", text, re.MULTILINE):
            yield shlex.split(line, comments=True)


@pytest.mark.usefixtures("redis_cache", "database")
@pytest.mark.parametrize(
    ("page", "words"),
    [(page, words) for page in PAGES if str(page) not in TOUR for words in commands_of(page)],
    ids=lambda value: str(value) if isinstance(value, Path) else " ".join(value),
)
def test_every_command_that_a_page_shows_runs(page: Path, words: list[str], settings: Any) -> None:
    settings.SILENCED_SYSTEM_CHECKS = ["django_quota.W012"]  # the tests are more patient than a site
    call_command(*words, stdout=StringIO())
