"""Usage as Redis counts it, by subject, day and rule. What the roll-up makes of it is in test_rollup."""

from __future__ import annotations

import io
from datetime import date, timedelta
from typing import Any

import pytest
import redis
from django.core.management import call_command

from django_quota import check
from django_quota.core.keys import escape
from django_quota.models import DailyCounter
from django_quota.testing import freeze
from tests.support.counts import checks_of, days_of
from tests.support.steps import SECOND, START

DAY = 86_400 * SECOND
TODAY = date(2025, 11, 21)


@pytest.mark.usefixtures("redis_cache")
def test_a_day_is_kept_eight_days_for_the_roll_up(raw: redis.Redis) -> None:
    check("1/h", "user:1")
    (key,) = raw.scan_iter("quota:1:{user:1}:day:*")
    assert 8 * 86_400 - 60 < raw.ttl(key) <= 8 * 86_400


@pytest.mark.usefixtures("redis_cache")
def test_a_field_that_another_program_wrote_is_no_error(raw: redis.Redis) -> None:
    with freeze(START):
        check("1/h", "user:1")
        raw.hset("quota:1:{user:1}:day:2025-11-21", b"\xff:a", b"\xff")
        assert checks_of("user:1") == {"1/h": (1, 0), "\\xff": (0, 0)}


@pytest.mark.usefixtures("either_store")
def test_the_usage_of_a_subject_is_what_was_decided(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"few": {"rate": "2/h", "key": "user"}}, "TIME_ZONE": "UTC"}
    for moment in (START, START, START, START + DAY):
        with freeze(moment):
            check("few", "user:1")
    with freeze(START + DAY):
        expected = {TODAY: {"few": (2, 1)}, TODAY + timedelta(days=1): {"few": (1, 0)}}
        assert days_of("user:1") == expected
        assert days_of("user:2") == {}
    with freeze(START + 7 * DAY):
        assert days_of("user:1") == expected


LONG = "x" * 300
"""So long that its keys hold a digest alone: a tilde and 64 hexadecimal digits."""


@pytest.mark.usefixtures("either_store")
@pytest.mark.parametrize("name", ["~", "~tilde", "~" + "x" * 64, "~" + "0" * 63, "~~tilde"])
def test_a_name_that_begins_with_a_tilde_is_taken_as_it_is(name: str) -> None:
    check("1/h", name, daily=True)
    assert checks_of(name) == {"1/h": (1, 0)}
    if name[1:]:
        assert days_of(name[1:]) == {}
        check("2/h", name[1:], daily=True)
        assert checks_of(name) == {"1/h": (1, 0)}


@pytest.mark.usefixtures("redis_cache", "database")
def test_a_long_name_and_a_name_that_looks_like_its_digest_are_two(raw: redis.Redis) -> None:
    digest = escape(LONG)
    check("9/h", LONG, daily=True)
    assert checks_of(digest) == checks_of(LONG) == {"9/h": (1, 0)}
    check("9/h", digest, daily=True)
    check("9/h", digest, daily=True)
    assert checks_of(digest) == checks_of(LONG) == {"9/h": (1, 0)}, "rows and events call the long name so"
    call_command("quota_rollup", stdout=io.StringIO())
    rows = dict(DailyCounter.objects.values_list("subject", "allowed"))
    assert rows.pop(digest) == 1
    ((own, allowed),) = rows.items()
    assert (allowed, checks_of(own)) == (2, {"9/h": (2, 0)})
