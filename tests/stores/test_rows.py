"""The rows of the database store: values as JSON, what is written of an operation, and the statements for it."""

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from django_quota.core.algorithms.fixed_window import WindowCount
from django_quota.core.algorithms.sliding_window import WindowEntry
from django_quota.core.algorithms.subscription import PeriodCount
from django_quota.core.algorithms.token_bucket import Bucket
from django_quota.core.errors import StoreDataError
from django_quota.engine.events import EventRecord
from django_quota.stores.database import sql
from django_quota.stores.database.states import RowStates, StateRow, dumps, loads

# --- values as JSON ---------------------------------------------------------------------------------------------------

KEPT: list[tuple[str, Any, str]] = [
    ("a number", -5, "-5"),
    ("a string", "é", '"\\u00e9"'),
    ("counts", {"a": 1, "b": 2}, '{"a":1,"b":2}'),
    ("fields", {"a": "x"}, '{"a":"x"}'),
    ("a window", WindowCount(3, 5), '["window",3,5]'),
    ("a bucket", Bucket(3, 5), '["bucket",3,5]'),
    ("values", frozenset("fedcba"), '["set","a","b","c","d","e","f"]'),
    ("no values", frozenset(), '["set"]'),
    ("no entries", (), '["entries"]'),
    ("entries", (WindowEntry(2, 2, 100), WindowEntry(5, 3, 160)), '["entries",2,2,100,3,3,60]'),
]


@pytest.mark.parametrize(("value", "text"), [pytest.param(*each[1:], id=each[0]) for each in KEPT])
class TestAValue:
    """Rows of an older version must stay readable, so the form is a promise."""

    def test_is_written_in_few_bytes(self, value: Any, text: str) -> None:
        assert dumps(value) == text

    def test_is_read_as_it_was(self, value: Any, text: str) -> None:
        found = loads(text)

        assert (found, type(found)) == (value, type(value))


def test_the_count_of_a_period_is_read_as_it_was() -> None:
    value = PeriodCount(*range(len(PeriodCount._fields)))

    found = loads(dumps(value))

    assert (found, type(found)) == (value, PeriodCount)


@pytest.mark.parametrize(
    "value",
    [None, True, 1.5, [1], {"a": 1.5}, {"a": True}, {1: 1}, frozenset([1]), (1,), (Bucket(1, 2),), b"a"],
    ids=repr,
)
def test_a_value_that_no_specification_keeps_is_not_written(value: Any) -> None:
    with pytest.raises(TypeError):
        dumps(value)


@pytest.mark.parametrize(
    ("value", "words"),
    [([1], "no specification keeps list"), ((1,), "a tuple has other items than entries")],
    ids=["of another type", "of other items"],
)
def test_the_error_of_a_value_that_no_specification_keeps_says_what_it_is(value: Any, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        dumps(value)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "null", "true", "1.5", "1e3", "NaN", "Infinity", "[]", "[1]", '{"a":null}', '{"a":true}', '{"a":[1]}',
        '["window",1]', '["window",1,2,3]', '["window",1,"2"]', '["window",1,true]', '["bucket",1]', '["set",1]',
        '["entries",1]', '["entries",1,2]', '["entries",1,2,3,4]', '["another",1,2]', '["another"]',
    ],
)  # fmt: skip
def test_what_another_program_has_written_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        loads(text)


# --- the rows of an operation -----------------------------------------------------------------------------------------


@pytest.fixture
def states() -> RowStates:
    """The states under three keys, of which two have a row."""
    return RowStates(["a", "b", "c"], [StateRow("5", 100, "a"), StateRow("6", 200, "b")])


class TestTheRowsOfAnOperation:
    def test_that_changed_are_written(self, states: RowStates) -> None:
        states.put("a", 7, 300)
        states.put("c", 8, 400)

        assert list(states.written()) == [StateRow("7", 300, "a"), StateRow("8", 400, "c")]

    def test_that_stay_the_same_are_not_written(self, states: RowStates) -> None:
        states.put("a", 5, 100)

        assert list(states.written()) == []

    @pytest.mark.parametrize(("value", "expiry"), [(6, 100), (5, 101)], ids=["another value", "another end"])
    def test_that_differ_in_one_thing_are_written(self, value: int, expiry: int, states: RowStates) -> None:
        states.put("a", value, expiry)

        assert len(list(states.written())) == 1

    def test_that_were_dropped_are_deleted(self, states: RowStates) -> None:
        for key in "abc":
            states.drop(key)

        assert (list(states.dropped()), list(states.written())) == (["a", "b"], [])

    def test_that_were_dropped_before_they_were_put_are_written(self, states: RowStates) -> None:
        states.drop("a")
        states.put("a", 7, 300)

        assert (list(states.dropped()), len(list(states.written()))) == ([], 1)

    @pytest.mark.parametrize("use", ["get", "expiry", "drop"])
    def test_are_no_others_than_it_has_declared(self, use: str, states: RowStates) -> None:
        with pytest.raises(KeyError):
            getattr(states, use)("d")

    def test_are_not_written_under_a_key_that_it_has_not_declared(self, states: RowStates) -> None:
        with pytest.raises(KeyError):
            states.put("d", 1, 100)

    def test_are_read_once(self, states: RowStates) -> None:
        states._rows["b"] = StateRow('{"a":1}', 200, "b")

        assert states.get("b") is states.get("b")

    def test_name_their_key_if_they_hold_something_else(self) -> None:
        states = RowStates(["a"], [StateRow("null", 100, "a")])

        with pytest.raises(StoreDataError) as caught:
            states.get("a", 99)
        assert caught.value.reason == "the row of a has unexpected data: it is not a value that we write"


# --- statements -------------------------------------------------------------------------------------------------------


def test_without_keys_only_the_clock_is_asked() -> None:
    """PostgreSQL takes no empty list."""
    found = sql.select([], "42")

    assert " IN (" not in found.text
    with closing(sqlite3.connect(":memory:")) as connection:
        assert connection.execute(*found).fetchall() == [("", 42, "")]


def test_a_key_begins_with_what_all_keys_of_its_subject_share() -> None:
    assert sql.subject_prefix("quota:1:{user:1}:c:a") == "quota:1:{user:1"


@pytest.mark.parametrize(
    ("matching", "begins"),
    [("quota:1:*", "quota:1:"), ("a?c", "a"), ("a[bc]", "a"), ("a\\*", "a"), ("*a*", ""), ("a", "a"), ("a*b*", "a")],
)
def test_the_keys_that_match_a_pattern_begin_with_what_comes_before_its_first_wildcard(
    matching: str, begins: str
) -> None:
    assert sql.beginning(matching) == begins


def test_a_key_has_the_same_id_in_every_version() -> None:
    """Else a new version would not find what an older one has counted."""
    assert sql.state_id("quota:1:{user:1}:c:é") == "6a2f5daa0bfa78d1355e9cb8e6b4bb7e"


@pytest.mark.parametrize(
    ("subject", "lock"),
    [("quota:1:{user:1", -6474825538802526386), ("quota:1:{user:2", 6457112946936749750), ("é", -3811523526868657873)],
    ids=["1", "2", "3"],
)
def test_processes_of_two_versions_lock_a_subject_by_one_number(subject: str, lock: int) -> None:
    assert sql.lock_of(subject) == lock


@pytest.mark.parametrize("subject", ["quota:1:{user:1", "quota:1:{user:2", "é"])
def test_the_lock_of_a_subject_is_a_signed_number_of_64_bits(subject: str) -> None:
    assert -(2**63) <= sql.lock_of(subject) < 2**63


def test_the_locks_of_subjects_differ() -> None:
    locks = [sql.lock_of(f"quota:1:{{user:{number}") for number in range(1_000)]

    assert len(set(locks)) == 1_000
    assert min(locks) < 0 < max(locks)


@pytest.mark.parametrize(
    ("expires", "hour"), [(0, 1), (3_599_999_999, 1), (3_600_000_000, 2)], ids=["at once", "before", "after"]
)
def test_a_state_is_swept_from_the_hour_after_its_end(expires: int, hour: int) -> None:
    assert sql.upsert([StateRow("5", expires, "a")]).values[-1] == hour


def test_each_parameter_of_a_statement_has_a_mark() -> None:
    rows = [StateRow("5", 1, key) for key in "abc"]
    events = [EventRecord("banned", "r", f"s{number}", until=5) for number in range(3)]
    lifted = [EventRecord("lifted", "r", "s")]

    statements = [sql.select("abc", "now()"), sql.select("", "now()"), sql.upsert(rows), sql.delete("abc")]
    statements += [*sql.log_events("log", [*events, *lifted], 7, "0"), sql.page_of_keys("a", sql.BEFORE_ALL)]

    assert [text.count("?") - len(values) for text, values in statements] == [0] * 8


class TestTheStatementsOfEvents:
    def tables(self, *kinds: Any) -> list[tuple[str, str]]:
        """Return what happens to which table for events of these kinds."""
        events = [EventRecord(kind, "r", "s", until=9) for kind in kinds]
        words = [text.split() for text, _ in sql.log_events("log", events, 7, "0")]
        return [(each[0], each[2].removeprefix("django_quota_quota")) for each in words]

    @pytest.mark.parametrize(
        ("kind", "tables"),
        [
            ("refused", [("INSERT", "event")]),
            ("banned", [("INSERT", "event"), ("INSERT", "ban")]),
            ("listed", [("INSERT", "ban")]),
            ("lifted", [("DELETE", "ban")]),
        ],
    )
    def test_change_the_log_or_the_list_of_bans(self, kind: str, tables: list[tuple[str, str]]) -> None:
        assert self.tables(kind) == tables

    def test_are_none_without_events(self) -> None:
        assert self.tables() == []

    def test_list_a_ban_of_a_subject_once(self) -> None:
        events = [EventRecord("listed", "r", "s", until=until) for until in (5, 9)]

        ((_, values),) = sql.log_events("log", events, 7, "0")

        assert list(values[1:]) == ["log", "s", "r", 9]

    @pytest.mark.parametrize(
        "other",
        [
            ("another", "s", "r"), ("log", "another", "r"), ("log", "s", "another"), ("logs", "", "r"),
            ("log", "sr", ""), ("log", "r", "s"),
        ],
    )  # fmt: skip
    def test_name_no_two_bans_alike(self, other: tuple[str, str, str]) -> None:
        def names(log: str, subject: str, rule: str) -> Any:
            ((_, values),) = sql.log_events(log, [EventRecord("lifted", rule, subject)], 7, "0")
            return values

        assert names("log", "s", "r") == names("log", "s", "r")
        assert names("log", "s", "r") != names(*other)


def test_the_rows_of_a_query_come_without_that_of_the_clock() -> None:
    assert sql.rows_of([["5", 100, "a"], ["", 77, ""]]) == (77, [StateRow("5", 100, "a")])
