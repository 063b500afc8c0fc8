"""`quota_override` lists, sets, imports and clears overrides."""

import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_quota import check
from django_quota.models import QuotaOverride
from django_quota.operating import override_lists
from tests.support import commands

SUBJECT = "ip:203.0.113.9"

pytestmark = pytest.mark.usefixtures("memory_store", "database")


@pytest.fixture(autouse=True)
def rules(memory_store: None, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"search": "10/m", "signup": {"rate": "5/h", "key": "ip"}}}


said = partial(commands.said, "quota_override")


def rows() -> dict[tuple[str, str], str]:
    """Return what each subject and rule has in the database."""
    return {(row.subject, row.rule): str(row.rate or row.mode) for row in QuotaOverride.objects.all()}


LIST = """\ufeff# crawlers
203.0.113.9   # one address

ip:198.51.100.0/24
2001:db8::/32
203.0.113.9
"""


def test_it_sets_changes_lists_and_clears() -> None:
    (first,) = said("set", SUBJECT, "blocked", "--reason", "spam", "--label", "bots", "--json")
    assert (first["mode"], first["rule"], first["reason"], first["label"]) == ("blocked", "*", "spam", "bots")
    assert not check("search", SUBJECT)
    (second,) = said("set", SUBJECT, "5/m", "--for", "2h", "--json")
    left = datetime.fromisoformat(second["expires"]) - datetime.now(UTC)
    assert timedelta(minutes=110) < left <= timedelta(hours=2)
    said("set", SUBJECT, "exempt", "--rule", "search", "--until", "2126-01-31T12:00", "--json")
    assert rows() == {(SUBJECT, "*"): "5/m", (SUBJECT, "search"): "exempt"}
    whole, search = said("list", "--subject", SUBJECT, "--active", "--json")
    assert [whole[name] for name in ("rule", "mode", "rate", "reason", "label")] == ["*", "rate", "5/m", "", ""]
    assert [search[name] for name in ("rule", "mode", "rate")] == ["search", "exempt", None]
    assert search["expires"].startswith("2126-01-31T")
    assert f"{SUBJECT}, all rules: 5/m, until " in said("list")
    said("clear", SUBJECT, "--rule", "search")
    assert f"Cleared {SUBJECT}, all rules: 5/m" in said("clear", SUBJECT)
    assert rows() == {}
    assert f"no override for {SUBJECT}" in said("clear", SUBJECT)


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (("set", SUBJECT, "bloked"), r"Did you mean 'blocked'\?"),
        (("set", SUBJECT, "blocked", "--for", "soon"), "'10m'"),
        (("set", SUBJECT, "blocked", "--until", "2030-02-31"), "2030-01-31T12:00"),
        (("set", SUBJECT, "blocked", "--until", "2020-01-31T12:00"), "is in the past"),
        (("set", "", "blocked"), "'user:42'"),
        (("set", SUBJECT, "9/month", "--rule", "search"), "calendar"),
        (("clear",), "--label NAME"),
        (("import", "/nowhere/list", "--label", "bots"), "/nowhere/list: No such file or directory. Use a file"),
        (("import", "-", "--label", "bots", "--as", "never"), "'never' is neither a rate"),
        (("import", "binary", "--label", "bots"), "is not a string in UTF-8"),
        (("import", "-", "--label", "bots", "--rule", "serch"), 'Did you mean "search"'),
    ],
)
def test_wrong_words_are_named_with_what_to_write_instead(
    words: tuple[str, ...], printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("binary").write_bytes(b"203.0.113.9\n\xff")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LIST.encode())))
    with pytest.raises(CommandError, match=printed):
        said(*words)
    assert rows() == {}


def test_networks_kinds_and_everybody_are_subjects() -> None:
    for typed, saved, concerned in (("198.51.100.7/24", "ip:198.51.100.0/24", "ip:198.51.100.77"), ("*", "*", "org:7")):
        said("set", typed, "blocked")
        assert rows() == {(saved, "*"): "blocked"}
        assert not check("search", concerned)
        assert said("list", "--subject", typed) == said("list") != ""
        said("clear", typed)
        assert check("search", concerned)


def test_what_can_have_no_effect_is_refused_unless_forced() -> None:
    for words, why in (
        (("global", "5/m", "--rule", "serch"), 'Did you mean "search"?'),
        (("global", "blocked", "--rule", "signup"), 'which limits "ip"'),
        (("user:77", "blocked"), 'no user with the key "77"'),
    ):
        before = rows()
        with pytest.raises(CommandError, match="--force") as caught:
            said("set", *words)
        assert why in str(caught.value)
        assert rows() == before
        assert why in said("set", *words, "--force")
        assert len(rows()) == len(before) + 1


def test_a_label_is_listed_and_cleared() -> None:
    QuotaOverride.objects.bulk_create(
        QuotaOverride(subject=f"ip:198.51.100.{number}", mode="blocked", label="bots") for number in range(30)
    )
    said("set", SUBJECT, "blocked")
    assert said("list", "--label", "bots").count("[bots]") == 30
    assert "Would clear 10 more overrides" in said("clear", "--label", "bots", "--dry-run")
    assert len(rows()) == 31
    assert said("clear", "--label", "bots").count("Cleared") == 21
    assert rows() == {(SUBJECT, "*"): "blocked"}
    assert said("clear", "--label", "bots") == "There was no override with the label bots.\n"


Import = Callable[..., Any]


@pytest.fixture
def imported(tmp_path: Path) -> Import:
    """Import a text under the label `bots`."""

    def run(text: str, *options: str) -> Any:
        file = tmp_path / "list.txt"
        file.write_text(text, encoding="utf-8")
        return said("import", str(file), "--label", "bots", *options)

    return run


def test_a_list_of_addresses_and_networks_is_imported(imported: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    assert imported(LIST, "--dry-run").startswith("Would add 3, change 0 and delete 0")
    assert rows() == {}
    printed = imported(LIST, "--reason", "a list", "--for", "7d")
    assert printed == "Added 3, changed 0 and deleted 0 with the label bots; 0 stay as they are.\n"
    subjects = {"ip:198.51.100.0/24", "ip:2001:db8::/32", SUBJECT}
    assert rows() == dict.fromkeys([(subject, "*") for subject in subjects], "blocked")
    assert not check("search", "ip:198.51.100.1")
    (row,) = QuotaOverride.objects.filter(subject=SUBJECT)
    assert (row.label, row.reason, row.expires is None) == ("bots", "a list", False)
    said("clear", "--label", "bots")
    said("set", SUBJECT, "exempt")  # by somebody else
    assert f"1 have an override without this label, which stays: {SUBJECT}." in imported(LIST)
    assert rows()[SUBJECT, "*"] == "exempt"
    assert said("list", "--label", "bots").count("blocked") == 2
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LIST.encode())))
    assert "Added 3" in said("import", "-", "--label", "crawlers", "--rule", "serch", "--force")


def test_a_list_replaces_what_its_label_had_and_writes_the_difference(imported: Import) -> None:
    said("set", "ip:192.0.2.1", "blocked")
    imported("192.0.2.2\n192.0.2.3\n192.0.2.4")
    kept = QuotaOverride.objects.get(subject="ip:192.0.2.3").change
    result = imported("192.0.2.3\n192.0.2.4\n192.0.2.5", "--json")
    counts = {"added": 1, "changed": 0, "deleted": 1, "kept": 2}
    assert result == {"label": "bots", "dry_run": False, **counts, "skipped": []}
    assert rows().keys() == {(f"ip:192.0.2.{number}", "*") for number in (1, 3, 4, 5)}
    assert QuotaOverride.objects.get(subject="ip:192.0.2.3").change == kept
    with CaptureQueriesContext(connection) as queries:
        imported("192.0.2.3\n192.0.2.4\n192.0.2.5")
    of_rows = [each["sql"] for each in queries.captured_queries if "quotaoverride" in each["sql"]]
    assert of_rows
    assert all(sql.startswith("SELECT") for sql in of_rows)


def test_wrong_lines_are_named_and_nothing_is_changed(imported: Import) -> None:
    imported("192.0.2.2")
    with pytest.raises(CommandError) as caught:
        imported("203.0.113.9\nexample.com\n\n198.51.100.0/33\n2001:db8::7/96\nip:192.0.2.1+user:3\nuser:3\n")
    hint = "is neither an address nor a network. Write, for example, 203.0.113.9 or 198.51.100.0/24."
    own = "is smaller than a /64, and all addresses of a /64 count as one client. Use 'ip:2001:db8::/64'."
    assert str(caught.value).splitlines() == [
        f"Line 2: 'example.com' {hint}",
        "Line 4: '198.51.100.0/33' is not a network. Use, for example, 'ip:198.51.100.0/24'.",
        f"Line 5: '2001:db8::7/96' {own}",
        f"Line 6: '192.0.2.1+user:3' {hint}",
        f"Line 7: 'user:3' {hint}",
    ]
    with pytest.raises(CommandError, match=r"\n1,990 more lines are wrong\."):
        imported("<html>\n" * 2_000)
    with pytest.raises(CommandError, match="has no address, and nothing is changed"):
        imported("# moved\n")  # as when a download has failed
    assert rows() == {("ip:192.0.2.2", "*"): "blocked"}


def test_a_long_list_takes_few_statements(imported: Import) -> None:
    addresses = [f"10.0.{number // 256}.{number % 256}" for number in range(2_000)]
    for listed, *options in ((addresses,), (addresses[1_000:], "--as", "exempt")):
        with CaptureQueriesContext(connection) as queries:
            imported("\n".join(listed), *options)
        assert len(queries) < 100
    assert rows() == {(f"ip:{address}", "*"): "exempt" for address in addresses[1_000:]}


def test_a_list_that_fails_half_way_changes_nothing(imported: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    imported("192.0.2.2")
    monkeypatch.setattr(override_lists, "ROWS_PER_QUERY", 1)
    written: list[str] = []

    def fail_at_the_second(execute: Any, sql: str, *given: Any) -> Any:
        if sql.startswith("INSERT") and "quotaoverride" in sql:
            written.append(sql)
            if len(written) > 1:
                raise OSError("the disk is full")
        return execute(sql, *given)

    with connection.execute_wrapper(fail_at_the_second), pytest.raises(OSError, match="disk"):
        imported("192.0.2.3\n192.0.2.4")
    assert rows() == {("ip:192.0.2.2", "*"): "blocked"}
    assert (check("search", "ip:192.0.2.2").allowed, check("search", "ip:192.0.2.3").allowed) == (False, True)


@pytest.mark.always("postgresql")
def test_two_imports_of_a_new_list_at_the_same_time_save_it_once() -> None:
    def save() -> override_lists.ListChange:
        try:
            both.wait(60)
            return override_lists.save_list(subjects, "crawlers", "*", {"mode": "exempt"})
        finally:
            connections.close_all()

    subjects = [f"ip:192.0.2.{number}" for number in range(100)]
    both = threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        changes = [future.result() for future in [threads.submit(save) for _ in range(2)]]
    assert QuotaOverride.objects.filter(label="crawlers").count() == 100
    assert sorted(len(change.added) for change in changes) == [0, 100]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_an_import_of_a_list_waits_for_another_one_and_replaces_what_that_has_saved() -> None:
    def save(subject: str) -> None:
        override_lists.save_list([subject], "crawlers", "*", {"mode": "exempt"})

    def save_meanwhile() -> None:
        try:
            save("ip:192.0.2.3")
        finally:
            connections.close_all()

    def is_waiting() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            return bool(cursor.fetchone()[0])

    save("ip:192.0.2.1")
    with ThreadPoolExecutor(1) as threads:
        with transaction.atomic():
            save("ip:192.0.2.2")
            other = threads.submit(save_meanwhile)
            commands.wait_until(is_waiting)
        other.result(60)
    assert list(rows()) == [("ip:192.0.2.3", "*")]
