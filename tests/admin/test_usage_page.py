"""The usage page: it counts each check once, and works for any subject; the page of a user links to it."""

import csv
import io
from datetime import UTC, date, datetime
from html import unescape
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
import redis
from django.contrib.admin import AdminSite, ModelAdmin
from django.contrib.admin import site as default_site
from django.contrib.auth.models import User
from django.db import connection
from django.http import QueryDict
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path

from django_quota import check
from django_quota.admin.usage_page import UsageQuery
from django_quota.admin.users import UsageLinks
from django_quota.core.keys import field
from django_quota.features.usage.days import row_name, row_part
from django_quota.models import DailyCounter
from django_quota.subjects.subject import named_subject
from django_quota.testing import freeze
from tests.admin.operators import operator, superuser
from tests.support.days import count

USAGE = "/admin/django_quota/dailycounter/usage/"
NOON = int(datetime(2026, 3, 14, 12, tzinfo=UTC).timestamp()) * 1_000_000
TODAY = date(2026, 3, 14)

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture(autouse=True)
def utc(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "TIME_ZONE": "UTC"}


@pytest.fixture
def admin(database: Any) -> Client:
    return superuser("admin")


def row(subject: str, day: date = TODAY, allowed: int = 5, refused: int = 0, rule: str = "search") -> DailyCounter:
    return DailyCounter.objects.create(
        subject=subject, rule=rule, day=day, allowed=allowed, refused=refused, units=allowed
    )


def page(client: Client, **asked: str | int) -> Any:
    with freeze(NOON):
        return client.get(USAGE, asked)


def of_day(client: Client, subject: str, day: date, rule: str = "") -> tuple[int, ...]:
    """Return the allowed and refused checks of a day and their units, as the CSV file has them."""
    asked: Any = {"subject": subject, "rule": rule, "year": day.year}
    reply: Any = client.get(f"{USAGE}csv/", asked)
    lines = csv.DictReader(io.StringIO(b"".join(reply).decode(), newline=""))
    found = [tuple(map(int, list(line.values())[3:])) for line in lines if line["day"] == str(day)]
    return found[0] if found else (0, 0, 0)


@pytest.mark.usefixtures("redis_cache")
def test_what_redis_has_is_moved_once_by_one_call_and_few_queries(raw: redis.Redis, admin: Client) -> None:
    today = datetime.fromtimestamp(raw.time()[0], UTC).date()
    count(raw, "user:1", {"search": (3, 1), "login": (2, 0)}, today)
    count(raw, "user:2", {"search": (50, 0)}, today)
    assert of_day(admin, "user:1", today) == (5, 1, 5)
    count(raw, "user:1", {"search": (4, 0, 90), "api": (0, 7)}, today)
    assert of_day(admin, "user:1", today) == (9, 8, 99)
    assert of_day(admin, "user:1", today, "search") == (7, 1, 97)
    raw.config_resetstat()
    with CaptureQueriesContext(connection) as queries:
        assert admin.get(USAGE, {"subject": "user:1", "year": "2020"}).status_code == 200
    calls = {name: stats["calls"] for name, stats in raw.info("commandstats").items()}
    assert calls["cmdstat_evalsha"] == 1
    assert not {"cmdstat_scan", "cmdstat_keys", "cmdstat_hscan"} & set(calls)
    assert len(queries) <= 6
    raw.flushall()
    count(raw, "user:1", {"search": (2, 0)}, today)
    assert of_day(admin, "user:1", today) == (11, 8, 101)


@pytest.mark.usefixtures("memory_store")
def test_what_the_memory_store_has_is_moved_too(admin: Client) -> None:
    with freeze(NOON):
        for _ in range(3):
            check("2/h", "user:77", name="few", daily=True)
        reply = page(admin, subject="user:77")
        assert of_day(admin, "user:77", TODAY) == (2, 1, 2)
    assert dict(reply.context["totals"])["Today"] == (2, 1, 2)


def test_rows_are_shown_where_redis_does_not_answer(admin: Client, settings: Any) -> None:
    settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}}
    row("user:1", allowed=1234)
    reply = page(admin, subject="user:1")
    assert "The store does not answer" in reply.content.decode()
    assert "1,234" in reply.content.decode()


def charts(html: str) -> list[ElementTree.Element]:
    return [
        ElementTree.fromstring(f"<svg{part.partition('</svg>')[0]}</svg>")
        for part in html.split("<svg")[1:]
        if 'role="img" width' in part[:200]
    ]


@pytest.mark.usefixtures("memory_store")
class TestPage:
    """In a process without Redis."""

    def test_totals_are_of_the_year_the_month_and_the_day(self, admin: Client) -> None:
        for day, allowed in ((TODAY, 1), (date(2026, 3, 1), 20), (date(2026, 1, 1), 300), (date(2024, 12, 31), 4000)):
            row("user:1", day, allowed, refused=2)

        def totals(year: Any) -> dict[str, int]:
            reply = page(admin, subject="user:1", year=year)
            assert list(reply.context["years"]) == [2024, 2025, 2026]
            return {title: counts.allowed for title, counts in reply.context["totals"]}

        now = {"This year": 321, "This month": 21, "Today": 1}
        assert totals(2024) == {"2024": 4000, **now}
        assert [totals(year) for year in ("0", "99999", "٢٠٢٦")] == [now] * 3

    def test_the_heat_map_the_bars_and_the_table_agree(self, admin: Client) -> None:
        row("user:1", TODAY, 7, 3)
        row("user:1", date(2026, 3, 1), 5, 0, "login")
        row("user:1", date(2025, 3, 1), 90)
        html = page(admin, subject="user:1").content.decode()
        heat, bars = charts(html)
        assert "15 checks on 2 days, 3 of them refused. The busiest day: March 14, 2026: 7 allowed, 3 refused." in {
            element.text for element in heat.iter()
        }
        for chart in (heat, bars):
            assert any((element.text or "").startswith("March 14, 2026: 7 allowed") for element in chart.iter())
        assert '<th scope="row">March 14, 2026</th><td>7</td><td>3</td><td>7</td>' in html
        assert 'name="find" value=""' in html

    @pytest.mark.parametrize(("days", "year", "expected"), [("90", "", 90), ("x", "", 30), ("year", "2024", 366)])
    def test_bars_cover_the_chosen_period(self, admin: Client, days: str, year: str, expected: int) -> None:
        for day in (TODAY, date(2024, 5, 1)):
            row("user:1", day)
        _, bars = charts(page(admin, subject="user:1", days=days, year=year).content.decode())
        assert sum(element.get("class") == "column" for element in bars.iter()) == expected

    def test_a_period_without_checks_has_no_chart(self, admin: Client) -> None:
        row("user:1", date(2026, 1, 5))

        html = page(admin, subject="user:1", days="30").content.decode()

        assert len(charts(html)) == 1
        assert "No checks on these days." in html

    def test_a_year_without_checks_has_no_chart(self, admin: Client) -> None:
        row("user:1", TODAY)

        html = page(admin, subject="user:1", year="2024", days="year").content.decode()

        assert charts(html) == []
        assert "No checks in this year." in html

    def test_one_rule_can_be_chosen(self, admin: Client) -> None:
        row("user:1", rule="a", allowed=7)
        row("user:1", rule="b", allowed=9)
        reply = page(admin, subject="user:1", rule="a")
        assert dict(reply.context["totals"])["Today"].allowed == 7
        assert [rule for rule, _ in reply.context["rules"]] == ["b", "a"]
        assert 'href="?subject=user%3A1&amp;rule=b"' in reply.content.decode()
        assert 'href="?subject=user%3A1" aria-current="true">a<' in reply.content.decode()

    def test_names_and_links_need_their_permissions_and_digests_are_cut(self, admin: Client) -> None:
        anna, looks = User.objects.create_user("anna"), operator("view_dailycounter")
        for client, shown in ((admin, True), (looks, False)):
            html = page(client, subject=f"user:{anna.pk}").content.decode()
            assert ("/subject/?subject=" in html) is ("anna" in html) is shown
        assert looks.post(USAGE, {"find": "anna"})["Location"] == f"{USAGE}?subject=anna"
        subject = f"post.phone:{'0123456789abcdef' * 2}"
        html = page(admin, subject=subject).content.decode()
        assert f"<strong>post.phone:012345…</strong> <code>{subject}</code>" in html

    def test_whoever_one_can_type_is_found_and_a_plain_value_is_not_in_the_url(self, admin: Client) -> None:
        anna = User.objects.create_user("anna", "anna@example.org")
        assert admin.post(USAGE, {"find": "anna@example.org"})["Location"] == f"{USAGE}?subject=user%3A{anna.pk}"
        assert "5551234" not in admin.post(USAGE, {"find": "post:phone=+15551234"})["Location"]
        assert "errornote" in admin.post(USAGE, {"find": "ip:nonsense"}).content.decode()
        assert "errornote" in admin.get(USAGE, {"subject": "ip:nonsense"}).content.decode()
        reply = admin.post(USAGE, {"find": "nobody"}, follow=True)
        says = "There are no checks yet. Nobody's name or e-mail begins with 'nobody'. No request has the subject"
        assert says in unescape(reply.content.decode())

    @pytest.mark.parametrize("subject", ["line\r\nX-Injected: yes\0", "x" * 10_000, "\ud800", "~a% & = ?"])
    def test_any_subject_has_a_page_and_a_file(self, admin: Client, subject: str) -> None:
        name, held = row_name(row_part(named_subject(subject))), row_name(row_part(subject, field))
        row(name, rule=held)
        query = urlencode({"subject": subject, "rule": subject}, errors="surrogatepass")
        with freeze(NOON):
            for asked in (query, urlencode({"subject": name, "rule": held})):
                shown = admin.get(f"{USAGE}?{asked}")
                assert shown.status_code == 200
                reply: Any = admin.get(f"{USAGE}csv/?{asked}")
                assert reply["Content-Disposition"].isascii()
                assert "Injected:" not in reply["Content-Disposition"]
                lines = list(csv.reader(io.StringIO(b"".join(reply).decode(), newline="")))
        assert len(charts(shown.content.decode())) == 2
        assert lines[1][2:] == ["2026-03-14", "5", "0", "5"]

    def test_the_csv_file_has_the_days_of_the_year(self, admin: Client) -> None:
        row("user:1", date(2025, 5, 1), 8, 2)
        row("user:1", TODAY, 1, 1)
        with freeze(NOON):
            reply = admin.get(f"{USAGE}csv/", {"subject": "user:1", "year": "2025"})
        assert reply["Content-Disposition"] == 'attachment; filename="usage-user-1-2025.csv"'
        header, row_of_may = csv.reader(b"".join(reply).decode().splitlines())
        assert header == ["subject", "rule", "day", "allowed", "refused", "units"]
        assert row_of_may == ["user:1", "*", "2025-05-01", "8", "2", "8"]
        assert admin.get(f"{USAGE}csv/")["Location"] == USAGE


LIMITS_OF_USER = "/admin/django_quota/subject/?subject=user%3A"
USAGE_OF_USER = f"{USAGE}?subject=user%3A"


class Member(User):
    """A user model that the templates for Django's own do not reach."""

    class Meta:
        proxy = True
        app_label = "auth"


class Members(UsageLinks, ModelAdmin):  # type: ignore[type-arg]  # Django's own takes none
    """Its admin, as a project would write it."""


site = AdminSite()
site._registry.update(default_site._registry)
site.register(Member, Members)
urlpatterns = [path("admin/", site.urls)]


@pytest.mark.usefixtures("memory_store")
def test_the_page_of_a_user_links_to_limits_and_usage_for_those_who_may_see_them() -> None:
    ann = User.objects.create_user("ann")

    def links(asker: Any) -> list[bool]:
        answer = asker.get(f"/admin/auth/user/{ann.pk}/change/")
        assert answer.status_code == 200
        return [f'href="{url}{ann.pk}"' in answer.content.decode() for url in (LIMITS_OF_USER, USAGE_OF_USER)]

    assert links(superuser()) == [True, True]
    assert links(operator("auth.view_user", "view_subject")) == [True, False]
    assert links(operator("auth.view_user", name="other")) == [False, False]


@pytest.mark.usefixtures("memory_store")
def test_a_mixin_adds_the_links_to_a_custom_user_model(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    client, ann = superuser(), User.objects.create_user("ann")
    shown = client.get(f"/admin/auth/member/{ann.pk}/change/").content.decode()
    assert f'href="{LIMITS_OF_USER}{ann.pk}"' in shown
    assert f'href="{USAGE_OF_USER}{ann.pk}"' in shown
    assert client.get("/admin/auth/member/add/").status_code == 200


@pytest.mark.usefixtures("memory_store")
def test_the_year_that_is_shown_first_is_that_of_the_sites_time_zone(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "TIME_ZONE": "Asia/Tokyo"}
    with freeze(datetime(2026, 12, 31, 16, tzinfo=UTC)):
        assert UsageQuery.of(QueryDict("subject=user:42")).year == 2027
