"""A flood of new subjects: the memory of a process stays bounded, and nobody is admitted beyond a limit for it."""

import functools
import gc
import logging
import pkgutil
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from inspect import signature
from typing import Any

import pytest
from django.http import HttpResponse
from hypothesis import given
from hypothesis import strategies as st

import django_quota
from django_quota import Rule, check, concurrency, counter, once, peek, quota, reserve, slot
from django_quota.core.errors import StoreFull
from django_quota.exceptions import QuotaError
from django_quota.testing import freeze
from tests.support.calls import get, run
from tests.support.inputs import inputs
from tests.support.steps import ALGORITHMS, SECOND, START, decided, hits_of
from tests.support.stores import current_store, local_store, own_memory_store

CAP = 1_000
SHARE = CAP * 4 // 5
"""What one rule may have of them."""
NOWHERE = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": "unix:///nowhere/redis.sock",
        "OPTIONS": {"SOCKET_TIMEOUT": 0.1, "SOCKET_CONNECT_TIMEOUT": 0.1},
    }
}


@pytest.fixture(params=["memory", "local"])
def full(request: pytest.FixtureRequest, settings: Any) -> Any:
    """A memory store that may hold a thousand keys: the store of the settings, or the fallback while Redis is away."""
    settings.QUOTA = {"MEMORY_KEYS": CAP, "ON_UNAVAILABLE": "local"}
    if request.param == "local":
        settings.CACHES = NOWHERE
        return local_store()
    settings.QUOTA = {**settings.QUOTA, "STORE": "memory"}
    return current_store()


def fill(keys: int = CAP) -> None:
    """Fill the store with rules that have four keys each."""
    for number in range(keys // 4):
        check("5/h; 6/2h; 7/3h; 8/4h", f"fill:{number}", name=f"fill-{number}")


KNOWN = "ip:192.0.2.1"
"""A subject that was there before the flood."""


@pytest.fixture
def flooded(full: Any) -> Iterator[int]:
    """A known subject with two hits, and then a flood under the same rule; how many of the flood were admitted."""
    with freeze(START):
        assert [check("3/m", KNOWN).allowed for _ in range(2)] == [True, True]
        yield sum(check("3/m", f"header.x:{number}").allowed for number in range(CAP))


@pytest.mark.thorough("slow")
def test_a_flood_fills_only_the_share_of_its_rule(flooded: int, full: Any) -> None:
    assert flooded == SHARE - 1
    assert len(full) == SHARE


@pytest.mark.thorough("slow")
@pytest.mark.usefixtures("flooded")
def test_a_subject_that_was_known_before_a_flood_keeps_its_count() -> None:
    assert [check("3/m", KNOWN).allowed for _ in range(3)] == [True, False, False]


@pytest.mark.thorough("slow")
@pytest.mark.usefixtures("flooded")
def test_a_new_subject_of_a_flooded_rule_is_refused_as_degraded() -> None:
    decision = check("3/m", "ip:192.0.2.2")

    assert (decision.allowed, decision.degraded, decision.subject) == (False, True, "ip:192.0.2.2")


@pytest.mark.thorough("slow")
@pytest.mark.usefixtures("flooded")
def test_a_flood_refuses_nobody_under_another_rule() -> None:
    decisions = [check("1/h", f"ip:192.0.2.{number}", name="login") for number in range(20)]

    assert [decision for decision in decisions if not decision.allowed or not decision.binding] == []


@pytest.mark.thorough("slow")
@pytest.mark.usefixtures("flooded")
def test_another_rule_still_limits_after_a_flood() -> None:
    check("1/h", KNOWN, name="login")

    assert not check("1/h", KNOWN, name="login").allowed


@pytest.mark.thorough("slow")
@pytest.mark.usefixtures("flooded")
def test_the_log_says_which_rule_was_flooded(caplog: pytest.LogCaptureFixture) -> None:
    said = caplog.get_records("setup")[-1].getMessage()

    assert f"{SHARE} of the {CAP} keys" in said
    assert "'3/m' may have no more" in said


def drop_expired() -> None:
    """Make so many calls that each key is looked at: a call drops expired keys among those that it looks at."""
    for _ in range(CAP):
        peek("3/m", "a:new")


def flood_again() -> list[bool]:
    """Drop what has expired, then check as many new subjects as the store may have keys."""
    drop_expired()
    return [check("3/m", f"b:{number}").allowed for number in range(CAP)]


@pytest.mark.thorough("slow")
@pytest.mark.usefixtures("flooded")
def test_the_keys_of_a_flood_expire(full: Any) -> None:
    for number in range(20):
        check("1/h", f"ip:192.0.2.{number}", name="login")

    with freeze(START + 300 * SECOND):
        drop_expired()

    assert len(full) == 20


@pytest.mark.thorough("slow")
@pytest.mark.usefixtures("flooded")
def test_a_rule_has_its_whole_share_again_when_a_flood_has_expired() -> None:
    with freeze(START + 300 * SECOND):
        assert sum(flood_again()) == SHARE


@pytest.mark.thorough("slow")
@pytest.mark.usefixtures("flooded")
def test_each_flood_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with freeze(START + 300 * SECOND):
        flood_again()

    records = [*caplog.get_records("setup"), *caplog.get_records("call")]
    said = [record.getMessage() for record in records if record.levelno >= logging.ERROR]
    assert len([line for line in said if "MEMORY_KEYS" in line]) == 2


def view(request: Any) -> HttpResponse:
    return HttpResponse(str(request.quota.allowed))


async def view_async(request: Any) -> HttpResponse:
    return view(request)


both_views = pytest.mark.parametrize("of", [view, view_async], ids=["sync", "async"])


@both_views
@pytest.mark.parametrize(
    "limited", [quota("5/m", key="ip", name="r"), concurrency(5, key="ip", name="u")], ids=["@quota", "@concurrency"]
)
def test_a_view_answers_503_where_the_store_is_full(limited: Any, of: Any, full: Any) -> None:
    fill()

    reply = run(limited(of), get(REMOTE_ADDR="192.0.2.7"))

    assert (reply.status_code, "Retry-After" in reply) == (503, True)


@both_views
@pytest.mark.parametrize(
    ("options", "allowed"), [({"block": False}, "False"), ({"shadow": True}, "True")], ids=["block=False", "shadow"]
)
def test_a_view_that_is_not_blocked_answers_where_the_store_is_full(
    options: dict[str, Any], allowed: str, of: Any, full: Any
) -> None:
    fill()

    reply = run(quota("5/m", key="ip", name="s", **options)(of), get(REMOTE_ADDR="192.0.2.7"))

    assert (reply.status_code, "Retry-After" in reply, reply.content.decode()) == (200, False, allowed)


@pytest.fixture
def memory_of_few_keys(settings: Any) -> None:
    settings.QUOTA = {"MEMORY_KEYS": CAP, "STORE": "memory"}


def reserve_something() -> None:
    with reserve("9/m", "a:new", 2):
        pass


@pytest.mark.usefixtures("memory_of_few_keys")
@pytest.mark.parametrize(
    ("call", "error"),
    [
        pytest.param(lambda: counter("c").incr("user:new"), StoreFull, id="counter"),
        pytest.param(lambda: once("event", "new"), StoreFull, id="once"),
        pytest.param(lambda: slot("s", 1, subject="b").acquire(), StoreFull, id="slot"),
        pytest.param(reserve_something, QuotaError, id="reserve"),
    ],
)
def test_a_call_without_a_safe_answer_raises_where_the_store_is_full(call: Any, error: type[QuotaError]) -> None:
    fill()

    with pytest.raises(error):
        call()


@pytest.mark.usefixtures("memory_of_few_keys")
def test_a_counter_that_is_in_a_full_store_counts_on() -> None:
    counter("c").incr("user:known")
    fill()

    assert counter("c").incr("user:known") == 2


@pytest.mark.usefixtures("memory_of_few_keys")
def test_a_slot_that_is_in_a_full_store_can_be_taken_again() -> None:
    held = slot("s", 1, subject="a").acquire()
    fill()

    held.release()

    assert slot("s", 1, subject="a").acquire().token


HITS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 3), st.integers(0, 40)), min_size=1, max_size=60)


@inputs(300)
@given(HITS, st.sampled_from(ALGORITHMS), st.integers(1, 8))
def test_a_store_that_is_full_admits_no_more_than_one_that_is_not(
    hits: list[tuple[int, int, int]], algorithm: str, most: int
) -> None:
    rule, now = Rule.make("r", "4/m", algorithm=algorithm, ban={"after": "2/m", "for": ["1m"]}), START
    with own_memory_store(max_keys=most) as small, own_memory_store() as large:
        for who, cost, later in hits:
            now += later * SECOND
            asked = hits_of(rule, subject=f"a:{who}", cost=cost, now=now)
            try:
                reply = decided(small, asked, "check", now)
            except StoreFull:
                assert len(small) >= most * 4 // 5
                continue
            assert reply == decided(large, asked, "check", now)  # who is let in is counted in both, and the same
            assert len(small) <= most


def test_every_cache_of_calls_has_a_bound() -> None:
    for module in pkgutil.walk_packages(django_quota.__path__, "django_quota."):
        if "migrations" not in module.name and "__main__" not in module.name:
            import_module(module.name)

    gc.unfreeze()  # conftest.py hides what there was when the tests began
    # By `type`: `isinstance` would ask the lazy objects of other tests for their class, and so load them.
    found = [each for each in gc.get_objects() if type(each) is functools._lru_cache_wrapper]
    gc.freeze()
    ours = {each.__qualname__: each for each in found if str(each.__module__).startswith("django_quota")}
    with_arguments = {name: cached for name, cached in ours.items() if signature(cached).parameters}
    sizes = {name: cached.cache_parameters()["maxsize"] or 0 for name, cached in with_arguments.items()}

    assert len(ours) >= 15
    assert {name: size for name, size in sizes.items() if not 0 < size <= 8192} == {}


FIRST, FURTHER = 18_000, 4_000
"""The first fill all of our caches, which hold 8,192 things at most; what grows for good shows in the further ones."""
FLOODED = (
    Rule.make("flooded", "1/m", key=("header:X-Api-Key", "path")),
    Rule.make("by-ip", "500/m", "900/h", key="ip", ban={"after": "1/m", "for": ["1h"]}),
)


def flooding(numbers: range) -> None:
    """Come as many clients, each with an address, a key and a path of its own."""
    for number in numbers:
        address = f"2001:db8:{number >> 16:x}:{number & 0xFFFF:x}::1"
        request = get(REMOTE_ADDR="10.0.0.1", HTTP_X_API_KEY=f"key-{number}", HTTP_X_FORWARDED_FOR=address)
        request.path = f"/{number}"
        check(FLOODED[number % 2], request)


@pytest.mark.thorough("flood")
@pytest.mark.parametrize("place", ["redis", "memory", "redis is gone"])
def test_a_further_flood_takes_no_more_memory_than_the_first(
    place: str, one_redis: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.QUOTA = {"TRUSTED_PROXIES": ["10.0.0.0/8"], "MEMORY_KEYS": CAP, "ON_UNAVAILABLE": "local"}
    if place == "memory":
        settings.QUOTA = {**settings.QUOTA, "STORE": "memory"}
    elif place != "redis":
        settings.CACHES = NOWHERE

    with freeze(time.time_ns() // 1_000 + 3_600 * SECOND):  # nothing expires meanwhile, however long it takes
        flooding(range(FIRST))
        gc.collect()
        before = sys.getallocatedblocks()  # not bytes: a full cache makes room by growing and shrinking its table
        flooding(range(FIRST, FIRST + FURTHER))
        gc.collect()
        grown = sys.getallocatedblocks() - before

    assert grown < FURTHER // 4, f"{grown:,} blocks for {FURTHER:,} clients"
