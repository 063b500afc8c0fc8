"""The reference lists what the code has, no more and no less, with the defaults that the code has."""

import ast
import re
from collections import Counter
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.conf import settings
from django.http import HttpResponse
from django.test import RequestFactory

import django_quota
from django_quota import adapters, metrics, quota, testing, types
from django_quota.admin.overrides import MAX_PREVIEWED
from django_quota.conf import KNOWN_SETTINGS, QuotaSettings
from django_quota.contrib.graphql import MAX_TOKENS
from django_quota.core.algorithms import ALGORITHMS
from django_quota.core.algorithms.stock import MAX_GRANTS
from django_quota.core.decisions import Decision, Outcome
from django_quota.core.rules import OPTIONS, CallOptions, Rule, RuleOptions
from django_quota.features.counters.calls import MAX_DAYS
from django_quota.features.events import SEARCHED
from django_quota.http.refusal_page import LimitShown, page_context
from django_quota.limiting.overrides import MAX_OVERRIDES
from django_quota.limiting.prefetch import MIN_DEMAND
from django_quota.limiting.unasked import MAX_PLACES
from django_quota.stores.breaker import FAILURES, RESET_TIMEOUT
from django_quota.stores.redis.async_wire import MOST_UNDER_WAY, MOST_WAITING
from django_quota.stores.redis.connections import CHECK_AFTER_IDLE, CONNECTION_TIMEOUT, REDIS_CONNECTIONS
from django_quota.stores.redis.settings import ANSWER_TIMEOUT, PLAIN_TIMEOUT
from tests.benchmarks import algorithms
from tests.support import reference

DOCS = reference.DOCS
PACKAGE = Path(django_quota.__file__).parent


def read(page: str) -> str:
    return (DOCS / f"{page}.md").read_text()


def rows(page: str, heading: str) -> dict[str, list[str]]:
    """Return the rows of the table below this head, by what the first column has in code or as it is."""
    table = re.search(rf"^{re.escape(heading)}.*\n\|[-:|]+\|\n((?:\|.*\n)+)", read(page), re.MULTILINE)
    assert table, heading
    cells = [re.split(r"(?<!\\) ?\| ?", row.strip())[1:-1] for row in table[1].splitlines()]
    return {row[0].strip("`"): row[1:] for row in cells}


@pytest.mark.parametrize("page", reference.PAGES, ids=lambda path: path.name)
def test_what_a_page_takes_from_the_code_is_up_to_date(page: Path) -> None:
    text = page.read_text()
    assert text == reference.updated(text), "Run python -m tests.support.reference"


def described() -> list[str]:
    return [name for page in ("api", "architecture") for name in reference.names_in(read(page))]


def test_no_public_name_is_described_twice() -> None:
    assert [name for name, times in Counter(described()).items() if times > 1] == []


@pytest.mark.parametrize(
    "module", [django_quota, adapters, metrics, testing, types], ids=lambda module: module.__name__
)
def test_every_public_name_is_described(module: ModuleType) -> None:
    names = described()
    under_async = [re.sub(r"(\w+)$", r"a\1", name) for name in names]
    owners = [name.rpartition(".")[0] for name in names]

    public = {f"{module.__name__}.{name}" for name in module.__all__}

    assert public.difference(names, under_async, owners) == set()


@pytest.mark.parametrize(
    ("described", "end", "left_out"),
    [
        pytest.param(Decision, "### Outcome\n", {"of", "without_limit", "approximately_allowed"}, id="of a decision"),
        pytest.param(Outcome, "## Reservations\n", {*dir(tuple)}, id="of an outcome"),
    ],
)
def test_every_public_attribute_is_described(described: type, end: str, left_out: set[str]) -> None:
    public = {name for name in dir(described) if not name.startswith("_")} - left_out

    text = read("api").partition(f"### {described.__name__}\n")[2].partition(end)[0]

    assert {name for name in public if f"`{name}`" not in text and f"`{name}(" not in text} == set()


def test_every_setting_is_listed() -> None:
    assert sorted(rows("settings", "| setting |")) == sorted(KNOWN_SETTINGS)


@pytest.mark.parametrize("name", KNOWN_SETTINGS)
def test_a_setting_is_listed_with_its_default(name: str) -> None:
    _, default, _ = rows("settings", "| setting |")[name]
    literal = default.partition("` of Django")[0].strip("`")

    given = getattr(settings, literal) if literal.isupper() else ast.literal_eval(literal)

    unset, explicit = QuotaSettings({}), QuotaSettings({name: given})
    assert getattr(explicit, name.lower()) == getattr(unset, name.lower())


@pytest.mark.parametrize(
    ("page", "sentence", "number"),
    [
        ("admin", "the last {} events", SEARCHED),
        ("admin", "for up to {} subjects", MAX_PREVIEWED),
        ("api", "for at most {} days", MAX_DAYS),
        ("counters", "may have {} grants", MAX_GRANTS),
        ("graphql", "more than {} tokens", MAX_TOKENS),
        ("hot_limits", "fewer than {} units", MIN_DEMAND),
        ("monitoring", "look at {} events at a time", SEARCHED),
        ("reliability", "A process uses {} connections", REDIS_CONNECTIONS),
        ("reliability", "if {} others wait for a reply", MOST_UNDER_WAY),
        ("reliability", "if {} wait for a turn", MOST_WAITING),
        ("reliability", "keeps at most {} rules and subjects", MAX_PLACES),
        ("settings", "more than {} overrides hold", MAX_OVERRIDES),
    ],
    ids=str,
)
def test_a_bound_on_a_page_is_the_one_of_the_code(page: str, sentence: str, number: int) -> None:
    assert sentence.format(f"{number:,}") in " ".join(read(page).split())


@pytest.mark.parametrize(
    ("page", "sentence", "promised", "found"),
    [
        ("redis", "limits wait 0.25 seconds and the admin two", (0.25, 2.0), (ANSWER_TIMEOUT, PLAIN_TIMEOUT)),
        ("reliability", "Who has waited for a second", 1.0, CONNECTION_TIMEOUT),
        ("reliability", "After three failures, one request a second", (3, 1.0), (FAILURES, RESET_TIMEOUT)),
        ("reliability", "one that idled for a second costs no decision", 1.0, CHECK_AFTER_IDLE),
    ],
    ids=str,
)
def test_a_time_on_a_page_is_the_one_of_the_code(page: str, sentence: str, promised: object, found: object) -> None:
    assert sentence in " ".join(read(page).split())
    assert found == promised


def test_every_option_of_a_rule_is_listed() -> None:
    listed = set(rows("rules", "| option |"))

    assert listed == {*OPTIONS, "name"}
    assert listed >= {*RuleOptions.__annotations__, *CallOptions.__annotations__}


@pytest.mark.parametrize(
    "option",
    [option for option in fields(Rule) if option.name in OPTIONS],
    ids=lambda option: option.name,
)
def test_an_option_of_a_rule_is_listed_with_its_default(option: Any) -> None:
    _, default, *_ = rows("rules", "| option |")[option.name]

    assert ast.literal_eval(default.strip("`")) == option.default


def test_every_command_has_a_section() -> None:
    sections = re.findall(r"^## (quota_\w+)$", read("commands"), re.MULTILINE)

    assert set(sections) == set(reference.commands())


def test_every_section_of_a_command_lists_its_options() -> None:
    page = read("commands")

    assert re.findall(r"^## (quota_\w+)$", page, re.MULTILINE) == re.findall(r"<!-- command (\w+) -->", page)


def test_every_option_of_all_commands_is_described() -> None:
    page = read("commands")

    assert [name for name in reference.SHARED if name.startswith("--") and f"* `{name}`: " not in page] == []


def test_every_check_is_listed() -> None:
    source = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    registered = set(re.findall(r"""["'.]([EW]\d{3})["']""", source))
    assert list(rows("settings", "| id |")) == sorted(registered)


def test_every_header_of_a_refusal_is_listed(memory_store: None, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "LEGACY_HEADERS": True}
    limited: Any = quota("0/m", "1/h", key="ip")(lambda request: HttpResponse())

    response = limited(RequestFactory().get("/"))

    sent, listed = set(response.headers) - {"Content-Type"}, set(rows("responses", "| header |"))
    assert response.status_code == 429
    assert sent == listed - {"Retry-After"}  # waiting does not help here


def test_every_variable_of_the_refusal_page_is_listed(memory_store: None) -> None:
    request = RequestFactory().get("/")

    context = page_context(request, Decision.without_limit(allowed=False, degraded=True, enforced=True), 503)

    variables = rows("responses", "| variable |")
    assert set("`, `".join(variables).split("`, `")) == set(context)
    assert [name for name in LimitShown.__annotations__ if f"`{name}`" not in variables["limits"][0]] == []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_picture_of_an_algorithm_shows_what_the_code_admits(algorithm: str) -> None:
    path = algorithms.path_of(algorithm)
    assert path.read_text() == algorithms.picture(algorithm), "Run python -m tests.benchmarks.algorithms"
    assert f"![{algorithms.title(algorithm)}](pictures/{path.name})" in read("rules")
