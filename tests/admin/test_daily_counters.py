"""Daily counters in the admin: the list, its search and filters, and the CSV export."""

import asyncio
import csv
import io
import re
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.test import AsyncRequestFactory, Client, RequestFactory
from hypothesis import example, given
from hypothesis import strategies as st

from django_quota.admin import daily_counters
from django_quota.admin.daily_counters import BY_SUBJECT, COLUMNS, NEWEST, of_kind, rows_in_order
from django_quota.features.usage.spreadsheets import csv_lines, csv_response, escape_formula
from django_quota.models import DailyCounter
from tests.admin.operators import operator, superuser

LIST = "/admin/django_quota/dailycounter/"
DAY = date(2026, 3, 14)

pytestmark = pytest.mark.usefixtures("database", "memory_store")


def row(subject: str, rule: str = "search", day: date = DAY, allowed: int = 5, refused: int = 0) -> DailyCounter:
    return DailyCounter.objects.create(
        subject=subject, rule=rule, day=day, allowed=allowed, refused=refused, units=allowed
    )


@pytest.fixture
def client(database: Any) -> Client:
    return operator("view_dailycounter")


@pytest.fixture
def admin(database: Any) -> Client:
    return superuser("admin")


def listed(client: Client, query: str = "") -> list[tuple[str, str]]:
    reply = client.get(LIST + query)
    assert reply.status_code == 200
    return [(row.subject, row.rule) for row in reply.context["cl"].result_list]


def test_a_row_has_its_counts_and_a_link_and_names_need_their_permission(client: Client) -> None:
    user = User.objects.create_user("anna", email="anna@example.org")
    row(f"user:{user.pk}", allowed=1_200_000, refused=400_000)
    assert "anna" not in client.get(LIST).content.decode()
    assert listed(client, "?q=anna") == listed(client, "?q=anna@example.org") == []
    client = operator("view_dailycounter", "auth.view_user", name="sees users")
    page = client.get(LIST).content.decode()
    assert f'href="{LIST}usage/?subject=user%3A{user.pk}">anna (user:{user.pk})<' in page
    shown = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    assert "allowed 1,200,000 refused 400,000 25.0 % units 1,200,000" in shown, "with labels, for cards"
    assert listed(client, "?q=anna") == listed(client, "?q=anna@example") == [(f"user:{user.pk}", "search")]


def test_rows_are_newest_first_and_filtered_by_rule_kind_and_day(client: Client, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"login": "5/m", "search": "5/m"}}
    row("user:2", "search", refused=1)
    row("user:1", "login", DAY + timedelta(days=1))
    row("user:3", "search", refused=2)
    row("key.app:x", "of-a-call", DAY + timedelta(days=2))

    def subjects(query: str) -> list[str]:
        return [subject.removeprefix("user:") for subject, _ in listed(client, query)]

    for query in ("", "?o=-5", "?o=x", "?kind=nonsense"):
        assert subjects(query) == ["key.app:x", "1", "2", "3"], query
    assert subjects("?day__year=2026&day__month=3&day__day=14&o=-5") == ["3", "2"]
    assert subjects("?rule=login") == ["1"]
    assert subjects("?kind=key.") == subjects("?rule=of-a-call") == ["key.app:x"]
    assert subjects("?kind=user:&rule=search") == ["2", "3"]
    assert client.get(LIST, {"rule": "a\0b"}).status_code == 302
    page = client.get(LIST).content.decode()
    assert [f"?rule={rule}" in page for rule in ("login", "search", "of-a-call")] == [True, True, False]


def test_a_search_takes_what_one_can_type(admin: Client, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"search": "5/m"}}
    user = User.objects.create_user("search-bot", "bot@example.org")
    row(f"user:{user.pk}", "login")
    row("ip:203.0.113.9", "search")
    row("ip:2001:db8::/64", "transfer")
    for text, found in {
        "search": "ip:203.0.113.9",  # a configured rule goes first
        **dict.fromkeys(("search-", "bot@example.org"), f"user:{user.pk}"),
        **dict.fromkeys(("2001:DB8::7", "transfer"), "ip:2001:db8::/64"),
    }.items():
        assert [subject for subject, _ in listed(admin, f"?q={quote(text)}")] == [found], text
    for text in ("nobody", "ip:203.0.113", "post:phone=", "100%25_", "transf"):
        assert listed(admin, f"?q={quote(text)}") == [], text
    User.objects.bulk_create(User(username=f"many{number}") for number in range(21))
    assert "only the first 20 subjects" in admin.get(f"{LIST}?q=many").content.decode()


def test_dates_to_choose_go_from_the_first_row_to_the_last(client: Client) -> None:
    def choices(query: str = "") -> list[str]:
        dates = client.get(LIST + query).context["cl"].date_choices()
        return [choice["title"] for choice in dates.get("choices", [])]

    assert choices() == []
    row("user:1", day=date(2024, 2, 27))
    row("user:1", day=date(2026, 1, 2))
    assert choices() == ["2024", "2025", "2026"]
    assert choices("?day__year=2024") == ["February 2024"]
    for query in ("", "&day__day=27"):
        assert choices(f"?day__year=2024&day__month=2{query}") == ["February 27"]
    assert choices("?day__year=2025") == []
    assert listed(client, "?day__year=2024&day__month=2&day__day=27") == [("user:1", "search")]


@pytest.mark.parametrize(
    ("query", "back"),
    [
        pytest.param("", None, id="all years"),
        pytest.param("day__year=2024", "?", id="a year"),
        pytest.param("day__year=2024&day__month=2", "?day__year=2024", id="a month"),
        pytest.param("day__year=2024&day__month=2&day__day=27", "?day__month=2&day__year=2024", id="a day"),
    ],
)
def test_dates_lead_back_to_a_longer_time(query: str, back: str | None, client: Client) -> None:
    row("user:1", day=date(2024, 2, 27))
    row("user:1", day=date(2026, 1, 2))

    dates = client.get(f"{LIST}?{query}").context["cl"].date_choices()

    assert (dates["back"] and dates["back"]["link"]) == back


def test_a_list_that_is_cut_off_says_so(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daily_counters, "MAX_LISTED", 10)
    rows = [DailyCounter(subject=f"user:{number}", rule="a", day=DAY) for number in range(11)]
    DailyCounter.objects.bulk_create(rows[:9])
    assert "The list ends after 10 rows." not in client.get(LIST).content.decode()
    DailyCounter.objects.bulk_create(rows[9:])
    page = client.get(LIST)
    assert page.context["cl"].result_count == 10
    assert "The list ends after 10 rows." in page.content.decode()


# --- CSV --------------------------------------------------------------------------------------------------------------


def test_the_export_holds_the_rows_that_match(client: Client) -> None:
    for number in range(5):
        row(f"user:{number}", "search" if number % 2 else "login", refused=number)
    reply: Any = client.get(f"{LIST}export/?rule=search&p=3&o=1")
    assert reply["Content-Type"] == "text/csv; charset=utf-8"
    assert reply["Content-Disposition"] == 'attachment; filename="daily-counters.csv"'
    assert b"".join(reply).decode() == (
        '"subject","rule","day","allowed","refused","units"\r\n'
        '"user:1","search","2026-03-14","5","1","5"\r\n'
        '"user:3","search","2026-03-14","5","3","5"\r\n'
    )
    assert f'href="{LIST}export/?rule=search"' in client.get(f"{LIST}?rule=search&o=1").content.decode()


@pytest.mark.parametrize(("across", "found"), [(0, ["user:1", "user:2"]), (1, [f"user:{n}" for n in range(4)])])
def test_selected_rows_are_exported(client: Client, across: int, found: list[str]) -> None:
    rows = [row(f"user:{number}") for number in range(4)]
    chosen = {"_selected_action": [rows[1].pk, rows[2].pk], "select_across": across}
    reply: Any = client.post(f"{LIST}?kind=user:", {"action": "export_selected", **chosen})
    lines = csv.reader(io.StringIO(b"".join(reply).decode(), newline=""))
    assert [subject for subject, *_ in lines] == ["subject", *found]


def test_a_download_under_asgi_reads_its_rows_outside_of_the_loop() -> None:
    def rows() -> Iterator[list[int]]:
        for number in range(3):
            with pytest.raises(RuntimeError):  # where Django would refuse a query
                asyncio.get_running_loop()
            yield [number]

    reply: Any = csv_response(AsyncRequestFactory().get("/"), "a", ["number"], rows())
    assert reply.is_async

    async def fetch() -> bytes:
        return b"".join([part async for part in reply])

    assert asyncio.run(fetch()) == b'"number"\r\n"0"\r\n"1"\r\n"2"\r\n'


RUN = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a spreadsheet takes for the beginning of a formula; the last four where it reads Japanese."""


@example("x;=1+1")
@example('x";"=1+1')
@given(st.text("ab;,|\t\r\n\"' =+-@\uff1d1") | st.text())
def test_no_spreadsheet_runs_a_cell_whatever_its_separator(text: str) -> None:
    made = escape_formula(text)
    made.encode()
    lines = "".join(csv_lines(["subject", "rule", "allowed"], [[text, text, 7]]))
    (_, read) = csv.reader(io.StringIO(lines, newline=""))
    assert read == [made, made, "7"]
    for separator in ",;|\t":  # a spreadsheet in German, French or Spanish takes the semicolon
        cells = [each for row in csv.reader(io.StringIO(lines, newline=""), delimiter=separator) for each in row]
        assert not [each for each in cells if each.startswith(RUN)]


@given(st.text())
def test_a_file_has_a_harmless_name(text: str) -> None:
    disposition = csv_response(RequestFactory().get("/"), text, (), ())["Content-Disposition"]
    assert re.fullmatch(r'attachment; filename="[A-Za-z0-9_-]{1,80}\.csv"', disposition)


def several() -> Iterator[DailyCounter]:
    for number in range(60):
        subject, day = f"user:{number % 5}", DAY + timedelta(days=number // 15)
        yield DailyCounter(subject=subject, rule=f"rule-{number // 5 % 3}", day=day, allowed=number)


@pytest.mark.parametrize("order", [NEWEST, BY_SUBJECT])
@pytest.mark.parametrize("size", [7, 60])
def test_batches_bring_each_row_once_in_order(order: tuple[str, ...], size: int) -> None:
    DailyCounter.objects.bulk_create(several())
    expected = list(DailyCounter.objects.order_by(*order).values_list(*COLUMNS))
    assert list(rows_in_order(DailyCounter.objects.all(), order, size)) == expected


def test_rows_added_during_an_export_double_nothing() -> None:
    DailyCounter.objects.bulk_create(several())
    found = rows_in_order(DailyCounter.objects.all(), NEWEST, 10)
    first = [next(found) for _ in range(10)]
    row("user:0", day=DAY + timedelta(days=9))
    rest = list(found)
    assert len({*first, *rest}) == len(first) + len(rest) == 60


def test_subjects_of_a_kind_are_found_by_their_beginning() -> None:
    for subject in ("a", "a:", "a:b", "a:\uffff", "a:\U0010ffff", "a;", "A:", "b", "a%", "a_", "\ue000x"):
        row(subject)
    found = DailyCounter.objects.filter(of_kind("a:", "default")).values_list("subject", flat=True)
    assert sorted(found) == ["a:", "a:b", "a:\uffff", "a:\U0010ffff"]
