"""The usage page: it counts each check once, and works for any subject; the page of a user links to it."""

import csv
import io
import re
from datetime import UTC, date, datetime, timedelta
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
from django.template.loader import render_to_string
from django.test import Client, RequestFactory
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


@pytest.fixture
def today(raw: redis.Redis, redis_cache: Any) -> date:
    """The day of Redis, on which two users are counted there."""
    day = datetime.fromtimestamp(raw.time()[0], UTC).date()
    count(raw, "user:1", {"search": (3, 1), "login": (2, 0)}, day)
    count(raw, "user:2", {"search": (50, 0)}, day)
    return day


def test_what_redis_counts_is_added_to_what_was_moved(raw: redis.Redis, admin: Client, today: date) -> None:
    assert of_day(admin, "user:1", today) == (5, 1, 5)

    count(raw, "user:1", {"search": (4, 0, 90), "api": (0, 7)}, today)

    assert of_day(admin, "user:1", today) == (9, 8, 99)
    assert of_day(admin, "user:1", today, "search") == (7, 1, 97)


def test_what_was_moved_stays_after_redis_is_emptied(raw: redis.Redis, admin: Client, today: date) -> None:
    assert of_day(admin, "user:1", today) == (5, 1, 5)
    raw.flushall()

    count(raw, "user:1", {"search": (2, 0)}, today)

    assert of_day(admin, "user:1", today) == (7, 1, 7)


def test_after_the_counts_were_moved_a_page_asks_redis_once(raw: redis.Redis, admin: Client, today: date) -> None:
    of_day(admin, "user:1", today)
    raw.config_resetstat()

    with CaptureQueriesContext(connection) as queries:
        answer = admin.get(USAGE, {"subject": "user:1", "year": "2020"})

    calls = {name: stats["calls"] for name, stats in raw.info("commandstats").items()}
    assert answer.status_code == 200
    assert calls["cmdstat_evalsha"] == 1
    assert not {"cmdstat_scan", "cmdstat_keys", "cmdstat_hscan"} & set(calls)
    assert len(queries) <= 6


@pytest.mark.usefixtures("memory_store")
def test_what_the_memory_store_has_is_moved_too(admin: Client) -> None:
    with freeze(NOON):
        for _ in range(3):
            check("2/h", "user:77", name="few", daily=True)

        reply = page(admin, subject="user:77")
        found = of_day(admin, "user:77", TODAY)

    assert found == (2, 1, 2)
    assert dict(reply.context["totals"])["Today"] == (2, 1, 2)


@pytest.mark.usefixtures("database")
def test_what_a_rule_counts_in_the_database_is_moved_beside_what_the_store_has(
    admin: Client, settings: Any, states_on_sqlite: str
) -> None:
    rules = {"kept": {"rate": "9/d", "store": "database", "daily": True}}
    settings.QUOTA = {**settings.QUOTA, "STORE": "memory", "DATABASE": states_on_sqlite, "RULES": rules}
    with freeze(NOON):
        check("kept", "user:77")
        check("9/h", "user:77", 2, name="few", daily=True)

        found = [of_day(admin, "user:77", TODAY, rule) for rule in ("kept", "few", "")]

    assert found == [(1, 0, 1), (1, 0, 2), (2, 0, 3)]


NO_REDIS = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}}


def test_rows_are_shown_where_redis_does_not_answer(admin: Client, settings: Any) -> None:
    settings.CACHES = NO_REDIS
    row("user:1", allowed=1234)
    reply = page(admin, subject="user:1")
    assert "The store does not answer" in reply.content.decode()
    assert "1,234" in reply.content.decode()


def test_rows_are_shown_where_the_settings_name_no_store_that_there_can_be(admin: Client, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "REDIS": "nowhere"}
    row("user:1", allowed=1234)

    html = page(admin, subject="user:1").content.decode()

    assert "The store does not answer" in html
    assert "1,234" in html


@pytest.mark.parametrize("answers", [True, False], ids=["it answers", "it does not answer"])
def test_only_a_store_that_answers_can_say_that_there_are_no_checks(
    answers: bool, admin: Client, settings: Any, redis_cache: Any
) -> None:
    if not answers:
        settings.CACHES = NO_REDIS

    html = page(admin, subject="user:1").content.decode()

    assert ("There are no checks yet." in html, "The store does not answer." in html) == (answers, not answers)


def charts(html: str) -> list[ElementTree.Element]:
    return [
        ElementTree.fromstring(f"<svg{part.partition('</svg>')[0]}</svg>")
        for part in html.split("<svg")[1:]
        if 'role="img" width' in part[:200]
    ]


@pytest.mark.usefixtures("memory_store")
class TestPage:
    """In a process without Redis."""

    @pytest.fixture
    def four_days(self, database: Any) -> None:
        for day, allowed in ((TODAY, 1), (date(2026, 3, 1), 20), (date(2026, 1, 1), 300), (date(2024, 12, 31), 4000)):
            row("user:1", day, allowed, refused=2)

    @pytest.mark.usefixtures("four_days")
    @pytest.mark.parametrize(
        ("year", "more"),
        [
            pytest.param("2024", {"2024": 4000}, id="another year"),
            pytest.param("2028", {"2028": 0}, id="a year to come"),
            *(pytest.param(each, {}, id=f"no year: {each}") for each in ("0", "99999", "٢٠٢٦")),
        ],
    )
    def test_totals_are_of_each_period_up_to_today(self, admin: Client, year: str, more: dict[str, int]) -> None:
        reply = page(admin, subject="user:1", year=year)

        totals = {title: counts.allowed for title, counts in reply.context["totals"]}
        assert totals == {"This year": 321, "This month": 21, "Today": 1, **more}

    @pytest.mark.usefixtures("four_days")
    @pytest.mark.parametrize("year", ["2024", "99999"])
    def test_years_to_choose_go_from_the_first_row_to_today(self, admin: Client, year: str) -> None:
        assert list(page(admin, subject="user:1", year=year).context["years"]) == [2024, 2025, 2026]

    def test_years_to_choose_are_the_last_twelve(self, admin: Client) -> None:
        row("user:1", date(2000, 1, 1))

        assert list(page(admin, subject="user:1").context["years"]) == list(range(2015, 2027))

    @pytest.mark.parametrize(
        ("year", "years"),
        [
            pytest.param("2024", [2024, 2025, 2026], id="before the first row"),
            pytest.param("2028", [2025, 2026, 2027, 2028], id="to come"),
        ],
    )
    def test_the_year_that_is_shown_can_be_chosen(self, admin: Client, year: str, years: list[int]) -> None:
        row("user:1", date(2025, 6, 1))

        assert list(page(admin, subject="user:1", year=year).context["years"]) == years

    @pytest.mark.parametrize(("days", "first"), [("30", date(2026, 2, 13)), ("90", date(2025, 12, 15))])
    def test_the_table_goes_back_so_many_days_with_today(self, admin: Client, days: str, first: date) -> None:
        for each in (TODAY, first, first - timedelta(days=1)):
            row("user:1", each)

        assert [day for day, _ in page(admin, subject="user:1", days=days).context["days"]] == [TODAY, first]

    @pytest.mark.parametrize(
        ("year", "last"),
        [("2026", TODAY), ("2025", date(2025, 12, 31))],
        ids=["this year", "another year"],
    )
    def test_the_table_of_a_year_ends_with_it_or_today(self, admin: Client, year: str, last: date) -> None:
        for each in (date(int(year), 1, 1), last, last + timedelta(days=1)):
            row("user:1", each)

        days = page(admin, subject="user:1", days="year", year=year).context["days"]
        assert [day for day, _ in days] == [last, date(int(year), 1, 1)]

    @pytest.mark.parametrize("year", ["2026", "2024"], ids=["its year", "another year is shown"])
    @pytest.mark.parametrize(
        ("ahead", "is_counted"), [(1, True), (2, False)], ids=["tomorrow", "the day after tomorrow"]
    )
    def test_the_clock_of_the_store_may_be_a_day_ahead(
        self, admin: Client, ahead: int, is_counted: bool, year: str
    ) -> None:
        row("user:1", TODAY + timedelta(days=ahead), 7)

        totals = dict(page(admin, subject="user:1", year=year).context["totals"])

        found = [totals[title].allowed for title in ("This year", "This month", "Today")]
        assert found == [7 * is_counted] * 3

    @pytest.mark.parametrize(
        ("moment", "days", "total"),
        [
            pytest.param(datetime(2026, 12, 1, tzinfo=UTC), "30", {"This year": 7, "This month": 0}, id="this year"),
            pytest.param(datetime(2027, 1, 2, tzinfo=UTC), "90", {"This year": 0, "This month": 0}, id="in January"),
        ],
    )
    def test_totals_are_those_of_this_year_though_another_is_shown(
        self, admin: Client, moment: datetime, days: str, total: dict[str, int]
    ) -> None:
        row("user:1", date(2026, 2, 1), 7)

        with freeze(moment):
            totals = dict(admin.get(USAGE, {"subject": "user:1", "year": "2024", "days": days}).context["totals"])

        assert {title: totals[title].allowed for title in total} == total

    def test_the_last_days_reach_into_the_year_before(self, admin: Client) -> None:
        row("user:1", date(2026, 12, 20), 7)

        with freeze(datetime(2027, 1, 2, tzinfo=UTC)):
            days = admin.get(USAGE, {"subject": "user:1"}).context["days"]

        assert days == [(date(2026, 12, 20), (7, 0, 7))]

    def test_the_heat_map_has_a_day_of_a_store_that_is_ahead(self, admin: Client) -> None:
        row("user:1", TODAY + timedelta(days=1), 7)

        heat, *_ = charts(page(admin, subject="user:1").content.decode())

        assert "March 15, 2026: 7 allowed, 0 refused" in {element.text for element in heat.iter()}

    @pytest.mark.parametrize(
        ("moment", "year", "number"),
        [
            pytest.param(datetime(2026, 1, 1, tzinfo=UTC), "2026", 1, id="its first day"),
            pytest.param(datetime(2026, 1, 2, tzinfo=UTC), "2026", 2, id="its second day"),
            pytest.param(datetime(2026, 1, 2, tzinfo=UTC), "2027", 365, id="to come"),
            pytest.param(datetime(2026, 1, 2, tzinfo=UTC), "2025", 365, id="over"),
        ],
    )
    def test_the_bars_of_a_year_end_with_it_or_today(
        self, admin: Client, moment: datetime, year: str, number: int
    ) -> None:
        row("user:1", date(int(year), 1, 1))

        with freeze(moment):
            shown = admin.get(USAGE, {"subject": "user:1", "days": "year", "year": year}).content.decode()

        _, bars = charts(shown)
        assert sum(element.get("class") == "column" for element in bars.iter()) == number

    def test_the_busiest_rules_come_first_by_name(self, admin: Client) -> None:
        counts = (("b", 5, 1), ("a", 6, 0), ("most", 1, 8), ("few", 1, 0))
        for number, (rule, allowed, refused) in enumerate(counts):
            row("user:1", TODAY - timedelta(days=9 - number), allowed, refused, rule)
        row("user:1", date(2025, 3, 1), 100, rule="of the year before")

        rules = page(admin, subject="user:1").context["rules"]

        assert [(rule, count.allowed) for rule, count in rules] == [("most", 1), ("a", 6), ("b", 5), ("few", 1)]

    def test_a_hundred_rules_are_listed(self, admin: Client) -> None:
        DailyCounter.objects.bulk_create(
            DailyCounter(subject="user:1", rule=f"rule{number}", day=TODAY, allowed=1) for number in range(102)
        )

        answer = page(admin, subject="user:1")

        assert len(answer.context["rules"]) == 100
        assert "And 2 more." in answer.content.decode()

    @pytest.mark.parametrize(
        ("moment", "year", "scrolls"),
        [
            pytest.param(datetime(2026, 6, 30, tzinfo=UTC), "2026", False, id="June"),
            pytest.param(datetime(2026, 7, 1, tzinfo=UTC), "2026", True, id="July"),
            pytest.param(datetime(2026, 7, 1, tzinfo=UTC), "2025", False, id="another year"),
        ],
    )
    def test_the_second_half_of_a_heat_map_is_shown_first_once_it_began(
        self, admin: Client, moment: datetime, year: str, scrolls: bool
    ) -> None:
        row("user:1", date(int(year), 1, 1))

        with freeze(moment):
            shown = admin.get(USAGE, {"subject": "user:1", "year": year}).content.decode()

        heat = shown.partition('class="quota-heat"')[0].rpartition('class="usage-scroll')[2]
        assert ("usage-from-end" in heat) is scrolls

    @pytest.fixture
    def two_busy_days(self, admin: Client) -> str:
        """The page of a subject with checks on two days of the year, and on one of the year before."""
        row("user:1", TODAY, 7, 3)
        row("user:1", date(2026, 3, 1), 5, 0, "login")
        row("user:1", date(2025, 3, 1), 90)
        return str(page(admin, subject="user:1").content.decode())

    def test_the_heat_map_sums_up_the_year(self, two_busy_days: str) -> None:
        heat, _ = charts(two_busy_days)

        texts = {element.text for element in heat.iter()}
        busiest = "The busiest day: March 14, 2026: 7 allowed, 3 refused."
        assert f"Checks: 15, of them refused: 3. Days with checks: 2. {busiest}" in texts

    @pytest.mark.parametrize("chart", [0, 1], ids=["heat map", "bars"])
    def test_a_chart_says_what_was_counted_on_a_day(self, two_busy_days: str, chart: int) -> None:
        words = [element.text or "" for element in charts(two_busy_days)[chart].iter()]

        assert [each for each in words if each.startswith("March 14, 2026: 7 allowed")] != []

    def test_the_table_says_what_was_counted_on_a_day(self, two_busy_days: str) -> None:
        assert '<th scope="row">March 14, 2026</th><td>7</td><td>3</td><td>7</td>' in two_busy_days

    def test_the_search_of_a_chosen_subject_is_empty(self, two_busy_days: str) -> None:
        assert 'name="find" value=""' in two_busy_days

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

    def test_a_year_that_has_units_alone_has_no_chart(self, admin: Client) -> None:
        DailyCounter.objects.create(subject="user:1", rule="search", day=TODAY, units=7)

        html = page(admin, subject="user:1").content.decode()

        assert charts(html) == []
        assert "No checks in this year." in html

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

    @pytest.mark.parametrize(
        ("permissions", "is_shown"),
        [(["view_dailycounter", "view_subject", "auth.view_user"], True), (["view_dailycounter"], False)],
        ids=["permitted", "not permitted"],
    )
    def test_what_names_a_user_needs_its_permission(self, permissions: list[str], is_shown: bool) -> None:
        anna = User.objects.create_user("anna")

        html = page(operator(*permissions), subject=f"user:{anna.pk}").content.decode()

        assert ("/subject/?subject=" in html) is is_shown
        assert ("anna" in html) is is_shown

    def test_a_search_finds_no_user_for_those_who_may_not_see_users(self) -> None:
        User.objects.create_user("anna")

        answer: Any = operator("view_dailycounter").post(USAGE, {"find": "anna"})

        assert answer["Location"] == f"{USAGE}?subject=anna"

    def test_a_long_digest_is_shortened(self, admin: Client) -> None:
        subject = f"post.phone:{'0123456789abcdef' * 2}"

        html = page(admin, subject=subject).content.decode()

        assert f"<strong>post.phone:012345…</strong> <code>{subject}</code>" in html

    def test_a_search_finds_a_user_by_e_mail(self, admin: Client) -> None:
        anna = User.objects.create_user("anna", "anna@example.org")

        assert admin.post(USAGE, {"find": "anna@example.org"})["Location"] == f"{USAGE}?subject=user%3A{anna.pk}"

    def test_a_value_that_was_searched_is_not_in_the_url(self, admin: Client) -> None:
        assert "5551234" not in admin.post(USAGE, {"find": "post:phone=+15551234"})["Location"]

    def test_a_search_for_a_wrong_subject_is_an_error(self, admin: Client) -> None:
        assert "errornote" in admin.post(USAGE, {"find": "ip:nonsense"}).content.decode()

    def test_a_wrong_subject_in_the_url_is_an_error(self, admin: Client) -> None:
        assert "errornote" in admin.get(USAGE, {"subject": "ip:nonsense"}).content.decode()

    def test_a_search_that_finds_nobody_says_where_it_looked(self, admin: Client) -> None:
        reply = admin.post(USAGE, {"find": "nobody"}, follow=True)

        says = "There are no checks yet. Nobody's name or e-mail begins with 'nobody'. No request has the subject"
        assert says in unescape(reply.content.decode())

    @pytest.fixture(params=["line\r\nX-Injected: yes\0", "x" * 10_000, "\ud800", "~a% & = ?"])
    def odd(self, request: pytest.FixtureRequest) -> tuple[str, str]:
        """A subject that is a rule, too, and has a row; the query as somebody types it, and as links have it."""
        subject = request.param
        name, held = row_name(row_part(named_subject(subject))), row_name(row_part(subject, field))
        row(name, rule=held)
        typed = urlencode({"subject": subject, "rule": subject}, errors="surrogatepass")
        return typed, urlencode({"subject": name, "rule": held})

    @pytest.mark.parametrize("given", [0, 1], ids=["as typed", "as linked"])
    def test_any_subject_has_a_page(self, admin: Client, odd: tuple[str, str], given: int) -> None:
        with freeze(NOON):
            assert admin.get(f"{USAGE}?{odd[given]}").status_code == 200

    def test_the_page_that_is_linked_has_the_charts_of_any_subject(self, admin: Client, odd: tuple[str, str]) -> None:
        with freeze(NOON):
            shown = admin.get(f"{USAGE}?{odd[1]}")

        assert len(charts(shown.content.decode())) == 2

    @pytest.mark.parametrize("given", [0, 1], ids=["as typed", "as linked"])
    def test_the_file_of_any_subject_has_a_harmless_name(self, admin: Client, odd: tuple[str, str], given: int) -> None:
        with freeze(NOON):
            reply = admin.get(f"{USAGE}csv/?{odd[given]}")

        assert reply["Content-Disposition"].isascii()
        assert "Injected:" not in reply["Content-Disposition"]

    def test_the_file_that_is_linked_has_the_days_of_any_subject(self, admin: Client, odd: tuple[str, str]) -> None:
        with freeze(NOON):
            reply: Any = admin.get(f"{USAGE}csv/?{odd[1]}")
            lines = list(csv.reader(io.StringIO(b"".join(reply).decode(), newline="")))

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


@pytest.mark.parametrize(
    ("year", "is_read"),
    [
        ("1969", False),
        ("1970", True),
        ("1999", True),
        ("2026", True),
        ("2199", True),
        ("2200", False),
        ("20260", False),
    ],
)
def test_a_year_is_read_if_there_can_be_counts_of_it(year: str, is_read: bool) -> None:
    with freeze(datetime(2031, 3, 14, tzinfo=UTC)):
        found = UsageQuery.of(QueryDict(f"subject=user:1&year={year}")).year

    assert found == (int(year) if is_read else 2031)


@pytest.mark.usefixtures("memory_store")
def test_the_csv_file_has_the_days_of_one_rule_in_order(admin: Client) -> None:
    for day in (date(2025, 5, 2), date(2025, 5, 1), date(2024, 12, 31), date(2026, 1, 1)):
        row("user:1", day, rule="a")
        row("user:1", day, 100, rule="a-b")

    reply: Any = admin.get(f"{USAGE}csv/", {"subject": "user:1", "rule": "a", "year": "2025"})

    lines = list(csv.reader(io.StringIO(b"".join(reply).decode(), newline="")))[1:]
    assert lines == [["user:1", "a", f"2025-05-0{day}", "5", "0", "5"] for day in (1, 2)]


LIMITS_OF_USER = "/admin/django_quota/subject/?subject=user%3A"
USAGE_OF_USER = f"{USAGE}?subject=user%3A"


def links_beside_history(html: str) -> list[tuple[str, str]]:
    """Return the URL and the words of each link above the form of a user."""
    tools = html.partition('<ul class="object-tools">')[2].partition("</ul>")[0]
    return re.findall(r'<a href="([^"]*)"[^>]*>([^<]*)</a>', tools)


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
@pytest.mark.parametrize(
    ("permissions", "links"),
    [
        pytest.param(["view_subject", "view_dailycounter"], [LIMITS_OF_USER, USAGE_OF_USER], id="both"),
        pytest.param(["view_subject"], [LIMITS_OF_USER], id="limits alone"),
        pytest.param(["view_dailycounter"], [USAGE_OF_USER], id="usage alone"),
        pytest.param([], [], id="neither"),
    ],
)
def test_the_page_of_a_user_has_the_links_that_staff_may_follow(permissions: list[str], links: list[str]) -> None:
    ann = User.objects.create_user("ann")

    answer = operator("auth.view_user", *permissions).get(f"/admin/auth/user/{ann.pk}/change/")

    assert answer.status_code == 200
    assert links_beside_history(answer.content.decode()) == [
        *((f"{url}{ann.pk}", {LIMITS_OF_USER: "Quota", USAGE_OF_USER: "Usage"}[url]) for url in links),
        (f"/admin/auth/user/{ann.pk}/history/", "History"),
    ]


@pytest.mark.parametrize(
    ("model", "links"),
    [
        pytest.param(Member, [f"{LIMITS_OF_USER}7", f"{USAGE_OF_USER}7"], id="a model of the site"),
        pytest.param(User, [], id="Django's own, which has them from its template"),
    ],
)
def test_the_template_of_the_mixin_adds_the_links_after_djangos_own(
    model: type[User], links: list[str], settings: Any
) -> None:
    base = "{% block object-tools-items %}History{% endblock %}"
    own = ("django.template.loaders.locmem.Loader", {"admin/change_form.html": base})
    options = {**settings.TEMPLATES[0]["OPTIONS"], "loaders": [own, "django.template.loaders.app_directories.Loader"]}
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "APP_DIRS": False, "OPTIONS": options}]
    request = RequestFactory().get("/")
    request.user = User(is_active=True, is_superuser=True)

    html = render_to_string(UsageLinks.change_form_template, {"original": User(pk=7), "opts": model._meta}, request)

    assert html.strip().startswith("History")
    assert re.findall('<li><a href="([^"]*)">', html) == links


@pytest.mark.thorough("slow")
@pytest.mark.usefixtures("memory_store")
def test_a_mixin_adds_the_links_to_a_custom_user_model(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    client, ann = superuser(), User.objects.create_user("ann")
    shown = client.get(f"/admin/auth/member/{ann.pk}/change/").content.decode()
    assert links_beside_history(shown) == [
        (f"/admin/auth/member/{ann.pk}/history/", "History"),
        (f"{LIMITS_OF_USER}{ann.pk}", "Quota"),
        (f"{USAGE_OF_USER}{ann.pk}", "Usage"),
    ]
    assert client.get("/admin/auth/member/add/").status_code == 200


@pytest.mark.usefixtures("memory_store")
def test_the_year_that_is_shown_first_is_that_of_the_sites_time_zone(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "TIME_ZONE": "Asia/Tokyo"}
    with freeze(datetime(2026, 12, 31, 16, tzinfo=UTC)):
        assert UsageQuery.of(QueryDict("subject=user:42")).year == 2027
