"""Each async call answers, asks the store and fails as the sync call of its name does."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from typing import Any

import pytest
from asgiref.sync import async_to_sync

import django_quota
from django_quota import Entry, Rule, ban, check, counter, once
from django_quota.features.reservations.calls import Reservation
from django_quota.models import DailyCounter, QuotaOverride
from django_quota.testing import freeze
from django_quota.testing.kit import isolated
from tests.support.steps import START
from tests.support.stores import spy

pytestmark = pytest.mark.usefixtures("memory_store", "database")

SUBJECT = "user:1"
LOGIN = Rule.make("login", "5/h", ban={"after": "20/m", "for": "1h"}, daily=True)
PLAN = Rule.make("plan", {"free": "10/h", "pro": "90/h"}, tier=lambda request: "free")
DEVICES = Rule.make("devices", "3/d", distinct="post:device")
CREDITS = counter("credits")
ENTRIES = [(LOGIN, SUBJECT, 2), Entry(PLAN, SUBJECT, 3, tier="pro"), (CREDITS, SUBJECT, 4)]
DAY = date(2025, 11, 21)

Given = tuple[str, tuple[Any, ...], dict[str, Any]]
"""A call: its name, its arguments, its options."""

RIGHT: dict[str, Given] = {
    "check": ("check", ("2/m", SUBJECT, 2), {"name": "own", "algorithm": "fixed_window"}),
    "check, forced": ("check", (LOGIN, SUBJECT, 9), {"force": True}),
    "check of a value": ("check", (DEVICES, SUBJECT), {"value": "phone"}),
    "check of a tier": ("check", (PLAN, SUBJECT), {"tier": "pro"}),
    "acquire": ("acquire", (LOGIN, SUBJECT, 9), {"timeout": 1}),
    "acquire of a value": ("acquire", (DEVICES, SUBJECT), {"timeout": 0, "value": "phone"}),
    "peek": ("peek", (LOGIN, SUBJECT, 4), {}),
    "peek of a value": ("peek", (DEVICES, SUBJECT), {"value": "phone"}),
    "peek of a tier": ("peek", (PLAN, SUBJECT), {"tier": "pro"}),
    "refund": ("refund", (LOGIN, SUBJECT, 1), {}),
    "refund of a tier": ("refund", (PLAN, SUBJECT, 1), {"tier": "pro"}),
    "reset": ("reset", (LOGIN, SUBJECT), {}),
    "reset of a tier": ("reset", (PLAN, SUBJECT), {"tier": "pro"}),
    "check_all": ("check_all", (ENTRIES,), {}),
    "peek_all": ("peek_all", (ENTRIES,), {}),
    "reserve": ("reserve", (PLAN, SUBJECT, 3), {"tier": "pro"}),
    "reserve_all": ("reserve_all", (ENTRIES,), {}),
    "ban": ("ban", (LOGIN, SUBJECT, "2h"), {"reason": "a scraper", "by": "watchdog"}),
    "unban": ("unban", (LOGIN, "user:2"), {}),
    "once": ("once", ("payment", "evt_2", "2h"), {}),
    "once again": ("once", ("payment", "evt_1"), {}),
    "raise_limit": ("raise_limit", (LOGIN, SUBJECT, 7, "2h"), {"reason": "a launch", "by": "billing"}),
    "limits_of": ("limits_of", (SUBJECT,), {"tier": "anonymous"}),
    "usage": ("usage", (SUBJECT, DAY, date(2025, 11, 23), "month"), {}),
    "usage_lines": ("usage_lines", (DAY, date(2025, 11, 23), "day", "login"), {}),
}

WRONG: dict[str, Given] = {
    "check": ("check", ("2/x", SUBJECT), {}),
    "acquire": ("acquire", (LOGIN, SUBJECT), {"timeout": -1}),
    "peek": ("peek", (LOGIN, ""), {}),
    "refund": ("refund", (DEVICES, SUBJECT), {}),
    "reset": ("reset", ("*", SUBJECT), {"tier": "pro"}),
    "check_all": ("check_all", ([],), {}),
    "peek_all": ("peek_all", ([ENTRIES[0], ENTRIES[0]],), {}),
    "reserve": ("reserve", (LOGIN, SUBJECT, 9), {}),
    "reserve of a rule with a lease": ("reserve", (LOGIN, SUBJECT), {"lease": 5}),
    "reserve_all": ("reserve_all", ([(CREDITS, SUBJECT, 999)],), {}),
    "reserve_all of a rule with a lease": ("reserve_all", ([(LOGIN, SUBJECT)],), {"lease": 5}),
    "ban": ("ban", (PLAN, SUBJECT, 60), {}),
    "unban": ("unban", ("nothing", SUBJECT), {}),
    "once": ("once", ("payment", None), {}),
    "raise_limit": ("raise_limit", (LOGIN, SUBJECT, 0), {}),
    "limits_of": ("limits_of", (SUBJECT,), {"tier": "gold"}),
    "usage": ("usage", (SUBJECT, DAY, DAY), {}),
    "usage_lines": ("usage_lines", (DAY, DAY), {}),
}


@pytest.fixture(autouse=True)
def a_rule_of_the_settings(memory_store: None, settings: Any) -> None:
    rates = {"anonymous": "10/h", "authenticated": "90/h"}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"api": {"rate": rates, "key": "user"}}}


@contextmanager
def some_use() -> Iterator[list[tuple[Any, ...]]]:
    """Keep a block apart from others, after a few calls; yields what its calls ask the store for."""
    for rows in (QuotaOverride, DailyCounter):
        rows.objects.all().delete()
    asked: list[tuple[Any, ...]] = []
    with isolated(), freeze(START), pytest.MonkeyPatch.context() as patched:
        check(LOGIN, SUBJECT, 2)
        check(PLAN, SUBJECT, 4, tier="pro")
        ban(LOGIN, "user:2", "1h")
        once("payment", "evt_1")
        CREDITS.grant(SUBJECT, 50, id="order-1", expires="30d")
        spy(
            patched,
            lambda operation: asked.append((type(operation), *operation.keys, *operation.arguments())),
            background=False,
        )
        yield asked


def sync_call(given: Given) -> object:
    name, arguments, options = given
    found = getattr(django_quota, name)(*arguments, **options)
    return list(found) if inspect.isgenerator(found) else found


def async_call(given: Given) -> object:
    name, arguments, options = given

    async def wait() -> object:
        found = getattr(django_quota, f"a{name}")(*arguments, **options)
        return [each async for each in found] if inspect.isasyncgen(found) else await found

    return async_to_sync(wait)()


def plain(answer: object) -> object:
    """Return an answer in values that can be compared."""
    return (answer.costs, answer.decision) if isinstance(answer, Reservation) else answer


def result(call: Callable[[Given], object], given: Given) -> tuple[object, list[tuple[Any, ...]]]:
    """Return the answer of a call, and what it asked the store for."""
    with some_use() as asked:
        return plain(call(given)), asked


def names_of(calls: dict[str, Given]) -> set[str]:
    return {name for name, *_ in calls.values()}


@pytest.mark.parametrize("given", RIGHT.values(), ids=RIGHT)
def test_an_async_call_answers_as_its_twin(given: Given) -> None:
    assert result(async_call, given)[0] == result(sync_call, given)[0]


@pytest.mark.parametrize("given", RIGHT.values(), ids=RIGHT)
def test_an_async_call_asks_the_store_as_its_twin(given: Given) -> None:
    assert result(async_call, given)[1] == result(sync_call, given)[1]


@pytest.mark.parametrize("given", [RIGHT["raise_limit"]], ids=["raise_limit"])
def test_an_async_call_saves_what_its_twin_saves(given: Given) -> None:
    saved: list[Any] = []
    for call in (sync_call, async_call):
        with some_use():
            call(given)
            saved += QuotaOverride.objects.values("subject", "rule", "rate", "expires", "reason", "created_by")

    assert saved[0] == saved[1]


@pytest.mark.parametrize("given", WRONG.values(), ids=WRONG)
def test_an_async_call_fails_as_its_twin(given: Given) -> None:
    with some_use(), pytest.raises(Exception) as expected:  # noqa: PT011 — the one of the twin
        sync_call(given)
    with some_use(), pytest.raises(type(expected.value)) as failed:
        async_call(given)

    assert str(failed.value) == str(expected.value)


@pytest.mark.parametrize("calls", [RIGHT, WRONG], ids=["right", "wrong"])
def test_every_call_with_a_twin_is_compared(calls: dict[str, Given]) -> None:
    public = set(django_quota.__all__)
    assert names_of(calls) == {name for name in public if f"a{name}" in public}
