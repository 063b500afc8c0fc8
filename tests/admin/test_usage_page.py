"""The usage page: it counts each check once, and works for any subject."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
import redis
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.http import QueryDict
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_quota import check
from django_quota.models import DailyCounter
from django_quota.testing import freeze
from tests.admin.operators import operator, superuser
from tests.support.days import count, names_in_a_row
from tests.support.dying import Died, dying

USAGE = "/admin/django_quota/dailycounter/usage/"
NOON = int(datetime(2026, 3, 14, 12, tzinfo=UTC).timestamp()) * 1_000_000
TODAY = date(2026, 3, 14)

ODD = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "null\0and\x01control\x1b",
    "line\r\nX-Injected: yes",
    "x" * 10_000,
    "\ud800 alone",
    "\u202ertl \u2028 \U0001f600",
    "{braces} + % & = ?",
    "~tilde",
    "=1+1",
]

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


# --- each check counts once -------------------------------------------------------------------------------------------


def of_day(client: Client, subject: str, day: date, rule: str = "") -> tuple[int, ...]:
    """Return the allowed and refused checks of a day and their units, as the CSV file has them."""
    asked: Any = {"subject": subject, "rule": rule, "year": day.year}
    reply: Any = client.get(f"{USAGE}csv/", asked)
    lines = csv.DictReader(io.StringIO(b"".join(reply).decode(), newline=""))
    found = [tuple(map(int, list(line.values())[3:])) for line in lines if line["day"] == str(day)]
    return found[0] if found else (0, 0, 0)


@pytest.mark.usefixtures("redis_cache")
class TestWhatRedisHas:
    """The page moves it to the rows that it reads."""

    def now(self, raw: redis.Redis) -> date:
        return datetime.fromtimestamp(raw.time()[0], UTC).date()

    def test_each_check_counts_once_whoever_moves_it(self, raw: redis.Redis, admin: Client) -> None:
        today = self.now(raw)
        count(raw, "user:1", {"search": (3, 1), "login": (2, 0)}, today)
        assert of_day(admin, "user:1", today) == (5, 1, 5)
        count(raw, "user:1", {"search": (4, 0, 90), "api": (0, 7)}, today)
        call_command("quota_rollup", stdout=io.StringIO())
        assert of_day(admin, "user:1", today) == (9, 8, 99)
        assert of_day(admin, "user:1", today, "search") == (7, 1, 97)
        raw.flushall()
        count(raw, "user:1", {"search": (2, 0)}, today)
        assert of_day(admin, "user:1", today) == (11, 8, 101)
        assert DailyCounter.objects.get(rule="search").units == 99

    def test_what_a_killed_roll_up_left_is_shown_once(self, raw: redis.Redis, admin: Client) -> None:
        today = self.now(raw)
        for step in range(100):
            count(raw, "user:1", {"search": (1, 0)}, today)
            with suppress(Died), dying(step):
                call_command("quota_rollup", stdout=io.StringIO())
                break
            connection.close()
            assert of_day(admin, "user:1", today) == (step + 1, 0, step + 1)
        assert step > 5

    def test_a_long_name_is_found_under_its_digest(self, raw: redis.Redis, admin: Client) -> None:
        today, subject, rule = self.now(raw), "ü" * 300, "r" * 300
        count(raw, subject, {rule: (3, 1)}, today)
        assert of_day(admin, subject, today) == (3, 1, 3)
        name, held = DailyCounter.objects.values_list("subject", "rule").get()
        assert name.startswith("~")
        assert of_day(admin, name, today, rule) == of_day(admin, subject, today, held) == (3, 1, 3)
        count(raw, subject, {rule: (1, 0)}, today)
        assert of_day(admin, name, today) == (4, 1, 4)

    def test_rules_days_and_subjects_are_kept_apart(self, raw: redis.Redis, admin: Client) -> None:
        today = self.now(raw)
        count(raw, "user:1", {"search": (3, 1)}, today - timedelta(days=1))
        count(raw, "user:1", {"search": (1, 0)}, today)
        count(raw, "user:2", {"search": (50, 0)}, today)
        assert of_day(admin, "user:1", today - timedelta(days=1)) == (3, 1, 3)
        assert of_day(admin, "user:1", today) == (1, 0, 1)

    def test_the_page_takes_one_call_to_redis_and_few_queries(self, raw: redis.Redis, admin: Client) -> None:
        count(raw, "user:1", {"search": (3, 1)}, self.now(raw))
        admin.get(USAGE, {"subject": "user:1"})  # loads the script
        raw.config_resetstat()
        with CaptureQueriesContext(connection) as queries:
            assert admin.get(USAGE, {"subject": "user:1", "year": "2020"}).status_code == 200
        calls = {name: stats["calls"] for name, stats in raw.info("commandstats").items()}
        assert calls["cmdstat_evalsha"] == 1
        assert not {"cmdstat_scan", "cmdstat_keys", "cmdstat_hscan"} & set(calls)
        assert len(queries) == 7


@pytest.mark.usefixtures("memory_store")
def test_what_the_memory_store_has_is_moved_too(admin: Client) -> None:
    with freeze(NOON):
        for _ in range(2):
            for _ in range(3):
                check("2/h", "user:77", name="few", daily=True)
            reply = page(admin, subject="user:77")
        assert of_day(admin, "user:77", TODAY) == (2, 4, 2)
    assert dict(reply.context["totals"])["Today"] == (2, 4, 2)


def test_rows_are_shown_where_redis_does_not_answer(admin: Client, settings: Any) -> None:
    settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}}
    row("user:1", allowed=1234)
    reply = page(admin, subject="user:1")
    assert reply.status_code == 200
    assert "The store does not answer" in reply.content.decode()
    assert "1,234" in reply.content.decode()


def test_the_title_shows_no_whole_digest(admin: Client) -> None:
    subject = f"post.phone:{'0123456789abcdef' * 2}"
    reply = page(admin, subject=subject)
    assert reply.context["title"] == "Usage of post.phone:012345…"
    assert f"<strong>post.phone:012345…</strong> <code>{subject}</code>" in reply.content.decode()


# --- what is shown ----------------------------------------------------------------------------------------------------


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
        for day, allowed in ((TODAY, 1), (date(2026, 3, 1), 20), (date(2026, 1, 1), 300), (date(2025, 12, 31), 4000)):
            row("user:1", day, allowed, refused=2)
        totals = {title: counts.allowed for title, counts in page(admin, subject="user:1").context["totals"]}
        assert totals == {"This year": 321, "This month": 21, "Today": 1}
        totals = dict(page(admin, subject="user:1", year=2025).context["totals"])
        assert totals["2025"].allowed == 4000
        assert totals["This year"].refused == 6

    def test_the_heat_map_and_the_table_agree(self, admin: Client) -> None:
        row("user:1", TODAY, 7, 3)
        row("user:1", date(2026, 3, 1), 5, 0, "login")
        html = page(admin, subject="user:1").content.decode()
        heat, bars = charts(html)
        assert "15 checks on 2 days, 3 of them refused. The busiest day: March 14, 2026: 7 allowed, 3 refused." in {
            element.text for element in heat.iter()
        }
        for chart in (heat, bars):
            assert any((element.text or "").startswith("March 14, 2026: 7 allowed") for element in chart.iter())
        assert '<th scope="row">March 14, 2026</th><td>7</td><td>3</td><td>7</td>' in html

    @pytest.mark.parametrize(("days", "expected"), [("30", 30), ("90", 90), ("year", 73), ("x", 30), ("", 30)])
    def test_bars_cover_the_chosen_period(self, admin: Client, days: str, expected: int) -> None:
        _, bars = charts(page(admin, subject="user:1", days=days).content.decode())
        assert sum(element.get("class") == "column" for element in bars.iter()) == expected

    def test_a_past_year_has_a_bar_for_each_day(self, admin: Client) -> None:
        row("user:1", date(2024, 2, 29))
        heat, bars = charts(page(admin, subject="user:1", days="year", year=2024).content.decode())
        assert sum(element.get("class") == "column" for element in bars.iter()) == 366
        assert sum((element.get("class") or "").startswith("cell shade") for element in heat.iter()) == 366

    def test_one_rule_can_be_chosen(self, admin: Client) -> None:
        row("user:1", rule="a", allowed=7)
        row("user:1", rule="b", allowed=9)
        reply = page(admin, subject="user:1", rule="a")
        assert dict(reply.context["totals"])["Today"].allowed == 7
        assert [rule for rule, _, _ in reply.context["rules"]] == ["b", "a"]

    @pytest.mark.parametrize("year", ["0", "99999", "x", "-1", "٢٠٢٦", "1969", ""])
    def test_a_malformed_year_means_this_year(self, admin: Client, year: str) -> None:
        assert page(admin, subject="user:1", year=year).context["usage"].year == 2026

    def test_years_go_back_to_the_first_row(self, admin: Client) -> None:
        row("user:1", date(2024, 5, 1))
        assert [year for year, _, _ in page(admin, subject="user:1").context["years"]] == [2024, 2025, 2026]

    def test_the_link_to_the_limits_needs_the_permission(self, admin: Client) -> None:
        client = operator("view_dailycounter")
        assert "/subject/?subject=" in page(admin, subject="user:1").content.decode()
        assert "/subject/?subject=" not in page(client, subject="user:1").content.decode()

    # --- whom -------------------------------------------------------------------------------------------------------

    def test_a_user_is_found_by_name(self, admin: Client) -> None:
        anna = User.objects.create_user("anna", "anna@example.org")
        for who in ("anna", "anna@example.org", f"user:{anna.pk}"):
            reply = admin.get(USAGE, {"who": who, "rule": "a", "year": "2025"})
            assert reply.status_code == 302
            assert reply["Location"] == f"?subject=user%3A{anna.pk}&rule=a&year=2025"
        assert "anna" in page(admin, subject=f"user:{anna.pk}").content.decode()

    def test_a_plain_value_is_not_in_the_url(self, admin: Client) -> None:
        assert '<form method="post"' in page(admin, subject="user:1").content.decode()
        reply = admin.post(USAGE, {"who": "post:phone=+15551234"})
        assert reply.status_code == 302
        assert reply["Location"].startswith("?subject=post.phone%3A")
        assert "5551234" not in reply["Location"]

    def test_the_form_cannot_be_forged(self, admin: Client) -> None:
        strict = Client(enforce_csrf_checks=True)
        strict.cookies = admin.cookies
        assert strict.post(USAGE, {"who": "user:1"}).status_code == 403

    def test_an_unknown_name_is_taken_as_a_subject(self, admin: Client) -> None:
        reply = admin.post(USAGE, {"who": "nobody"}, follow=True)
        assert reply.redirect_chain == [("?subject=nobody", 302)]
        assert "There is no user of this name." in reply.content.decode()
        assert "There are no checks yet." in reply.content.decode()

    def test_several_users_are_offered_as_a_choice(self, admin: Client) -> None:
        one, other = (
            User.objects.create_user("one", "same@example.org"),
            User.objects.create_user("two", "same@example.org"),
        )
        reply = admin.get(USAGE, {"who": "same@example.org"})
        offered = {subject for subject, *_ in reply.context["choices"]}
        assert offered == {f"user:{one.pk}", f"user:{other.pk}"}

    @pytest.mark.parametrize(
        "asked", [{"who": ""}, {"who": " "}, {"who": "ip:nonsense+ip:x", "year": "x"}, {"who": "a\0b"}, {}]
    )
    def test_an_unusable_text_shows_the_form_again(self, admin: Client, asked: dict[str, Any]) -> None:
        reply = admin.get(USAGE, asked)
        assert reply.status_code in (200, 302)
        assert reply.status_code == 302 or b"Whose usage?" in reply.content

    @pytest.mark.parametrize("subject", ODD, ids=range(len(ODD)))
    def test_any_subject_has_a_page_and_a_file(self, admin: Client, subject: str) -> None:
        name, held = names_in_a_row(subject, subject)
        row(name, rule=held)
        query = urlencode({"subject": subject, "rule": subject}, errors="surrogatepass")
        with freeze(NOON):
            for asked in (query, urlencode({"subject": name, "rule": held})):
                html = admin.get(f"{USAGE}?{asked}").content.decode()
                assert "<script>alert" not in html
                assert "<img src=x" not in html
                assert len(charts(html)) == 2
                reply = admin.get(f"{USAGE}csv/?{asked}")
                assert reply["Content-Disposition"].isascii()
                assert "Injected:" not in reply["Content-Disposition"]
                lines = list(csv.reader(io.StringIO(b"".join(reply).decode(), newline="")))
                assert lines[0][:2] == ["subject", "rule"]
            assert lines[1][2:] == ["2026-03-14", "5", "0", "5"]
            assert admin.get(f"{USAGE}?who={query.removeprefix('subject=').partition('&')[0]}").status_code in (
                200,
                302,
            )

    def test_the_csv_file_has_the_days_of_the_year(self, admin: Client) -> None:
        row("user:1", date(2025, 5, 1), 8, 2)
        row("user:1", TODAY, 1, 1)
        with freeze(NOON):
            reply = admin.get(f"{USAGE}csv/", {"subject": "user:1", "year": "2025"})
        assert reply["Content-Disposition"] == 'attachment; filename="usage-user-1-2025.csv"'
        lines = b"".join(reply).decode().splitlines()
        header, row_of_may = csv.reader(lines)
        assert header == ["subject", "rule", "day", "allowed", "refused", "units"]
        assert row_of_may == ["user:1", "*", "2025-05-01", "8", "2", "8"]

    def test_a_csv_url_without_a_subject_leads_to_the_page(self, admin: Client) -> None:
        assert admin.get(f"{USAGE}csv/")["Location"] == USAGE
        assert admin.get(f"{USAGE}csv/", {"subject": ""}).status_code == 302


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("language", ["de", "ar", "en"])
def test_the_week_starts_as_the_language_says(admin: Client, language: str, settings: Any) -> None:
    settings.LANGUAGE_CODE = language
    heat, _ = charts(page(admin, subject="user:1").content.decode())
    assert len([element for element in heat.iter() if (element.get("class") or "").startswith("cell")]) == 365
    first: Callable[[str], str] = {"de": "Mo", "ar": "", "en": "Sun"}.get  # type: ignore[assignment]
    labels = [element.text or "" for element in heat.iter() if element.tag.endswith("text")]
    assert any(label.startswith(first(language)) for label in labels)


@pytest.mark.usefixtures("database", "memory_store")
@pytest.mark.parametrize("text", ["ann", "ann@example.org", "nobody"])
def test_finding_users_needs_the_permission_to_view_them(text: str) -> None:
    user = User.objects.create_user("ann", "ann@example.org")
    reply = operator("view_dailycounter").post(USAGE, {"who": text}, follow=True)
    assert QueryDict(reply.redirect_chain[0][0].removeprefix("?"))["subject"] == text
    shown = reply.content.decode()
    assert "There is no user of this name." not in shown
    assert "user:&lt;key&gt;" in shown
    assert f"user:{user.pk}" not in shown
