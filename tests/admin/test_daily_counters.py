"""Daily counters in the admin: the list, its search and filters, and the CSV export."""

from __future__ import annotations

import asyncio
import csv
import io
import re
import tracemalloc
from collections.abc import Iterator
from datetime import date, timedelta
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connection
from django.test import AsyncClient, Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from hypothesis import example, given
from hypothesis import strategies as st

from django_quota.admin import csv_export, daily_counters
from django_quota.admin.csv_export import csv_lines, csv_response, escape_formula
from django_quota.admin.daily_counters import BY_SUBJECT, COLUMNS, NEWEST, of_kind, rows_in_order
from django_quota.models import DailyCounter
from django_quota.operating.lookup import find_users, user_names
from tests.admin.operators import operator, superuser
from tests.support.databases import forget_connection

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


def test_counts_have_separators_and_labels_for_cards(client: Client) -> None:
    row("user:1", allowed=1_234_567, refused=89)
    shown = " ".join(re.sub(r"<[^>]*>", " ", client.get(LIST).content.decode()).split())
    assert "allowed 1,234,567 refused 89 0.0 % units 1,234,567" in shown


def listed(client: Client, query: str = "") -> list[tuple[str, str]]:
    reply = client.get(LIST + query)
    assert reply.status_code == 200
    return [(found.subject, found.rule) for found in reply.context["cl"].result_list]


def table(reply: Any) -> list[list[str]]:
    return list(csv.reader(io.StringIO(b"".join(reply).decode(), newline="")))


# --- the list ---------------------------------------------------------------------------------------------------------


def test_the_list_shows_counts_users_and_the_share_refused(admin: Client) -> None:
    user = User.objects.create_user("anna")
    row(f"user:{user.pk}", allowed=1, refused=3)
    row("ip:203.0.113.9", allowed=0, refused=0)
    page = admin.get(LIST).content.decode()
    assert f'href="{LIST}usage/?subject=user%3A{user.pk}"' in page
    assert "anna" in page
    assert "75.0\N{NO-BREAK SPACE}%" in page


def test_user_names_need_the_permission_to_view_users(client: Client) -> None:
    user = User.objects.create_user("anna", email="anna@example.org")
    row(f"user:{user.pk}")
    assert "anna" not in client.get(LIST).content.decode()
    assert listed(client, "?q=anna") == []
    assert listed(client, "?q=anna@example.org") == []
    client = operator("view_dailycounter", "auth.view_user", name="sees users")
    assert "anna" in client.get(LIST).content.decode()
    assert listed(client, "?q=anna") == listed(client, "?q=anna@example") == [(f"user:{user.pk}", "search")]


def test_rows_are_newest_first_and_rows_of_a_kind_by_subject(client: Client) -> None:
    for subject, days in (("user:2", 0), ("user:1", 1), ("ip:203.0.113.9", 2)):
        row(subject, day=DAY + timedelta(days=days))
    assert [subject for subject, _ in listed(client)] == ["ip:203.0.113.9", "user:1", "user:2"]
    assert [subject for subject, _ in listed(client, "?kind=user:")] == ["user:1", "user:2"]
    assert [subject for subject, _ in listed(client, "?o=2")] == ["ip:203.0.113.9", "user:1", "user:2"]


@pytest.mark.parametrize("order", ["-6", "5.2", "99", "x", "-", "0", "7"])
def test_an_order_without_an_index_is_ignored(client: Client, order: str) -> None:
    row("user:1", refused=1)
    row("user:2", refused=2)
    assert [subject for subject, _ in listed(client, f"?o={order}")] == ["user:1", "user:2"]


def test_rows_of_one_day_can_be_sorted_by_their_counts(client: Client) -> None:
    row("user:1", refused=1)
    row("user:2", refused=2)
    assert listed(client, "?day__year=2026&day__month=3&day__day=14&o=-6")[0] == ("user:2", "search")


def test_the_list_is_filtered_by_rule_and_kind(client: Client, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"login": "5/m", "search": "5/m"}}
    row("user:1", "search")
    row("user:1", "login")
    row("global", "search")
    row("key.app:x")
    assert listed(client, "?rule=login") == [("user:1", "login")]
    assert listed(client, "?kind=global") == [("global", "search")]
    assert listed(client, "?kind=key.") == [("key.app:x", "search")]
    assert listed(client, "?kind=user:&rule=search") == [("user:1", "search")]
    assert len(listed(client, "?kind=nonsense")) == 4
    page = client.get(LIST).content.decode()
    assert "?rule=login" in page
    assert "?rule=search" in page


def test_a_filter_with_a_null_character_leads_back_to_the_whole_list(client: Client) -> None:
    assert client.get(f"{LIST}?rule=%00")["Location"] == f"{LIST}?e=1"


def test_a_rule_that_is_not_offered_works_in_the_url(client: Client) -> None:
    row("user:1", "c")
    assert "?rule=c" not in client.get(LIST).content.decode()
    assert "?rule=c" in client.get(f"{LIST}?rule=c").content.decode()


def test_a_search_takes_what_one_can_type(admin: Client, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"search": "5/m"}}
    user = User.objects.create_user("search-bot", "bot@example.org")
    for subject, rule in (
        (f"user:{user.pk}", "login"), ("ip:203.0.113.9", "search"), ("ip:2001:db8::/64", "transfer"), ("joe", "10/m"),
    ):  # fmt: skip
        row(subject, rule)
    for text, found in {
        "search": "ip:203.0.113.9",  # a configured rule goes first
        "search-": f"user:{user.pk}",
        "bot@example.org": f"user:{user.pk}",
        " 203.0.113.9 ": "ip:203.0.113.9",
        "2001:DB8::7": "ip:2001:db8::/64",
        "transfer": "ip:2001:db8::/64",
        "10/m": "joe",
        "joe": "joe",
    }.items():
        assert [subject for subject, _ in listed(admin, f"?q={quote(text)}")] == [found], text
    for text in ("nobody", "ip:203.0.113", "203.0.113.", "post:phone=", "100%25_", "transf"):
        assert listed(admin, f"?q={quote(text)}") == [], text
    assert len(listed(admin, "?q=a%00b")) == 4  # Django's form refuses it, and says so


def test_a_search_of_too_many_users_says_so(admin: Client) -> None:
    User.objects.bulk_create(User(username=f"bot{number}") for number in range(21))
    assert "only the first 20 subjects" in admin.get(f"{LIST}?q=bot").content.decode()


def test_dates_to_choose_go_from_the_first_row_to_the_last(client: Client) -> None:
    def choices(query: str = "") -> list[str]:
        dates = client.get(LIST + query).context["cl"].date_choices()
        return [choice["title"] for choice in dates.get("choices", [])]

    assert choices() == []
    row("user:1", day=date(2024, 2, 27))
    row("user:1", day=date(2026, 1, 2))
    assert choices() == ["2024", "2025", "2026"]
    assert choices("?day__year=2024") == ["February 2024"]
    assert choices("?day__year=2024&day__month=2") == ["February 27"]
    assert choices("?day__year=2024&day__month=2&day__day=27") == ["February 27"]
    assert choices("?day__year=2025") == []
    assert listed(client, "?day__year=2024&day__month=2&day__day=27") == [("user:1", "search")]


@pytest.mark.parametrize(
    "query", ["day__year=x", "day__year=2024&day__month=13", "day__year=99999", "day__year=-1", "p=99"]
)
def test_malformed_parameters_do_not_break_the_list(client: Client, query: str) -> None:
    row("user:1")
    assert client.get(f"{LIST}?{query}").status_code in (200, 302)
    assert client.get(f"{LIST}export/?{query}").status_code in (200, 302)


def test_a_list_that_is_cut_off_says_so(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daily_counters, "MAX_LISTED", 100)
    rows = [DailyCounter(subject=f"user:{number}", rule="a", day=DAY) for number in range(101)]
    DailyCounter.objects.bulk_create(rows[:99])
    assert "The list ends after 100 rows." not in client.get(LIST).content.decode()
    DailyCounter.objects.bulk_create(rows[99:])
    page = client.get(LIST)
    assert page.context["cl"].result_count == 100
    assert "The list ends after 100 rows." in page.content.decode()


# --- nothing is changed -----------------------------------------------------------------------------------------------


def test_nobody_can_add_change_or_delete_rows(admin: Client) -> None:
    found = row("user:1")
    assert admin.get(f"{LIST}{found.pk}/change/").status_code == 200
    assert admin.get(f"{LIST}add/").status_code == 403
    assert admin.post(f"{LIST}add/", {"subject": "user:2"}).status_code == 403
    assert admin.post(f"{LIST}{found.pk}/change/", {"allowed": 99}).status_code == 403
    assert admin.post(f"{LIST}{found.pk}/delete/", {"post": "yes"}).status_code == 403
    admin.post(LIST, {"action": "delete_selected", "_selected_action": found.pk, "post": "yes"})
    assert DailyCounter.objects.values_list("allowed", flat=True).get() == 5


# --- CSV --------------------------------------------------------------------------------------------------------------


def test_the_export_holds_the_rows_that_match(client: Client) -> None:
    for number in range(5):
        row(f"user:{number}", "search" if number % 2 else "login", refused=number)
    reply = client.get(f"{LIST}export/?rule=search&p=3&o=1")
    assert reply.streaming
    assert reply["Content-Type"] == "text/csv; charset=utf-8"
    assert reply["Content-Disposition"] == 'attachment; filename="daily-counters.csv"'
    assert table(reply) == [
        ["subject", "rule", "day", "allowed", "refused", "units"],
        ["user:1", "search", "2026-03-14", "5", "1", "5"],
        ["user:3", "search", "2026-03-14", "5", "3", "5"],
    ]
    assert f'href="{LIST}export/?rule=search"' in client.get(f"{LIST}?rule=search&o=1").content.decode()


@pytest.mark.parametrize("across", [False, True])
def test_selected_rows_are_exported(client: Client, across: bool) -> None:
    rows = [row(f"user:{number}") for number in range(4)]
    chosen = {"_selected_action": [rows[1].pk, rows[2].pk], "select_across": int(across)}
    reply = client.post(f"{LIST}?kind=user:", {"action": "export_selected", **chosen})
    subjects = [line[0] for line in table(reply)[1:]]
    assert subjects == (["user:0", "user:1", "user:2", "user:3"] if across else ["user:1", "user:2"])


def test_the_download_is_streamed_under_asgi(client: Client) -> None:
    user = User.objects.get()
    for number in range(5):
        row(f"user:{number}")

    async def fetch() -> bytes:
        await sync_to_async(forget_connection)()
        client = AsyncClient()
        await client.aforce_login(user)
        reply: Any = await client.get(f"{LIST}export/")
        assert reply.is_async
        return b"".join([part async for part in reply])

    if connection.vendor == "sqlite":  # a connection of PostgreSQL belongs to its thread
        assert asyncio.run(fetch()).count(b"user:") == 5


def test_under_asgi_each_batch_is_made_on_demand() -> None:
    made = []

    def lines() -> Iterator[str]:
        for part in "abc":
            made.append(part)
            yield part

    async def read() -> list[list[str]]:
        return [list(made) async for _ in csv_export._iterate_async(lines())]

    assert asyncio.run(read()) == [["a"], ["a", "b"], ["a", "b", "c"]]


RUN = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a spreadsheet takes for the beginning of a formula; the last four where it reads Japanese."""


@example("x;=1+1")
@example('x";"=1+1')
@example("x\t=1+1")
@example("\uff1d1+1")
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


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@x", "'@x"),
        ("\r=1", "'\r'=1"),
        ("a;=1", "a;'=1"),
        ("ip:203.0.113.9+path:/a-b", "ip:203.0.113.9+path:/a-b"),
    ],
)
def test_a_text_like_a_formula_gets_an_apostrophe(text: str, made: str) -> None:
    assert escape_formula(text) == made


def test_every_field_of_a_file_is_quoted() -> None:
    lines = "".join(csv_lines(COLUMNS, [["user:1", 'a"b', date(2026, 11, 21), 5, 0, 7]]))
    assert lines == (
        '"subject","rule","day","allowed","refused","units"\r\n"user:1","a""b","2026-11-21","5","0","7"\r\n'
    )


@given(st.text())
def test_a_file_has_a_harmless_name(text: str) -> None:
    disposition = csv_response(RequestFactory().get("/"), text, (), ())["Content-Disposition"]
    assert re.fullmatch(r'attachment; filename="[A-Za-z0-9_-]{1,80}\.csv"', disposition)


def several() -> Iterator[DailyCounter]:
    for number in range(60):
        subject, day = f"user:{number % 5}", DAY + timedelta(days=number // 15)
        yield DailyCounter(subject=subject, rule=f"rule-{number // 5 % 3}", day=day, allowed=number)


@pytest.mark.parametrize("order", [NEWEST, BY_SUBJECT])
@pytest.mark.parametrize("size", [1, 7, 60, 61])
def test_batches_bring_each_row_once_in_order(order: tuple[str, ...], size: int) -> None:
    DailyCounter.objects.bulk_create(several())
    expected = list(DailyCounter.objects.order_by(*order).values_list(*COLUMNS))
    assert list(rows_in_order(DailyCounter.objects.all(), order, size)) == expected


def test_rows_added_during_an_export_double_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    DailyCounter.objects.bulk_create(several())
    found = rows_in_order(DailyCounter.objects.all(), NEWEST, 10)
    first = [next(found) for _ in range(10)]
    row("user:0", day=DAY + timedelta(days=9))
    rest = list(found)
    assert len({*first, *rest}) == len(first) + len(rest) == 60


@pytest.mark.thorough("scale")
def test_a_download_takes_constant_memory() -> None:
    """Twenty times the rows, the same memory."""
    DailyCounter.objects.bulk_create(
        DailyCounter(subject=f"user:{number}", rule="a", day=DAY) for number in range(10_000)
    )

    def peak(most: int) -> int:
        tracemalloc.start()
        for _ in csv_lines(COLUMNS, rows_in_order(DailyCounter.objects.filter(pk__lte=most), NEWEST, 500), 500):
            pass
        measured = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return measured

    first = DailyCounter.objects.order_by("pk").values_list("pk", flat=True)[0]
    peak(first + 499)
    assert peak(first + 9_999) < 2 * peak(first + 499)


# --- names ------------------------------------------------------------------------------------------------------------


def test_subjects_of_a_kind_are_found_by_their_beginning() -> None:
    subjects = ["a", "a:", "a:b", "a:\uffff", "a:\U0010ffff", "a;", "A:", "b", "a%", "a_", "\ud7ff", "\ue000x"]
    for subject in subjects:
        row(subject)
    found = DailyCounter.objects.filter(of_kind("a:", "default")).values_list("subject", flat=True)
    assert sorted(found) == ["a:", "a:b", "a:\uffff", "a:\U0010ffff"]


def test_postgresql_compares_names_by_bytes() -> None:
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT column_name FROM information_schema.columns "
                "WHERE table_name = 'django_quota_dailycounter' AND collation_name = 'C'"
            )
            assert {name for (name,) in cursor.fetchall()} == {"subject", "rule"}


def test_users_are_found_by_key_name_or_email() -> None:
    anna, bert = User.objects.create_user("anna", "a@example.org"), User.objects.create_user("annabel")
    search = partial(find_users, prefix=True)
    assert search("anna") == search(str(anna.pk)) == search("ANNA") == search("a@ex") == [anna]
    assert {user.pk for user in search("ann")} == {anna.pk, bert.pk}
    assert search("nobody") == search("") == search("9" * 40) == []
    assert find_users("anna") == find_users("A@example.org") == [anna]
    assert find_users("ann") == find_users("a@ex") == []


def test_user_names_take_at_most_one_query() -> None:
    anna = User.objects.create_user("anna")
    subjects = [f"user:{anna.pk}", "user:999", "user:x", f"user:{'9' * 40}", "ip:203.0.113.9", "user:1+ip:1"]
    with CaptureQueriesContext(connection) as queries:
        assert user_names(subjects) == {f"user:{anna.pk}": "anna"}
        assert user_names(["global"]) == {}
    assert len(queries) == 1
