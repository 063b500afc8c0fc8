"""What spends nothing stands on a Redis that takes no writes: it is read, whether or not it can be counted and told."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from django_quota import Decision, check, peek, refund, reserve
from django_quota.algorithms import ALGORITHMS
from django_quota.clock import SECOND
from django_quota.limiter import get_limiter
from django_quota.outages import SETTLED, Outages
from django_quota.plans import Plan
from django_quota.rules import Rule
from django_quota.testing import RedisServer, freeze
from tests.conftest import caches
from tests.failures.harms import HARMS, Harm, Place, harm_named
from tests.failures.places import caches_at
from tests.published import publish
from tests.steps import START

TAKES_NO_WRITES = [harm for harm in HARMS if harm.name in ("read-only", "cannot-save", "full", "no-replicas")]

USER = "user:7"
BAN = {"after": "2/m", "for": ["10m"]}


class Later:
    """A clock that goes when it is told to."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=TAKES_NO_WRITES, ids=lambda harm: harm.name)
def harm(request: pytest.FixtureRequest, place: Place, settings: Any) -> Harm:
    place.client.flushall()
    settings.CACHES = caches_at(place.url)
    chosen: Harm = request.param
    return chosen


def until_refused(rate: str = "2/day", why: str = "", cost: int = 1, **options: Any) -> Callable[[], Decision]:
    """Ask until a rule refuses for this reason; return what asks it once more."""

    def ask() -> Decision:
        return check(rate, USER, cost, name="login", **options)

    for _ in range(20):
        decision = ask()
        if not decision and decision.binding is not None and decision.binding.why == why:
            return ask
    raise AssertionError(decision)


def blocked() -> Callable[[], Decision]:
    get_limiter().store.run(publish(USER, "login", "b 0 0 "))
    return until_refused(why="blocked")


def over_its_limit_with_holds_that_are_due() -> Callable[[], Decision]:
    """What they held comes back, and is not enough."""
    check("9/h", USER, 8, name="login")
    reserve("9/h", USER, 1, ttl=3, name="login")
    return until_refused("9/h", cost=2)


REFUSED: dict[str, Callable[[], Callable[[], Decision]]] = {
    **{name: partial(until_refused, algorithm=name) for name in ALGORITHMS},
    "refusals counted": partial(until_refused, count_refused=True),
    "the next refusal bans": partial(until_refused, ban={"after": "9/m", "for": ["10m"]}),
    "refused by a rule that does not block": partial(until_refused, block=False),
    "banned": partial(until_refused, ban=BAN, why="banned"),
    "blocked": blocked,
    "holds that are due": over_its_limit_with_holds_that_are_due,
}


@pytest.mark.parametrize("case", REFUSED)
def test_who_is_refused_stays_so(case: str, harm: Harm, place: Place) -> None:
    """Each refusal is one to be counted, and to be told of again."""
    with freeze(START):
        ask = REFUSED[case]()
    with freeze(START + 5 * SECOND), harm.do(place):
        decision = ask()
    with freeze(START + 6 * SECOND):
        before = ask()
    assert (decision.allowed, decision.degraded) == (False, False)
    assert (decision.remaining, decision.limit) == (before.remaining, before.limit)


@pytest.mark.parametrize("on_unavailable", ["allow", "deny"])
def test_who_is_exempt_stays_so_and_that_ends_no_outage(on_unavailable: Any, harm: Harm, place: Place) -> None:
    """Nothing was written, so the server may still take no writes; nor was it by what a shadow refuses."""
    store = get_limiter().store
    store.run(publish(USER, "login", "x 0 0 "))
    outages = get_limiter().outages = Outages(later := Later())
    with harm.do(place):
        assert check("9/m", "ip:192.0.2.1").degraded
        assert outages.is_on
        later.now += SETTLED
        decision = check("0/m", USER, name="login", on_unavailable=on_unavailable, ban=BAN)
        assert (decision.allowed, decision.degraded) == (True, False)
        shadow = check("0/m", "ip:192.0.2.1", shadow=True, on_unavailable=on_unavailable)
        assert (shadow.allowed, shadow.degraded) == (True, False)
        refund("9/m", "ip:192.0.2.1")
        assert outages.is_on
    later.now += SETTLED
    assert check("9/m", "ip:192.0.2.1").allowed
    assert not outages.is_on


@pytest.mark.parametrize("algorithm", ["fixed_window", "token_bucket", "sliding_window"])
def test_a_hold_is_given_back_once_though_the_server_is_full(algorithm: Any, place: Place, settings: Any) -> None:
    """Of two rules: what is given back of the one takes memory, of the other it frees some. Then a script may write."""
    place.client.flushall()
    settings.CACHES = caches_at(place.url)
    rules = [Rule.make(name, "10/h", algorithm=algorithm) for name in ("used", "held")]
    plan = Plan("quota")
    with freeze(START):
        check(rules[0], "ip:192.0.2.1", 3)
        for rule in rules:
            reserve(rule, "ip:192.0.2.1", 5, ttl=3)
            plan.add(rule, "ip:192.0.2.1", 1)
    with freeze(START + 5 * SECOND), harm_named("full").do(place):
        decision = get_limiter().decide(plan, "check")
    assert (decision.degraded, [outcome.remaining for outcome in decision.outcomes]) == (False, [6, 9])
    with freeze(START + 5 * SECOND):
        assert [peek(rule, "ip:192.0.2.1").remaining for rule in rules] == [6, 9]


def test_what_else_goes_wrong_behind_a_refusal_is_not_hidden(
    redis_server: RedisServer, raw: redis.Redis, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.CACHES = caches(redis_server)
    ask = until_refused()
    (day,) = raw.scan_iter(match="*:day:*")
    raw.delete(day)
    raw.set(day, "somebody else's")
    assert ask().degraded
    assert "WRONGTYPE" in caplog.text
