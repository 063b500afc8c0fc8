"""Daily counters in the admin on a million rows: each page takes a few queries, and reads its rows and not the table.

The tests count work instead of time: the instructions of SQLite's virtual machine, or the rows that PostgreSQL reads.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_quota.admin.csv_export import BATCH_SIZE
from django_quota.admin.daily_counters import BY_SUBJECT, COLUMNS, MAX_LISTED, NEWEST, _behind
from django_quota.models import DailyCounter
from django_quota.testing import freeze
from tests.support.databases import default_database, migrate, sqlite_database
from tests.support.selection import thorough

pytestmark = pytest.mark.thorough("scale")

LIST = "/admin/django_quota/dailycounter/"
USAGE = f"{LIST}usage/"
NOW = 1_763_726_400 * 1_000_000
"""2025-11-21, 12:00 UTC."""

RULES, DAYS, SUBJECTS = 4, 500, 500
ROWS = RULES * DAYS * SUBJECTS
TABLE = "django_quota_dailycounter"

MAX_STEPS = 1_200_000
"""Instructions of SQLite a page: to go over a million rows, or over their index, takes more than four million."""

MAX_ROWS = 70_000
"""Rows that PostgreSQL reads: ten thousand to count them, as many on the way to the last page; or those of a search."""

NUMBER = f"(n / {RULES} % {SUBJECTS})"
SUBJECT = f"CASE {NUMBER} WHEN 0 THEN 'ip:203.0.113.9' ELSE 'user:' || {NUMBER} END"
FILL = {
    "sqlite": f"""
        WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < {ROWS - 1})
        INSERT INTO {TABLE} (subject, rule, day, allowed, refused, units, token)
        SELECT {SUBJECT}, 'rule-' || (n % {RULES}),
            date('2025-11-20', '-' || ({DAYS - 1} - n / {RULES * SUBJECTS}) || ' days'),
            n % 97, n % 7, n % 97, 0 FROM numbers""",
    "postgresql": f"""
        INSERT INTO {TABLE} (subject, rule, day, allowed, refused, units, token)
        SELECT {SUBJECT}, 'rule-' || (n % {RULES}), date '2025-11-20' - ({DAYS - 1} - n / {RULES * SUBJECTS}),
            n % 97, n % 7, n % 97, 0 FROM generate_series(0, {ROWS - 1}) AS n""",
}
"""A million rows: 500 subjects, one of them an address, 500 days and 4 rules."""


def fill(vendor: str) -> None:
    """Add the rows by one statement, and the indexes after them, which is quicker."""
    indexes = DailyCounter._meta.indexes
    with connection.schema_editor() as editor:
        for index in indexes:
            editor.remove_index(DailyCounter, index)
    with connection.cursor() as cursor:
        cursor.execute(FILL[vendor])
    with connection.schema_editor() as editor:
        for index in indexes:
            editor.add_index(DailyCounter, index)
    if vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"VACUUM ANALYZE {TABLE}")  # as its autovacuum does soon
    User.objects.create_superuser("admin")
    User.objects.bulk_create(
        User(pk=number, username=f"anna{number}", email=f"anna{number}@example.org") for number in range(2, 60)
    )


@pytest.fixture(scope="module", params=["sqlite", thorough("postgresql", "postgresql")])
def made(request: pytest.FixtureRequest, tmp_path_factory: Any, django_db_blocker: Any) -> dict[str, Any]:
    """A database of its own with a million rows, made once; its settings."""
    if request.param == "sqlite":
        template = request.getfixturevalue("sqlite")
        settings = sqlite_database(
            Path(shutil.copy(template["NAME"], tmp_path_factory.mktemp("million") / "rows.sqlite3"))
        )
    else:
        server = request.getfixturevalue("postgres")
        settings = {**server, "NAME": "million"}
        with django_db_blocker.unblock(), default_database(server), connection.cursor() as cursor:
            cursor.execute("DROP DATABASE IF EXISTS million")
            cursor.execute("CREATE DATABASE million")
        with django_db_blocker.unblock():
            migrate(settings)
    with django_db_blocker.unblock(), default_database(settings):
        fill(request.param)
    return settings


@pytest.fixture
def million(made: dict[str, Any], django_db_blocker: Any, memory_store: None, settings: Any) -> Iterator[None]:
    """The million rows as the default database, at noon of the day after the last one."""
    settings.QUOTA = {**settings.QUOTA, "TIME_ZONE": "UTC"}
    with django_db_blocker.unblock(), default_database(made), freeze(NOW):
        yield


@pytest.fixture
def client(million: None) -> Client:
    client = Client()
    client.force_login(User.objects.get(username="admin"))
    return client


# --- how much is read -------------------------------------------------------------------------------------------------


@dataclass
class Work:
    """What a page took."""

    queries: int = 0
    read: int = 0
    """Instructions, or rows."""
    sql: tuple[str, ...] = ()

    @property
    def is_little(self) -> bool:
        return self.read <= (MAX_STEPS if connection.vendor == "sqlite" else MAX_ROWS)


@contextmanager
def working() -> Iterator[Work]:
    """Count what the block takes."""
    work = Work()
    connection.ensure_connection()
    if connection.vendor == "sqlite":
        connection.connection.set_progress_handler(lambda: _step(work), 1_000)
    try:
        with CaptureQueriesContext(connection) as captured:
            yield work
    finally:
        if connection.vendor == "sqlite":
            connection.connection.set_progress_handler(None, 0)
    work.queries = len(captured)
    work.sql = tuple(query["sql"] for query in captured if TABLE in query["sql"])
    if connection.vendor == "postgresql":
        work.read = sum(map(_rows_read, work.sql))


def _step(work: Work) -> None:
    work.read += 1_000


def _rows_read(sql: str) -> int:
    """Return how many rows, or entries of indexes, PostgreSQL reads for a query: by running it again, explained."""
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}")
        (plan,) = cursor.fetchone()
    (top,) = json.loads(plan) if isinstance(plan, str) else plan
    return sum(_leaves(top["Plan"]))


def _leaves(node: dict[str, Any]) -> Iterator[int]:
    inner = node.get("Plans", [])
    for child in inner:
        yield from _leaves(child)
    if node["Node Type"].endswith("Scan") and node.get("Relation Name", TABLE) == TABLE:
        rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        yield int(rows * node["Actual Loops"])


def plan(sql: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {'QUERY PLAN ' if connection.vendor == 'sqlite' else ''}{sql}")
        return "\n".join(str(row[-1]) for row in cursor.fetchall())


def test_the_measure_detects_a_full_scan(million: None) -> None:
    """A count of all rows, Django's own levels of days, rules found by DISTINCT: each is far beyond the bound."""
    for dear in (
        lambda: DailyCounter.objects.filter(subject__startswith="user:").count(),
        lambda: list(DailyCounter.objects.dates("day", "year")),
        lambda: list(DailyCounter.objects.values_list("rule", flat=True).distinct().order_by("rule")),
        lambda: list(DailyCounter.objects.order_by("-refused")[:10]),
    ):
        with working() as work:
            dear()
        assert not work.is_little


# --- the list ---------------------------------------------------------------------------------------------------------

PAGES = {
    "the list": ("", 7),
    "its last page": (f"?p={MAX_LISTED // 100}", 7),
    "by rule": ("?rule=rule-2", 7),
    "by rule, its last page": ("?rule=rule-2&p=100", 7),
    "by a rule that is not": ("?rule=none", 6),
    "by kind": ("?kind=user:", 7),
    "by kind, its last page": ("?kind=user:&p=100", 7),
    "by a rare kind": ("?kind=ip:", 6),
    "by a kind without rows": ("?kind=post.", 6),
    "by kind and rule": ("?kind=user:&rule=rule-1", 7),
    "a year": ("?day__year=2025", 7),
    "a year, its last page": ("?day__year=2025&p=100", 7),
    "a month": ("?day__year=2025&day__month=5", 7),
    "a day": ("?day__year=2025&day__month=5&day__day=17", 5),
    "a day, the most refused first": ("?day__year=2025&day__month=5&day__day=17&o=-6", 5),
    "a year and a rule": ("?day__year=2025&rule=rule-3", 7),
    "a month and a kind": ("?day__year=2025&day__month=5&kind=user:", 7),
    "search by subject": ("?q=user:42", 7),
    "search by user": ("?q=anna4", 8),
    "search by e-mail": ("?q=anna42@example.org", 8),
    "search by rule": ("?q=rule-1", 9),
    "search in vain": ("?q=nobody", 8),
    "search in a month": ("?q=user:42&day__year=2025&day__month=5", 7),
    "by day": ("?o=1", 7),
    "by subject": ("?o=2", 6),
    "by subject, backwards": ("?o=-2", 7),
    "by what no index holds": ("?o=-6", 7),
}
"""Queries, the two of Django's login among them."""


@pytest.mark.parametrize(("query", "queries"), PAGES.values(), ids=PAGES.keys())
def test_a_page_of_the_list_reads_a_page(client: Client, query: str, queries: int) -> None:
    with working() as work:
        reply = client.get(LIST + query)
    assert reply.status_code == 200
    assert work.queries == queries, work.sql
    assert work.is_little, (work.read, [(sql, plan(sql)) for sql in work.sql])


@pytest.mark.parametrize(
    "query",
    ["", "?o=1", "?o=-1", "?o=2", "?o=-2", "?rule=rule-1&o=1", "?rule=rule-1&o=-1", "?kind=user:", "?kind=user:&o=-2"],
)
def test_an_index_serves_every_order_to_its_last_column(client: Client, query: str) -> None:
    """Where it holds a part of it only, a planner may sort all rows instead: SQLite 3.53 does."""
    with working() as work:
        assert client.get(LIST + query).status_code == 200
    plans = [plan(sql) for sql in work.sql]
    assert not [found for found in plans if "TEMP B-TREE" in found or "Sort" in found]


def test_rows_are_counted_up_to_a_bound(client: Client) -> None:
    reply = client.get(LIST)
    assert reply.context["cl"].result_count == MAX_LISTED
    assert "The list ends after 10000 rows." in reply.content.decode()


def test_nothing_is_sorted_in_the_orders_of_the_list(million: None) -> None:
    """Nothing is sorted: the plan has no step that sorts."""
    for rows in (
        DailyCounter.objects.all(),
        DailyCounter.objects.filter(rule="rule-1"),
        DailyCounter.objects.filter(rule="rule-1", day__range=(date(2025, 1, 1), date(2025, 12, 31))),
        DailyCounter.objects.filter(day__range=(date(2025, 5, 1), date(2025, 5, 31))),
    ):
        found = rows.order_by("-day", "subject", "rule")[:100].explain()
        assert "django_quota_daily_" in found
        assert "TEMP B-TREE" not in found
        assert "Sort" not in found


# --- the usage page and the downloads ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    ["subject=user:42", "subject=user:42&rule=rule-1", "subject=user:42&year=2024&days=year", "subject=user:nobody"],
)
def test_the_usage_page_reads_the_rows_of_its_subject(client: Client, query: str) -> None:
    with working() as work:
        assert client.get(f"{USAGE}?{query}").status_code == 200
    assert work.queries <= 9, work.sql
    assert work.is_little, (work.read, [(sql, plan(sql)) for sql in work.sql])


@pytest.mark.parametrize("query", ["", "?rule=rule-1", "?kind=user:", "?q=rule-1", "?day__year=2025"])
def test_a_download_starts_at_once(client: Client, query: str) -> None:
    with working() as work:
        reply = client.get(f"{LIST}export/{query}")
        lines = iter(reply)
        assert [next(lines).count(b"\n") for _ in range(3)] == [1, BATCH_SIZE, BATCH_SIZE]
    reply.close()
    assert work.queries <= 18, work.sql
    assert work.is_little, (work.read, [(sql, plan(sql)) for sql in work.sql])


@pytest.mark.parametrize("order", [NEWEST, BY_SUBJECT])
def test_a_late_batch_reads_no_more_than_the_first(million: None, order: tuple[str, ...]) -> None:
    last = {"subject": "user:300", "day": date(2024, 12, 24), "rule": "rule-2"}
    with working() as work:
        page = list(
            DailyCounter.objects.order_by(*order).filter(_behind(order, last)).values_list(*COLUMNS)[:BATCH_SIZE]
        )
    assert len(page) == BATCH_SIZE
    assert work.read < (100_000 if connection.vendor == "sqlite" else 2 * BATCH_SIZE)


def test_a_download_holds_every_row_once_in_constant_memory(client: Client) -> None:
    """A quarter of a million rows, of which no more than a page is ever held."""
    reply = client.get(f"{LIST}export/?rule=rule-1")
    longest = count = 0
    seen = set()
    for part in reply:
        longest = max(longest, len(part))
        for line in part.decode().splitlines():
            seen.add(hash(line))
            count += 1
    assert count == len(seen) == ROWS // RULES + 1
    assert longest < BATCH_SIZE * 60
