"""Daily counters in the admin: the list, its search and filters, and the CSV export."""

import asyncio
import csv
import io
import re
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.db.models import Q
from django.test import AsyncRequestFactory, Client, RequestFactory
from hypothesis import example, given
from hypothesis import strategies as st

from django_quota.admin import daily_counters
from django_quota.admin.daily_counters import BY_SUBJECT, COLUMNS, NEWEST, of_kind, rows_in_order
from django_quota.features.usage.spreadsheets import csv_lines, csv_response, escape_formula
from django_quota.models import DailyCounter
from tests.admin.operators import operator, superuser
from tests.admin.texts import messages_of

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


def test_a_row_shows_its_counts_with_labels(client: Client) -> None:
    row("user:1", allowed=1_200_000, refused=400_000)

    page = client.get(LIST).content.decode()

    shown = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    assert "allowed 1,200,000 refused 400,000 25.0 % units 1,200,000" in shown, "with labels, for cards"


@pytest.fixture
def anna(database: Any) -> User:
    """A user who has a row."""
    user = User.objects.create_user("anna", email="anna@example.org")
    row(f"user:{user.pk}")
    return user


def test_a_row_links_to_the_usage_of_its_user_by_name(anna: User) -> None:
    client = operator("view_dailycounter", "auth.view_user")

    page = client.get(LIST).content.decode()

    assert f'href="{LIST}usage/?subject=user%3A{anna.pk}">anna (user:{anna.pk})</a></' in page


@pytest.mark.parametrize("text", ["anna", "anna@example"])
def test_a_search_finds_a_user_by_name_or_address(anna: User, text: str) -> None:
    client = operator("view_dailycounter", "auth.view_user")

    assert listed(client, f"?q={text}") == [(f"user:{anna.pk}", "search")]


def test_names_of_users_are_hidden_from_those_who_may_not_see_users(client: Client, anna: User) -> None:
    assert "anna" not in client.get(LIST).content.decode()


@pytest.mark.parametrize("text", ["anna", "anna@example.org"])
def test_a_search_by_name_finds_nothing_for_those_who_may_not_see_users(client: Client, anna: User, text: str) -> None:
    assert listed(client, f"?q={text}") == []


@pytest.fixture
def four_rows(client: Client, settings: Any) -> None:
    """Rows of three days, one of them of a rule that is not configured."""
    settings.QUOTA = {**settings.QUOTA, "RULES": {"login": "5/m", "search": "5/m"}}
    row("user:2", "search", refused=1)
    row("user:1", "login", DAY + timedelta(days=1))
    row("user:3", "search", refused=2)
    row("key.app:x", "of-a-call", DAY + timedelta(days=2))


def subjects(client: Client, query: str) -> list[str]:
    return [subject.removeprefix("user:") for subject, _ in listed(client, query)]


@pytest.mark.usefixtures("four_rows")
@pytest.mark.parametrize("query", ["", "?o=-5", "?o=x", "?kind=nonsense"])
def test_rows_of_all_days_are_newest_first(client: Client, query: str) -> None:
    assert subjects(client, query) == ["key.app:x", "1", "2", "3"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        pytest.param("?kind=user:", ["1", "1", "2"], id="a kind, by subject"),
        pytest.param("?kind=user:&rule=search", ["1", "2", "1"], id="a kind in a rule, the newest first"),
        pytest.param("?kind=user:&day__year=2026", ["1", "2", "1"], id="a kind in a year, the newest first"),
        pytest.param("", ["1", "2", "1"], id="all, the newest first"),
        pytest.param("?kind=nonsense", ["1", "2", "1"], id="no kind, the newest first"),
    ],
)
def test_rows_of_a_kind_are_by_subject_unless_a_time_or_a_rule_is_chosen(
    client: Client, query: str, found: list[str]
) -> None:
    for subject, days in (("user:2", 1), ("user:1", 2), ("user:1", 0)):
        row(subject, day=DAY + timedelta(days=days))

    assert subjects(client, query) == found


@pytest.mark.parametrize(
    ("query", "columns"),
    [("", 0), ("?day__year=2026&day__month=3", 0), ("?day__year=2026&day__month=3&day__day=14", 5)],
    ids=["all rows", "a month", "a day"],
)
def test_columns_can_be_sorted_only_for_one_day(client: Client, query: str, columns: int) -> None:
    row("user:1")

    assert client.get(LIST + query).content.decode().count('<th scope="col" class="sortable') == columns


def test_a_row_without_checks_has_no_share(client: Client) -> None:
    row("user:1", allowed=0)

    shown = client.get(LIST).content.decode()

    assert '<td class="field-share_refused">-</td>' in shown


@pytest.mark.usefixtures("four_rows")
def test_rows_of_a_day_can_be_sorted(client: Client) -> None:
    assert subjects(client, "?day__year=2026&day__month=3&day__day=14&o=-5") == ["3", "2"]


@pytest.mark.usefixtures("four_rows")
@pytest.mark.parametrize(
    ("query", "found"),
    [
        pytest.param("?rule=login", ["1"], id="a rule"),
        pytest.param("?rule=of-a-call", ["key.app:x"], id="a rule that is not configured"),
        pytest.param("?kind=key.", ["key.app:x"], id="a kind of subject"),
        pytest.param("?kind=user:&rule=search", ["2", "3"], id="a kind of subject in a rule"),
    ],
)
def test_rows_can_be_filtered(client: Client, query: str, found: list[str]) -> None:
    assert subjects(client, query) == found


@pytest.mark.usefixtures("four_rows")
def test_a_filter_by_an_impossible_name_is_dropped(client: Client) -> None:
    assert client.get(LIST, {"rule": "a\0b"}).status_code == 302


@pytest.mark.usefixtures("four_rows")
def test_the_configured_rules_can_be_chosen(client: Client) -> None:
    page = client.get(LIST).content.decode()

    assert [f"?rule={rule}" in page for rule in ("login", "search", "of-a-call")] == [True, True, False]


@pytest.mark.usefixtures("four_rows")
@pytest.mark.parametrize("chosen", ["of-a-call", "never counted"])
def test_the_chosen_rule_is_in_the_list_of_rules_once(client: Client, chosen: str, settings: Any) -> None:
    page = client.get(LIST, {"rule": chosen}).context["cl"]

    (offered,) = [list(spec.choices(page)) for spec in page.filter_specs if spec.parameter_name == "rule"]
    names = [choice["display"] for choice in offered]
    assert [choice["display"] for choice in offered if choice["selected"]] == [chosen]
    assert [names.count(name) for name in ("login", "search", "limited")] == [1, 1, 1]
    assert names[1:] == sorted(names[1:])


@pytest.fixture
def search_bot(admin: Client, settings: Any) -> str:
    """The subject of a user whose name begins as a rule; it has a row, so have two addresses."""
    settings.QUOTA = {**settings.QUOTA, "RULES": {"search": "5/m"}}
    subject = f"user:{User.objects.create_user('search-bot', 'bot@example.org').pk}"
    row(subject, "login")
    row("ip:203.0.113.9", "search")
    row("ip:2001:db8::/64", "transfer")
    return subject


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("search", "ip:203.0.113.9", id="a configured rule goes first"),
        pytest.param("search-", "user", id="the beginning of a user's name"),
        pytest.param("bot@example.org", "user", id="a user's e-mail"),
        pytest.param("2001:DB8::7", "ip:2001:db8::/64", id="an address in a network"),
        pytest.param("transfer", "ip:2001:db8::/64", id="a rule that is not configured"),
    ],
)
def test_a_search_takes_what_one_can_type(admin: Client, search_bot: str, text: str, found: str) -> None:
    expected = search_bot if found == "user" else found

    assert [subject for subject, _ in listed(admin, f"?q={quote(text)}")] == [expected]


@pytest.mark.usefixtures("search_bot")
@pytest.mark.parametrize("text", ["nobody", "ip:203.0.113", "post:phone=", "100%25_", "transf"])
def test_a_search_finds_no_part_of_another_subject_or_rule(admin: Client, text: str) -> None:
    assert listed(admin, f"?q={quote(text)}") == []


@pytest.mark.parametrize("number", [20, 21])
def test_a_search_says_that_it_shows_only_the_first_subjects(admin: Client, number: int) -> None:
    User.objects.bulk_create(User(username=f"many{each}") for each in range(number))

    answer = admin.get(f"{LIST}?q=many")

    assert messages_of(answer) == [
        ("info", "This shows only the first 20 subjects that begin so. Type more to see others.")
    ]


def test_a_search_that_shows_all_subjects_does_not_say_so(admin: Client) -> None:
    User.objects.bulk_create(User(username=f"many{number}") for number in range(19))

    assert "only the first" not in admin.get(f"{LIST}?q=many").content.decode()


def test_a_search_finds_a_subject_before_a_rule_of_the_same_name(admin: Client) -> None:
    row("batch", "search")
    row("user:1", "batch")

    assert listed(admin, "?q=batch") == [("batch", "search")]


def test_no_number_of_results_stands_beside_the_search_field(admin: Client) -> None:
    for subject in ("user:1", "user:2"):
        row(subject)

    page = admin.get(f"{LIST}?q=user:1").content.decode()

    assert re.findall(r"\d+ results?", page) == []


def test_a_search_for_nothing_shows_all_rows(admin: Client) -> None:
    row("user:1")

    assert listed(admin, "?q=+") == [("user:1", "search")]


def date_choices(client: Client, query: str = "") -> list[str]:
    dates = client.get(LIST + query).context["cl"].date_choices()
    return [choice["title"] for choice in dates.get("choices", [])]


@pytest.mark.parametrize(
    ("query", "choices"),
    [
        pytest.param("", ["2024", "2025", "2026"], id="all years"),
        pytest.param("?day__year=2024", ["February 2024"], id="a year"),
        pytest.param("?day__year=2024&day__month=2", ["February 27"], id="a month"),
        pytest.param("?day__year=2024&day__month=2&day__day=27", ["February 27"], id="a day"),
        pytest.param("?day__year=2025", [], id="a year without rows"),
    ],
)
def test_dates_to_choose_go_from_the_first_row_to_the_last(client: Client, query: str, choices: list[str]) -> None:
    row("user:1", day=date(2024, 2, 27))
    row("user:1", day=date(2026, 1, 2))

    assert date_choices(client, query) == choices


@pytest.mark.parametrize(
    ("query", "choices"),
    [
        pytest.param("?day__year=2024", ["November 2024", "December 2024"], id="months between"),
        pytest.param("?day__year=2024&day__month=12", ["December 30", "December 31"], id="days between"),
        pytest.param("?day__year=2024&day__month=11", ["November 30"], id="a day before a later month"),
        pytest.param("?day__month=12", ["2024"], id="a month of no year"),
        pytest.param("?day__month=12&day__day=30", ["2024"], id="a day of no year"),
        pytest.param("?day__year=2024&day__day=30", ["November 2024", "December 2024"], id="a day of no month"),
    ],
)
def test_dates_to_choose_end_with_the_last_day_of_a_year(client: Client, query: str, choices: list[str]) -> None:
    for day in (date(2024, 11, 30), date(2024, 12, 30), date(2024, 12, 31)):
        row("user:1", day=day)

    assert date_choices(client, query) == choices


@pytest.mark.parametrize("query", ["", "&day__month=11", "&day__month=11&day__day=30"], ids=["year", "month", "day"])
def test_dates_to_choose_begin_with_a_capital(client: Client, query: str, settings: Any) -> None:
    settings.LANGUAGE_CODE = "es"  # which writes months small
    row("user:1", day=date(2024, 11, 30))

    dates = client.get(f"{LIST}?day__year=2024{query}").context["cl"].date_choices()

    titles = [choice["title"] for choice in dates["choices"]] + [dates["back"]["title"]]
    assert [title for title in titles if title[0].islower()] == []


@pytest.mark.parametrize(
    ("vendor", "condition"),
    [
        pytest.param("sqlite", Q(subject__gte="user:", subject__lte="user:\U0010ffff"), id="SQLite"),
        pytest.param("postgresql", Q(subject__gte="user:", subject__lte="user:\U0010ffff"), id="PostgreSQL"),
        pytest.param("mysql", Q(subject__startswith="user:"), id="MySQL"),
    ],
)
def test_a_kind_is_a_range_of_an_index_where_a_database_compares_bytes(
    vendor: str, condition: Q, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daily_counters, "connections", {"default": Mock(vendor=vendor)})

    assert of_kind("user:", "default") == condition


def test_at_most_fifty_years_can_be_chosen(client: Client) -> None:
    for year in (1970, 2026):
        row("user:1", day=date(year, 1, 1))

    assert date_choices(client) == [str(year) for year in range(1977, 2027)]


@pytest.mark.parametrize(
    ("query", "link"),
    [
        pytest.param("", "?day__year=2024", id="a year"),
        pytest.param("?day__year=2024", "?day__month=2&day__year=2024", id="a month"),
        pytest.param("?day__year=2024&day__month=2", "?day__day=27&day__month=2&day__year=2024", id="a day"),
        pytest.param("?rule=search&day__year=2024", "?day__month=2&day__year=2024&rule=search", id="a month of a rule"),
    ],
)
def test_a_date_leads_to_its_rows(client: Client, query: str, link: str) -> None:
    row("user:1", day=date(2024, 2, 27))

    (choice,) = client.get(LIST + query).context["cl"].date_choices()["choices"]

    assert choice["link"] == link


def test_without_rows_there_are_no_dates_to_choose(client: Client) -> None:
    assert date_choices(client) == []


def test_a_chosen_day_shows_its_rows(client: Client) -> None:
    row("user:1", day=date(2024, 2, 27))
    row("user:2", day=date(2026, 1, 2))

    assert listed(client, "?day__year=2024&day__month=2&day__day=27") == [("user:1", "search")]


@pytest.mark.parametrize(
    ("query", "back"),
    [
        pytest.param("", None, id="all years"),
        pytest.param("day__year=2024", ("All dates", "?"), id="a year"),
        pytest.param("day__year=2024&rule=search", ("All dates", "?rule=search"), id="a year of a rule"),
        pytest.param("day__year=2024&day__month=2", ("2024", "?day__year=2024"), id="a month"),
        pytest.param(
            "day__year=2024&day__month=2&day__day=27",
            ("February 2024", "?day__month=2&day__year=2024"),
            id="a day",
        ),
    ],
)
def test_dates_lead_back_to_a_longer_time(query: str, back: tuple[str, str] | None, client: Client) -> None:
    row("user:1", day=date(2024, 2, 27))
    row("user:1", day=date(2026, 1, 2))

    dates = client.get(f"{LIST}?{query}").context["cl"].date_choices()

    assert (dates["back"] and (dates["back"]["title"], dates["back"]["link"])) == back


def test_a_list_that_is_cut_off_says_so(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daily_counters, "MAX_LISTED", 10)
    rows = [DailyCounter(subject=f"user:{number}", rule="a", day=DAY) for number in range(11)]
    DailyCounter.objects.bulk_create(rows[:9])
    words = "To see others, choose a day, a rule or a subject, or export all of them."
    assert "The list ends after 10 rows." not in client.get(LIST).content.decode()
    DailyCounter.objects.bulk_create(rows[9:])
    page = client.get(LIST)
    assert page.context["cl"].result_count == 10
    assert f"The list ends after 10 rows. {words}" in page.content.decode()


def test_the_only_action_on_selected_rows_is_their_export(client: Client) -> None:
    row("user:1")

    choices = client.get(LIST).context["action_form"].fields["action"].choices

    assert [str(words) for name, words in choices if name] == ["Export selected daily counters as CSV"]


def test_a_page_has_a_hundred_rows(client: Client) -> None:
    DailyCounter.objects.bulk_create(DailyCounter(subject=f"user:{each}", rule="a", day=DAY) for each in range(101))

    assert len(listed(client, "?all=1")) == 100


def test_the_list_counts_no_rows_for_its_filters(client: Client) -> None:
    assert not client.get(f"{LIST}?_facets=True").context["cl"].add_facets


def test_the_list_says_what_its_search_and_its_filters_take(client: Client) -> None:
    row("user:1")

    page = client.get(LIST).context["cl"]

    words = "The beginning of a subject, such as user:42; a user's name or e-mail address; or a rule."
    assert page.search_help_text == words
    assert [spec.title for spec in page.filter_specs] == ["rule", "kind of subject"]


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


def test_an_export_by_a_wrong_filter_leads_to_the_list(client: Client) -> None:
    assert client.get(f"{LIST}export/?day__year=x")["Location"] == f"{LIST}?e=1"


def test_an_export_of_a_kind_is_by_subject(client: Client) -> None:
    for subject, days in (("user:2", 1), ("user:1", 2), ("user:1", 0)):
        row(subject, day=DAY + timedelta(days=days))

    reply: Any = client.get(f"{LIST}export/?kind=user:")

    lines = list(csv.reader(io.StringIO(b"".join(reply).decode(), newline="")))[1:]
    assert [(line[0], line[2]) for line in lines] == [
        ("user:1", "2026-03-14"),
        ("user:1", "2026-03-16"),
        ("user:2", "2026-03-15"),
    ]


def test_no_more_rows_are_exported_than_the_list_counts(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daily_counters, "MAX_LISTED", 2)
    rows = [row(f"user:{number}") for number in range(3)]

    chosen = {"_selected_action": [each.pk for each in rows], "action": "export_selected"}
    reply: Any = client.post(LIST, chosen)

    assert len(b"".join(reply).splitlines()) == 3


def test_the_list_links_to_the_export_of_what_it_shows(client: Client) -> None:
    row("user:1", "search")

    assert f'href="{LIST}export/?rule=search"' in client.get(f"{LIST}?rule=search&o=1&p=1&e=1").content.decode()


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


SEPARATORS = ",;|\t"
"""A spreadsheet in German, French or Spanish takes the semicolon."""


@example("x;=1+1")
@example('x";"=1+1')
@given(st.text("ab;,|\t\r\n\"' =+-@\uff1d1") | st.text())
def test_no_spreadsheet_runs_a_cell_whatever_its_separator(text: str) -> None:
    lines = "".join(csv_lines(["subject", "rule", "allowed"], [[text, text, 7]]))

    cells = {
        separator: [each for row in csv.reader(io.StringIO(lines, newline=""), delimiter=separator) for each in row]
        for separator in SEPARATORS
    }
    assert [(key, each) for key, found in cells.items() for each in found if each.startswith(RUN)] == []


@example("x;=1+1")
@given(st.text("ab;,|\t\r\n\"' =+-@\uff1d1") | st.text())
def test_a_cell_is_read_back_as_it_was_escaped(text: str) -> None:
    made = escape_formula(text)
    made.encode()

    lines = "".join(csv_lines(["subject", "rule", "allowed"], [[text, text, 7]]))

    (_, read) = csv.reader(io.StringIO(lines, newline=""))
    assert read == [made, made, "7"]


@pytest.mark.parametrize(
    ("value", "escaped"),
    [
        *(pytest.param(f"{each}1", f"'{each}1", id=f"begins with {each!r}") for each in RUN),
        *(pytest.param(f"a{each}=1", f"a{each}'=1", id=f"a formula after {each!r}") for each in ';,|\t\r\n"'),
        pytest.param("user:a-b+c@example.org=1", "user:a-b+c@example.org=1", id="characters within a word"),
        pytest.param("a; =1", "a; =1", id="a space before a character"),
        pytest.param("\ud800", "\\ud800", id="half a character"),
        pytest.param(-7, -7, id="a number"),
        pytest.param(None, None, id="nothing"),
    ],
)
def test_an_apostrophe_keeps_a_formula_from_running(value: Any, escaped: Any) -> None:
    assert escape_formula(value) == escaped


def test_a_file_is_made_in_parts_of_so_many_rows() -> None:
    parts = list(csv_lines(["number"], ([number] for number in range(5)), 2))

    assert parts == ['"number"\r\n', '"0"\r\n"1"\r\n', '"2"\r\n"3"\r\n', '"4"\r\n']


def test_a_part_has_two_thousand_rows() -> None:
    parts = csv_lines(["number"], ([number] for number in range(2_001)))

    assert [part.count("\r\n") for part in parts] == [1, 2_000, 1]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        pytest.param("user:7, 2026", "user-7-2026.csv", id="other characters"),
        pytest.param("-_a_-", "a.csv", id="dashes at the ends"),
        pytest.param("x" * 81, f"{'x' * 80}.csv", id="a long name"),
        pytest.param("\u00e9", "usage.csv", id="nothing is left"),
    ],
)
def test_a_file_is_named(name: str, file: str) -> None:
    reply = csv_response(RequestFactory().get("/"), name, (), ())

    assert reply["Content-Disposition"] == f'attachment; filename="{file}"'


def test_no_cache_keeps_a_file() -> None:
    assert csv_response(RequestFactory().get("/"), "a", (), ())["Cache-Control"] == "private, no-store"


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


def test_rows_added_during_an_export_repeat_no_row() -> None:
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
