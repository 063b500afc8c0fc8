"""Daily counters in the admin on a million rows: each page takes a few queries, and reads its rows, not the table."""

import shutil
from collections.abc import Callable, Iterator
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

from django_quota.admin.daily_counters import BY_SUBJECT, COLUMNS, MAX_LISTED, NEWEST, comes_after
from django_quota.features.usage.spreadsheets import ROWS_PER_CHUNK
from django_quota.models import DailyCounter
from django_quota.testing import freeze
from tests.support.databases import default_database, sqlite_database

pytestmark = pytest.mark.thorough("scale")

LIST = "/admin/django_quota/dailycounter/"
NOW = 1_763_726_400 * 1_000_000
"""2025-11-21, 12:00 UTC."""

RULES, DAYS, SUBJECTS = 4, 500, 500
ROWS = RULES * DAYS * SUBJECTS
MAX_STEPS = 1_200_000
"""Instructions a page: to go over a million rows, or over their index, takes more than four million."""

NUMBER = f"(n / {RULES} % {SUBJECTS})"
FILL = f"""
    WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < {ROWS - 1})
    INSERT INTO django_quota_dailycounter (subject, rule, day, allowed, refused, units, token, tier)
    SELECT CASE {NUMBER} WHEN 0 THEN 'ip:203.0.113.9' ELSE 'user:' || {NUMBER} END, 'rule-' || (n % {RULES}),
        date('2025-11-20', '-' || ({DAYS - 1} - n / {RULES * SUBJECTS}) || ' days'), n % 97, n % 7, n % 97, 0, ''
    FROM numbers"""
"""A million rows: 500 subjects, one of them an address, 500 days and 4 rules."""


@pytest.fixture(scope="module")
def made(sqlite: dict[str, Any], tmp_path_factory: Any, django_db_blocker: Any) -> dict[str, Any]:
    """A database of its own with a million rows, made once; its settings."""
    settings = sqlite_database(Path(shutil.copy(sqlite["NAME"], tmp_path_factory.mktemp("million") / "rows.sqlite3")))
    with django_db_blocker.unblock(), default_database(settings):
        with connection.cursor() as cursor:
            cursor.execute(FILL)
        User.objects.create_superuser("admin")
        User.objects.bulk_create(
            User(pk=number, username=f"anna{number}", email=f"anna{number}@example.org") for number in range(2, 60)
        )
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


@dataclass
class Work:
    """What a page took."""

    steps: int = 0
    sql: tuple[str, ...] = ()

    def step(self) -> None:
        self.steps += 1_000


@contextmanager
def working() -> Iterator[Work]:
    """Count what the block takes."""
    work = Work()
    connection.ensure_connection()
    connection.connection.set_progress_handler(work.step, 1_000)
    try:
        with CaptureQueriesContext(connection) as captured:
            yield work
    finally:
        connection.connection.set_progress_handler(None, 0)
    work.sql = tuple(query["sql"] for query in captured)


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda: DailyCounter.objects.filter(subject__startswith="user:").count(), id="subjects"),
        pytest.param(lambda: list(DailyCounter.objects.dates("day", "year")), id="days"),
    ],
)
def test_the_measure_detects_a_full_scan(million: None, read: Callable[[], object]) -> None:
    with working() as work:
        read()

    assert work.steps > MAX_STEPS


PAGES = {
    **dict.fromkeys(("", f"?p={MAX_LISTED // 100}", "?rule=none", "?kind=ip:", "?rule=rule-2&p=100"), 7),
    **dict.fromkeys(("?kind=user:", "?kind=user:&p=100", "?kind=user:&rule=rule-1", "?q=user:42"), 7),
    **dict.fromkeys(("?day__year=2025&p=100", "?day__year=2025&rule=rule-3"), 7),
    **dict.fromkeys(("?day__year=2025&day__month=5&day__day=17&o=-5", "?q=user:42&day__year=2025&day__month=5"), 7),
    "?q=anna4": 8,
    **dict.fromkeys(("?q=rule-1", "?q=nobody"), 9),
    **dict.fromkeys(("usage/?subject=user:42&rule=rule-1", "usage/?subject=user:42&year=2024&days=year"), 6),
}
"""The most queries of a page, the two of Django's login among them."""


@pytest.mark.parametrize("query", PAGES)
def test_a_page_reads_only_its_rows(client: Client, query: str) -> None:
    with working() as work:
        assert client.get(LIST + query).status_code == 200

    assert len(work.sql) <= PAGES[query], work.sql
    assert work.steps <= MAX_STEPS, work.sql


@pytest.mark.parametrize("query", ["", "?kind=user:", "?day__year=2025&rule=rule-3"])
def test_a_page_has_the_order_of_an_index(client: Client, query: str) -> None:
    """Where an index holds a part of an order only, a planner may sort all rows instead: SQLite 3.53 does."""
    with working() as work:
        assert client.get(LIST + query).status_code == 200

    plans: dict[str, str] = {}
    with connection.cursor() as cursor:
        for sql in (each for each in work.sql if "django_quota_dailycounter" in each):
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
            plans[sql] = str(cursor.fetchall())
    assert {sql: plan for sql, plan in plans.items() if "TEMP B-TREE" in plan} == {}


@pytest.mark.parametrize("query", ["", "?rule=rule-1", "?kind=user:", "?q=user:42", "?day__year=2025"])
def test_a_download_starts_at_once(client: Client, query: str) -> None:
    with working() as work:
        reply = client.get(f"{LIST}export/{query}")
        lines = iter(reply)
        for _ in range(2):
            next(lines)
    reply.close()
    assert work.steps <= MAX_STEPS, work.sql


@pytest.mark.parametrize("order", [NEWEST, BY_SUBJECT])
def test_a_late_batch_reads_no_more_than_the_first(million: None, order: tuple[str, ...]) -> None:
    last = {"subject": "user:300", "day": date(2024, 12, 24), "rule": "rule-2"}
    rows = DailyCounter.objects.order_by(*order).filter(comes_after(order, last))
    with working() as work:
        page = list(rows.values_list(*COLUMNS)[:ROWS_PER_CHUNK])
    assert len(page) == ROWS_PER_CHUNK
    assert work.steps < 100_000


def test_a_download_holds_every_row_once_in_constant_memory(client: Client) -> None:
    longest, seen = 0, list[int]()
    for part in client.get(f"{LIST}export/?rule=rule-1"):
        longest = max(longest, len(part))
        seen += [hash(line) for line in part.decode().splitlines()]
    assert len(seen) == len(set(seen)) == ROWS // RULES + 1
    assert longest < ROWS_PER_CHUNK * 60, "no more than a page is ever held"
