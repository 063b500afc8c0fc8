"""The pages of the documentation run as shown: settings, views, sessions, commands; links and names lead somewhere."""

import asyncio
import json
import logging
import pkgutil
import re
import shlex
import subprocess
import sys
from ast import literal_eval
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from io import StringIO
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
from django import urls
from django.contrib.auth.models import AnonymousUser, User
from django.core.checks import run_checks
from django.core.management import call_command, load_command_class
from django.dispatch import Signal
from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.test import Client, RequestFactory, override_settings

from django_quota import Rule, check, peek, quota, signals
from django_quota.metrics import unobserve
from django_quota.testing import RedisServer, freeze, quota_kit
from tests.support.pages import ROOT, blocks, marked, read, run_page
from tests.support.stores import caches

PAGES = [
    *(Path(f"{name}.md") for name in ("README", "SECURITY", "CONTRIBUTING")),
    *sorted(path.relative_to(ROOT) for path in (ROOT / "docs").glob("*.md")),
]
OWN = ("channels", "coming_from", "graphql", "logins", "plans", "rest_framework", "testing", "tutorial")
OWN_RUN = {f"docs/{name}.md" for name in OWN}
"""Pages that a test of their own runs, most of them with their packages in tests/contrib."""


FIRST = 1_800_000_000_000_000


def ok(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def visitor(**data: str) -> HttpRequest:
    request = RequestFactory().post("/", data) if data else RequestFactory().get("/")
    request.user = AnonymousUser()
    return request


@pytest.fixture
def shown_rules(redis_cache: Any, settings: Any) -> None:
    """The rules of docs/install.md, on a real Redis."""
    shown = marked("docs/install.md", "settings")["QUOTA"]
    settings.QUOTA = {name: value for name, value in shown.items() if name != "REDIS"}


def run(page: str | Path) -> dict[str, Any]:
    return run_page(page, request=visitor(), quota=quota, HttpResponse=HttpResponse, __name__="shop.views")


@pytest.mark.usefixtures("shown_rules")
@pytest.mark.parametrize("page", [page for page in PAGES if str(page) not in OWN_RUN], ids=str)
def test_every_snippet_of_a_page_prints_what_it_shows(page: Path) -> None:
    names = run(page)

    assert "count_decision" not in names or unobserve(names["count_decision"])


@pytest.fixture(autouse=True)
def receivers() -> Iterator[None]:
    """Disconnect what the pages connect: Django keeps a receiver until the garbage collector comes by."""
    known = {signal: list(signal.receivers) for signal in vars(signals).values() if isinstance(signal, Signal)}
    yield
    for signal, before in known.items():
        signal.receivers = before
        signal.sender_receivers_cache.clear()


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading or a mark."""
    found = re.search(r"(?:^\|.*\n)+", read(page).partition(heading)[2], re.MULTILINE)
    assert found
    return [line.strip("| ").split(" | ") for line in found[0].splitlines()[2:]]


class TestFiguresOfTheReadme:
    """A new run of `make bench` or `make chaos` that fails here: the README promises too much now."""

    @pytest.fixture
    def compared(self) -> list[list[str]]:
        return rows("docs/comparison.md", "### At a glance")

    @pytest.fixture
    def scenes(self) -> list[list[str]]:
        return rows("docs/reliability.md", "<!-- make chaos: begin -->")

    def test_only_others_admit_more_than_the_limit(self, compared: list[list[str]]) -> None:
        admitted = {name.split()[0]: int(cells[7]) for name, *cells in compared}

        assert (admitted["django_quota"], admitted["DRF"] >= 200) == (50, True)

    def test_a_check_takes_less_than_half_of_the_cpu_of_limits(self, compared: list[list[str]]) -> None:
        (_, *ours), (_, *limits), *_ = compared

        assert float(ours[3]) / float(limits[3]) < 0.5

    def test_a_check_takes_about_half_of_the_time_of_limits(self, compared: list[list[str]]) -> None:
        (_, *ours), (_, *limits), *_ = compared

        assert float(ours[4]) / float(limits[4]) < 0.55

    def test_no_scene_of_chaos_raises_an_exception_or_passes_a_limit(self, scenes: list[list[str]]) -> None:
        assert {name: (raised, over) for name, _, raised, over, *_ in scenes if (raised, over) != ("0", "0")} == {}
        assert len(scenes) == 17

    def test_chaos_tries_enough_requests(self, scenes: list[list[str]]) -> None:
        assert sum(int(tried.replace(",", "")) for _, tried, *_ in scenes) >= 120_000

    def test_nobody_waits_long_for_a_redis_that_hangs(self, scenes: list[list[str]]) -> None:
        assert {cells[0]: cells[5] for cells in scenes if cells[0].startswith("Hangs") and int(cells[5]) > 550} == {}


def test_the_shown_settings_install_the_app() -> None:
    assert "django_quota" in marked("docs/install.md", "settings")["INSTALLED_APPS"]


def test_the_shown_settings_install_the_middleware() -> None:
    assert "django_quota.middleware.QuotaMiddleware" in marked("README.md", "settings")["MIDDLEWARE"]


def shown_settings(page: str, *names: str) -> dict[str, Any]:
    shown = marked(page, "settings")
    return {name: shown[name] for name in names}


def rules_of_the_readme() -> dict[str, Any]:
    return dict(marked("README.md", "site")["QUOTA"])


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda: shown_settings("docs/install.md", "QUOTA") | {"CACHES": {}}, id="install"),
        pytest.param(lambda: shown_settings("README.md", "CACHES") | {"QUOTA": rules_of_the_readme()}, id="README"),
        pytest.param(lambda: shown_settings("docs/going_live.md", "QUOTA", "AUTHENTICATION_BACKENDS"), id="going live"),
    ],
)
def test_the_shown_settings_pass_the_checks(read: Callable[[], dict[str, Any]], settings: Any) -> None:
    settings.ROOT_URLCONF = (urls.path("api/", ok),)

    with override_settings(**read()):
        assert run_checks(tags=["django_quota"]) == []


@pytest.mark.usefixtures("memory_store")
def test_the_shown_rules_limit_a_site(settings: Any) -> None:
    settings.ROOT_URLCONF = (urls.path("api/", ok),)
    settings.QUOTA = {**settings.QUOTA, **rules_of_the_readme()}

    assert [Client().get("/api/").status_code for _ in range(11)] == [200] * 10 + [429]


def statuses(view: Any, times: int, **data: str) -> list[int]:
    return [view(visitor(**data)).status_code for _ in range(times)]


@pytest.mark.usefixtures("shown_rules")
class TestViewsOfAPage:
    """A view has the limits that its page says."""

    @pytest.fixture(autouse=True)
    def first(self) -> Iterator[None]:
        with freeze(FIRST):
            yield

    @pytest.fixture
    def views(self, shown_rules: None) -> dict[str, Any]:
        return run("docs/views.md")

    @pytest.fixture
    def costs(self, shown_rules: None) -> dict[str, Any]:
        return run("docs/costs.md")

    @pytest.mark.parametrize("name", ["members", "search", "export"])
    def test_a_view_has_ten_requests(self, views: dict[str, Any], name: str) -> None:
        assert statuses(views[name], 11) == [200] * 10 + [429]

    def test_an_async_view_answers(self, views: dict[str, Any]) -> None:
        assert asyncio.run(views["report"](visitor())).status_code == 200

    def test_a_method_of_a_class_has_a_limit_named_like_the_class(self, views: dict[str, Any]) -> None:
        reply = asyncio.run(views["Orders"].as_view()(visitor(a="b")))

        assert reply.headers["RateLimit"] == '"Orders";r=99;t=3600'

    @pytest.mark.parametrize(("page", "name"), [("views", "lookup"), ("costs", "batch")])
    def test_a_request_costs_as_much_as_it_asks_for(self, page: str, name: str) -> None:
        ids = RequestFactory().get("/?id=1&id=2&id=3")
        ids.user = AnonymousUser()

        reply = run(f"docs/{page}.md")[name](ids)

        assert reply.headers["RateLimit"].startswith(f'"{name}";r=997;')

    def test_codes_are_limited_by_phone_number(self) -> None:
        codes = run("docs/sms_codes.md")

        one, other = statuses(codes["sms_code"], 2, phone="+49 1"), statuses(codes["sms_code"], 1, phone="+49 2")

        assert (one, other) == ([200, 429], [200])

    def test_only_failures_to_sign_in_count(self, costs: dict[str, Any]) -> None:
        assert statuses(costs["sign_in"], 6) == [401] * 5 + [429]

    def test_a_download_costs_its_size(self, costs: dict[str, Any]) -> None:
        assert costs["download"](visitor()).headers["RateLimit"].startswith('"download";r=49999000;')

    def test_a_stream_costs_what_was_sent(self, costs: dict[str, Any]) -> None:
        costs["chat"](visitor()).getvalue()

        assert peek("90000/m", "user:43").remaining == 89_980


@pytest.mark.usefixtures("shown_rules")
def test_a_shadow_rule_logs_the_line_that_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "django_quota"):
        run("docs/testing.md")
    line = caplog.messages[-1].replace("127.0.0.1", "203.0.113.9")
    assert line in read("docs/testing.md")


HOPS = {"X-Forwarded-For": "192.0.2.1, 203.0.113.9, 10.1.2.8"}


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("row", "peer", "headers"),
    [
        pytest.param(0, "10.1.2.9", HOPS, id="first row"),
        pytest.param(1, "198.51.100.1", HOPS, id="second row"),
        pytest.param(2, "10.1.2.9", {"CF-Connecting-IP": "203.0.113.9"}, id="third row"),
    ],
)
def test_the_shown_proxies_name_the_client(row: int, peer: str, headers: dict[str, str], settings: Any) -> None:
    shown, *_ = rows("docs/going_live.md", "## Proxies")[row]
    settings.QUOTA = {**settings.QUOTA, **literal_eval(f"{{{shown.replace('`', '')}}}")}

    request = RequestFactory(headers=headers).get("/", REMOTE_ADDR=peer)

    assert check("10/m", request).outcomes[0].subject == "ip:203.0.113.9"


class TestRulesForAWholeSite:
    INSIDE = "10.1.2.3"

    @pytest.fixture(autouse=True)
    def shown(self, memory_store: None, settings: Any) -> Iterator[None]:
        """The shown rules are the settings of a site, whose clock stands still."""
        settings.QUOTA = {**settings.QUOTA, **marked("docs/views.md", "rules")["QUOTA"]}
        settings.ROOT_URLCONF = "tests.support.urls_of_rules"
        with freeze(FIRST):
            yield

    @pytest.fixture
    def partner(self) -> Client:
        return Client(HTTP_HOST="x.partners.example.com")

    def test_they_pass_the_checks(self) -> None:
        assert run_checks(tags=["django_quota"]) == []

    def test_they_limit_the_site(self, client: Client) -> None:
        assert [client.get("/api/v1/items/").status_code for _ in range(11)] == [200] * 10 + [429]

    @pytest.mark.parametrize(
        ("path", "address"),
        [
            pytest.param("plain/", "127.0.0.1", id="a path that is excluded"),
            pytest.param("docs/old/style.css", "127.0.0.1", id="a pattern that is excluded"),
            pytest.param("v1/items/", INSIDE, id="an address that is exempt"),
        ],
    )
    def test_they_leave_a_request_alone(self, client: Client, path: str, address: str) -> None:
        assert "RateLimit" not in client.get(f"/api/{path}", REMOTE_ADDR=address).headers

    def test_they_count_requests_to_all_hosts_together(self, client: Client, partner: Client) -> None:
        for _ in range(11):
            client.get("/api/v1/items/")

        reply = partner.get("/api/search/?a=1&b=2")

        assert reply.headers["RateLimit"].startswith('"api";r=0')

    def test_a_request_from_inside_has_only_the_limits_of_partners(self, partner: Client) -> None:
        reply = partner.get("/api/search/?a=1&b=2", REMOTE_ADDR=self.INSIDE)

        assert reply.headers["RateLimit"].startswith('"search";r=2;t=1, "partners";r=9999;t=')


def test_a_client_gets_the_refusal_that_is_shown(redis_cache: Any, settings: Any) -> None:
    shown = dict(blocks("docs/responses.md"))["console"]
    head, _, body = shown.partition("\n\n")
    lines = dict(line.split(": ", 1) for line in head.splitlines()[1:])
    view = quota("10/s; 500/h", key="global", name="search", algorithm="fixed_window")(ok)
    answers = []
    for tick in range(500):
        with freeze(FIRST - (3_558 - tick) * 1_000_000):
            answers.append(view(visitor()).status_code)
    assert answers == [200] * 500

    with freeze(FIRST):
        response: Any = view(visitor())

    assert {name: response.headers[name] for name in lines} == lines
    assert json.loads(response.content) == json.loads(body)


@pytest.mark.usefixtures("memory_store")
def test_the_shown_integration_limits_a_view(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"search": {"rate": "2/m", "key": "ip"}}}
    limited = run("docs/architecture.md")["limited"]

    replies = [limited(visitor(), ok) for _ in range(3)]

    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert all(reply.headers["RateLimit"].startswith('"search";r=') for reply in replies)


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("path", "shows"),
    [("/api/", {"error": "slow down"}), ("/page/", {"title": "Too many requests"})],
    ids=["the API", "a page"],
)
def test_the_shown_answer_depends_on_the_path(path: str, shows: dict[str, str], settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RESPONSE": run("docs/responses.md")["refused"]}
    nobody = quota("0/m", name="nobody")(ok)
    settings.ROOT_URLCONF = (urls.path("api/", nobody), urls.path("page/", nobody))

    assert Client().get(path).json().items() >= shows.items()


@pytest.mark.usefixtures("memory_store")
def test_the_shown_client_waits_as_long_as_the_answer_says(settings: Any) -> None:
    settings.ROOT_URLCONF = (urls.path("", quota("2/m", algorithm="fixed_window")(ok)),)
    names = run("docs/responses.md")

    with quota_kit() as kit:
        names["time"] = SimpleNamespace(sleep=Mock(side_effect=kit.advance))
        assert [names["get"](Client(), "/").status_code for _ in range(5)] == [200] * 5

    assert names["time"].sleep.mock_calls == [call(60), call(60)]


@pytest.mark.usefixtures("memory_store")
class TestWaysToShowWhatIsLeft:
    PAGE = "docs/show_limits.md"

    @pytest.fixture(autouse=True)
    def names(self, memory_store: None, settings: Any) -> dict[str, Any]:
        """What the page defines, on a site with one rule."""
        settings.QUOTA = {**settings.QUOTA, "RULES": {"tokens": {"rate": "10000/h", "key": "user"}}}
        names = run(self.PAGE)
        settings.ROOT_URLCONF = tuple(names["urlpatterns"])
        return names

    def test_the_shown_address_answers_with_what_is_shown(self) -> None:
        (limit,) = Client().get("/limits/").json()["limits"]

        (shown,) = json.loads(dict(blocks(self.PAGE))["json"])["limits"]
        assert limit.keys() == shown.keys()

    def test_the_shown_exclude_leaves_that_address_unlimited(self, settings: Any) -> None:
        exclude = re.findall('`"exclude": "(.*?)"`', read(self.PAGE))
        settings.QUOTA = {**settings.QUOTA, "RULES": {"all": {"rate": "1/h", "match": "/limits/", "exclude": exclude}}}

        assert [Client().get("/limits/").json()["limits"][0]["used"] for _ in range(3)] == [0, 0, 0]

    def test_the_shown_view_says_what_is_left(self, names: dict[str, Any]) -> None:
        assert names["search"](visitor()).content == b"99 searches left"

    def test_the_shown_tags_say_what_is_left(self, names: dict[str, Any]) -> None:
        request = visitor()
        names["search"](request)
        written = re.findall("`({% with.*)`", read(self.PAGE))
        pages = [*written, dict(blocks(self.PAGE))["html"]]

        text = [engines["django"].from_string("{% load quota %}" + page).render({}, request) for page in pages]

        assert text[0] == "99"
        assert "10,000 of 10,000 left" in text[1]


@pytest.mark.usefixtures("shown_rules", "database")
def test_the_calls_of_the_reference_bill_more_than_the_limit_that_they_raise(settings: Any) -> None:
    tokens = {"rate": "1000/month", "algorithm": "calendar", "key": "user", "daily": True}
    settings.QUOTA = {**settings.QUOTA, "TIME_ZONE": "UTC", "RULES": {**settings.QUOTA["RULES"], "tokens": tokens}}
    names = run("docs/api.md")

    with freeze(datetime(2026, 10, 5, tzinfo=UTC)):
        assert names["bought"](7)
        assert check("tokens", "org:7", 1_500)
        assert names["invoice"](7) == 1_500


class TestPlans:
    @pytest.fixture(autouse=True)
    def shown(self, memory_store: None, database: Any, settings: Any) -> dict[str, Any]:
        """What the page defines, as the settings of a site."""
        shown = marked("docs/plans.md", "settings")
        settings.QUOTA = {**settings.QUOTA, **shown["QUOTA"]}
        settings.ROOT_URLCONF = "tests.support.urls_of_rules"
        settings.MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}  # of Django 6.1
        return shown | run("docs/plans.md")

    @pytest.fixture
    def ann(self) -> User:
        """A customer with the plan pro."""
        user = User.objects.create(username="ann", email="ann@example.org")
        user.groups.create(name="pro")
        return user

    def test_they_pass_the_checks(self) -> None:
        assert run_checks(tags=["django_quota"]) == []

    def test_a_visitor_has_no_plan(self, shown: dict[str, Any]) -> None:
        assert shown["plan"](visitor()) is None

    def test_a_visitor_has_two_searches(self, client: Client) -> None:
        assert [client.get("/api/search/").status_code for _ in range(3)] == [200, 200, 429]

    def test_a_search_takes_fifty_units_of_a_plan(self, client: Client, ann: User) -> None:
        client.force_login(ann)

        assert client.get("/api/search/").headers["RateLimit"].startswith('"api";r=99950;')

    def test_units_can_be_bought(self, shown: dict[str, Any], ann: User) -> None:
        shown["bought"](ann, 500)

        assert check("api", ann, tier="pro").limit == 100_500

    def test_a_plan_can_be_tried(self, shown: dict[str, Any]) -> None:
        bob = User.objects.create(username="bob")

        shown["trial"](bob)

        assert check("api", bob, tier="pro").limit == 5_000

    @pytest.mark.parametrize(
        ("customer", "until"), [("ann", "28 February"), ("a visitor", "1 March")], ids=["a customer", "a visitor"]
    )
    def test_a_month_ends_on_the_day_of_the_contract(
        self, shown: dict[str, Any], ann: User, customer: str, until: str
    ) -> None:
        User.objects.update(date_joined=datetime(2025, 12, 31, tzinfo=UTC))
        month = Rule.make("month", "10/month", algorithm="calendar", starts=shown["started"])
        subject = f"user:{ann.pk}" if customer == "ann" else "ip:203.0.113.9"

        with freeze(datetime(2027, 2, 10, tzinfo=UTC)):
            assert check(month, subject, 6)
            assert until in check(month, subject, 6).explain()

    def test_a_customer_gets_a_mail_when_a_plan_is_nearly_used(self, mailoutbox: list[Any]) -> None:
        cid = User.objects.create(username="cid", email="cid@example.org")

        for cost in (700, 100, 100, 100):
            check("api", cid, cost, tier="authenticated")

        assert [(mail.to, mail.subject, mail.body) for mail in mailoutbox] == [
            (["cid@example.org"], "80% of your plan are used", "200 units are left."),
            (["cid@example.org"], "100% of your plan are used", "0 units are left."),
        ]


def commands(page: Path) -> Iterator[list[str]]:
    """Find the commands of `manage.py` that a page shows."""
    shown = "\n".join(text for language, text in blocks(page) if language == "console")
    for line in re.findall(r"^\$ manage\.py (.*)$", shown, re.MULTILINE):
        yield shlex.split(line, comments=True)


@pytest.mark.usefixtures("shown_rules", "database")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if str(page) != "docs/testing.md" and [*commands(page)]], ids=str
)
def test_every_command_that_a_page_shows_runs(
    page: Path, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    User.objects.create(pk=42, username="ann")
    for name in ("crawlers.txt", "cloud.txt"):
        (tmp_path / name).write_text("198.51.100.0/24\n")
    monkeypatch.chdir(tmp_path)
    settings.SILENCED_SYSTEM_CHECKS = ["django_quota.W012"]  # the tests are more patient than a site
    if page.name == "plans.md":
        settings.QUOTA = {**settings.QUOTA, **marked(page, "settings")["QUOTA"]}

    for name, *arguments in commands(page):
        if "--follow" in arguments:  # it goes on for ever: it is read, and not begun
            own = list(takewhile(lambda word: word != "|", arguments))
            load_command_class("django_quota", name).create_parser("manage.py", name).parse_args(own)
        else:
            call_command(name, *arguments, stdout=StringIO())


@pytest.mark.usefixtures("shown_rules")
@pytest.mark.django_db
def test_quota_status_prints_what_is_shown() -> None:
    shown = dict(reversed(blocks("docs/admin.md")))["console"]
    ends = (FIRST // 36_000_000 + 1) * 36_000_000 - 1 + 3_600_000_000  # of the slice that the first hit falls into
    allowed = []
    for second in range(50):
        with freeze(FIRST + second * 1_000_000):
            allowed.append(check("search", "user:42", 10).allowed)
    assert allowed == [True] * 50

    out = StringIO()
    with freeze(ends - 42_000_000):
        call_command("quota_status", "user:42", "--rule", "search", stdout=out)

    printed = out.getvalue().splitlines()
    assert shown.splitlines()[1:] == printed[: len(shown.splitlines()) - 1]


@pytest.mark.usefixtures("redis_cache")
def test_the_shown_views_answer_503_without_redis(raw: Any, settings: Any) -> None:
    views = run("docs/going_live.md") | run("docs/reliability.md")

    def answer(name: str) -> int:
        return int(views[name](visitor()).status_code)

    assert answer("limits_hold") == 200
    raw.replicaof("127.0.0.1", 1)
    try:
        assert not peek("1000/m", "global", name="limits-hold").degraded
        assert answer("limits_hold") == 503
    finally:
        raw.replicaof("NO", "ONE")
    settings.CACHES = caches(RedisServer("redis://127.0.0.1:1/0", 0, Path()))
    assert (answer("limits_hold"), answer("buy")) == (503, 503)


MAILING = """
import json, sys, django
from django.conf import settings
from django.core import mail
from django.http import HttpResponse
from django.test import Client
from django.urls import path
from django_quota import quota
from django_quota.exceptions import StoreUnavailable

settings.configure(
    SECRET_KEY="secret", ALLOWED_HOSTS=["testserver"], ROOT_URLCONF="__main__", ADMINS=[("Ann", "ann@example.org")],
    EMAIL_BACKEND="django.core.mail.backends.locmem.EmailBackend", LOGGING=json.loads(sys.argv[1]),
    MIDDLEWARE=["django_quota.middleware.QuotaMiddleware"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}},
)
django.setup()
mail.outbox = []

@quota("5/d", on_unavailable="deny")
def sms(request):
    return HttpResponse("sent")

def stock(request):
    raise StoreUnavailable("gone")

def broken(request):
    raise ValueError("a defect")

urlpatterns = [path("sms", sms), path("stock", stock), path("broken", broken)]
client = Client(raise_request_exception=False)
print([client.get(f"/{name}").status_code for name in ("sms", "sms", "stock", "sms", "stock", "broken")])
print(*(message.subject for message in mail.outbox), sep="\\n")
"""


def test_with_the_shown_logging_an_outage_is_mailed_once() -> None:
    shown = json.dumps(marked("docs/going_live.md", "logging")["LOGGING"])
    done = subprocess.run([sys.executable, "-c", MAILING, shown], capture_output=True, text=True, check=True)
    answers, outage, defect = done.stdout.splitlines()
    assert answers == "[503, 503, 503, 503, 503, 500]"
    assert "The quota store is unavailable" in outage
    assert defect.endswith("Internal Server Error: /broken")
    assert "Service Unavailable" not in done.stderr
    assert done.stderr.count("The quota store is unavailable") == 1


FOLDERS = "|".join(path.parent.name for path in ROOT.glob("django_quota/*/__init__.py"))


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=str)


@EACH_PAGE
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    def leads(target: str, anchor: str) -> bool:
        path = ROOT / page.parent / target if target else ROOT / page
        return path.exists() and (not anchor or anchor in anchors(path.read_text()))

    links = re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]+))?\)", read(page))

    assert [link for link in links if not leads(*link)] == []


@EACH_PAGE
def test_every_path_on_a_page_exists(page: Path) -> None:
    paths = re.findall(r"`((?:django_quota|tests|example_project|docs)/[\w./*-]*)`", read(page))

    assert [path for path in paths if not [*ROOT.glob(path.rstrip("/"))]] == []


def exists(name: str) -> bool:
    """Whether a dotted name, or a name of a module with a colon, is one of Python's."""
    try:
        return bool(pkgutil.resolve_name(name))
    except (ImportError, AttributeError):
        return False


@EACH_PAGE
def test_every_dotted_name_on_a_page_exists(page: Path) -> None:
    names = re.findall(r"`(django_quota(?:\.\w+)+)`", read(page))

    assert [name for name in names if not exists(name)] == []


@EACH_PAGE
def test_every_module_on_a_page_exists(page: Path) -> None:
    def leads(module: str, attribute: str) -> bool:
        found = ROOT / "django_quota" / module.rstrip("/")
        if not found.exists() and not found.with_name(f"{found.name}.py").exists():
            return False
        return not attribute or exists(f"django_quota.{module.replace('/', '.')}:{attribute}")

    modules = re.findall(rf"`((?:{FOLDERS})/[\w./]*)(?::(\w+))?`", read(page))

    assert [module for module in modules if not leads(*module)] == []


def test_every_module_in_the_picture_of_the_layers_exists() -> None:
    picture = read(Path("docs/pictures/architecture.svg"))

    shown = re.findall(r">(\w+/\w+)</text>", picture)

    missing = [
        name for name in shown if not [*ROOT.glob(f"django_quota/{name}"), *ROOT.glob(f"django_quota/{name}.py")]
    ]
    assert shown
    assert missing == []


@pytest.fixture
def shown_tests(memory_store: None, database: Any, settings: Any) -> dict[str, Any]:
    """The tests of docs/testing.md, on the site that they are about."""
    names = run_page("docs/testing.md", request=visitor(), __name__="shop.views")
    settings.ROOT_URLCONF = (urls.path("search/", quota(rule="search")(ok)),)
    settings.QUOTA = {"RULES": {"search": {"rate": "10/m", "key": "ip"}}}
    return names


def test_the_shown_tests_of_pytest_pass(shown_tests: dict[str, Any], client: Client, settings: Any) -> None:
    with quota_kit() as kit:
        shown_tests["test_the_eleventh_search_is_refused"](client, kit)
        shown_tests["test_a_blocked_address_gets_no_search"]()
    with quota_kit() as kit:
        shown_tests["test_a_minute_later"](kit)
        shown_tests["test_a_lower_limit"](kit, settings)


def test_the_shown_test_of_django_passes(shown_tests: dict[str, Any]) -> None:
    case = shown_tests["SearchTest"]("test_the_eleventh_search_is_refused")
    result = case.defaultTestResult()

    case(result)

    assert (result.testsRun, result.failures, result.errors) == (1, [], [])
