"""Usage as Redis counts it: read for one subject or for all, under names that a row can hold."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from django_quota import check
from django_quota.core.keys import MAX_PART, escape, field, subject_base
from django_quota.engine.operations import DictStates, text
from django_quota.engine.subject_operations import DropDay, ReadDays
from django_quota.exceptions import RuleError
from django_quota.services import usage
from django_quota.services.usage import Count, counted_days, day_key, row_name, row_part, today
from django_quota.testing import freeze
from tests.support.days import count
from tests.support.specifications import specify
from tests.support.steps import SECOND, START
from tests.support.stores import redis_store

DAY = 86_400 * SECOND
TODAY = date(2025, 11, 21)
COUNTED = {"a:b:a": "3", "a%3Ab:r": "2", "#": "17"}
fields = st.dictionaries(st.sampled_from([*COUNTED, "x:a", "y:r"]), st.integers(0, 2**62).map(str), max_size=5)
names = st.text(max_size=60)


# --- names ------------------------------------------------------------------------------------------------------------


@given(names, names)
def test_two_names_are_never_one_in_the_rows(one: str, other: str) -> None:
    assert (row_name(field(one)) == row_name(field(other))) == (one == other)


@given(st.text(max_size=400))
def test_a_row_can_hold_any_name(name: str) -> None:
    held = row_name(field(name))
    held.encode()
    assert "\0" not in held
    assert len(held) <= MAX_PART + 1


def test_a_name_is_unchanged_where_a_database_can_store_it() -> None:
    assert row_name(field("user:42")) == "user:42"
    assert row_name(field("\u2603 %41")) == "\u2603 %41"
    assert row_name(field("x" * 300)) == field("x" * 300)
    assert row_name(field("\ud800")) == "~%ED%A0%80"
    assert row_name(field("~")) == "~%7E"


@given(st.text(max_size=300))
def test_a_name_may_be_given_plain_or_as_in_a_row(name: str) -> None:
    for escaped in (escape, field):
        part = escaped(name)
        assert row_part(row_name(part), escaped) == part
        assert row_part(row_name(row_part(row_name(part), escaped)), escaped) == part


@given(names.filter(lambda name: not name.startswith("~")))
def test_a_plain_name_is_unchanged(name: str) -> None:
    assert row_part(name) == escape(name)


def test_a_day_is_kept_eight_days_for_the_roll_up(redis_cache: object, raw: redis.Redis) -> None:
    check("1/h", "user:1")
    (day,) = counted_days("user:1")
    assert 8 * 86_400 - 60 < raw.ttl(day.key) <= 8 * 86_400


def test_a_field_that_another_program_wrote_is_no_error(redis_cache: object, raw: redis.Redis) -> None:
    with freeze(START):
        check("1/h", "user:1")
        (day,) = counted_days("user:1")
        raw.hset(day.key, b"\xff:a", b"\xff")
        assert usage.usage("user:1")[TODAY] == {"1/h": Count(1, 0), "\\xff": Count()}


# --- one subject ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("either_store")
def test_the_usage_of_a_subject_is_what_was_decided(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"few": {"rate": "2/h", "key": "user"}}, "TIME_ZONE": "UTC"}
    for moment in (START, START, START, START + DAY):
        with freeze(moment):
            check("few", "user:1")
    with freeze(START + DAY):
        expected = {TODAY: {"few": Count(2, 1)}, TODAY + timedelta(days=1): {"few": Count(1, 0)}}
        assert usage.usage("user:1") == expected
        assert usage.usage("user:2") == {}
    with freeze(START + 7 * DAY):
        assert usage.usage("user:1") == expected


@pytest.mark.usefixtures("either_store")
def test_a_day_knows_when_its_hash_was_opened(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "TIME_ZONE": "UTC"}
    long = "user:" + "x" * 300
    with freeze(START):
        assert today() == TODAY
        for subject in ("user:1", long):
            check("2/h", subject, name="few", daily=True)
            name = row_name(escape(subject))
            for asked in (subject, name):
                (day,) = counted_days(asked)
                assert (day.subject, day.day, day.incarnation, day.counts) == (name, TODAY, START, {"few": Count(1, 0)})


@pytest.mark.usefixtures("memory_store")
def test_only_a_subject_has_usage() -> None:
    for nobody in ("", 42, None):
        with pytest.raises(RuleError, match=r"ip:203\.0\.113\.9"):
            usage.usage(nobody)


# --- all of them ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("redis_cache")
def test_all_days_are_found_and_read(raw: redis.Redis) -> None:
    for number in range(57):
        count(raw, f"user:{number}", {"a": (number, 1), "b:c": (0, 2)}, TODAY)
    count(raw, "user:1", {"a": (5, 0)}, TODAY - timedelta(days=1))
    raw.set("quota:1:{user:1}:day:2025-11-20:more", "no hash")
    raw.hset("quota:1:{user:1}:day:yesterday", "a:a", 1)
    raw.hset("other:1:{user:1}:day:2025-11-20", "a:a", 1)
    keys = [key for batch in usage.find(redis_store(), "quota", 10) for key in batch]
    days = usage.read_all(redis_store(), "quota", set(keys) | {day_key(subject_base("quota", "gone"), TODAY)})
    assert {(day.subject, day.day): day.counts for day in days} == {
        **{(f"user:{number}", TODAY): {"a": Count(number, 1), "b:c": Count(0, 2)} for number in range(57)},
        ("user:1", TODAY - timedelta(days=1)): {"a": Count(5, 0)},
    }
    assert all(day.incarnation > START for day in days)


@pytest.mark.usefixtures("redis_cache")
def test_keys_without_counts_are_left_out(raw: redis.Redis) -> None:
    key = day_key(subject_base("quota", "user:1"), TODAY)
    raw.hset(key, mapping={"a:a": "-4", "b:a": "x", "c:a": "\u0663", "d:q": "1", "e": "1", "#": "when"})
    (day,) = usage.read_all(redis_store(), "quota", [key])
    assert day.incarnation == 0
    assert set(day.counts.values()) <= {Count()}


@pytest.mark.usefixtures("redis_cache")
def test_days_before_yesterday_are_finished(raw: redis.Redis, settings: Any) -> None:
    settings.QUOTA = {"TIME_ZONE": "UTC"}
    seconds, _ = raw.time()
    days = {(seconds + late) // 86_400 - 1 for late in (0, 60)}
    assert usage.finished_before(redis_store()) in {date(1970, 1, 1) + timedelta(days=day) for day in days}


# --- scripts and specifications ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("redis_cache")
def test_lua_and_specification_never_differ(raw: redis.Redis) -> None:
    store = redis_store()

    @given(st.lists(fields, min_size=1, max_size=3), fields, st.integers(0, 2))
    def holds(days: list[dict[str, str]], other: dict[str, str], which: int) -> None:
        raw.flushall()
        states = DictStates()
        keys = [f"quota:1:{{user:1}}:day:2025-11-{day:02}" for day in range(1, len(days) + 1)]
        for key, day in zip(keys, days, strict=True):
            if day:
                raw.hset(key, mapping=dict(day.items()))
                states.put(key, {name: int(value) for name, value in day.items()}, START)
        flat = [[text(part) for part in day] for day in store.run(ReadDays(keys))]
        assert [dict(zip(day[::2], day[1::2], strict=True)) for day in flat] == days
        assert [sorted(day) for day in flat] == [sorted(day) for day in ReadDays(keys).run(states, START)]
        for seen in (other, days[0]):
            drop = DropDay(keys[0], seen)
            dropped = store.run(drop)
            assert dropped == specify(drop, states, START) == int(bool(days[0]) and seen == days[0])
            if dropped:
                break
        assert raw.exists(keys[0]) == 0
        assert states.get(keys[0]) is None

    holds()
