"""A Redis that refuses writes still reads: refused, blocked and exempt subjects stay so."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from django_quota import Decision, Rule, check, refund
from django_quota.testing import freeze
from tests.faults.faults import FAULTS, Fault, FaultyServer
from tests.faults.harness import caches_at
from tests.support.outages import SETTLE_TIME, new_outages
from tests.support.overridden import override
from tests.support.steps import ALGORITHMS, SECOND, START, Clock

TAKES_NO_WRITES = ("read-only", "cannot-save", "full", "no-replicas")

USER = "user:7"
BAN = {"after": "2/m", "for": ["10m"]}


@pytest.fixture(params=TAKES_NO_WRITES)
def fault(request: pytest.FixtureRequest, server: FaultyServer, settings: Any) -> Fault:
    server.client.flushall()
    settings.CACHES = caches_at(server.url)
    return FAULTS[request.param]


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
    override("b 0 0 ", "login", USER)
    return until_refused(why="blocked")


REFUSED: dict[str, Callable[[], Callable[[], Decision]]] = {
    **{name: partial(until_refused, algorithm=name) for name in ALGORITHMS},
    "refusals counted": partial(until_refused, count_refused=True),
    "the next refusal bans": partial(until_refused, ban={"after": "9/m", "for": ["10m"]}),
    "refused by a rule that does not block": partial(until_refused, block=False),
    "banned": partial(until_refused, ban=BAN, why="banned"),
    "blocked": blocked,
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_subject_stays_refused(case: str, fault: Fault, server: FaultyServer) -> None:
    """Each refusal is one to be counted, and to be told of again."""
    with freeze(START):
        ask = REFUSED[case]()
    with freeze(START + 5 * SECOND), fault.inject(server):
        decision = ask()
    with freeze(START + 6 * SECOND):
        before = ask()
    assert (decision.allowed, decision.degraded) == (False, False)
    assert (decision.remaining, decision.limit) == (before.remaining, before.limit)


@pytest.mark.parametrize("on_unavailable", ["allow", "deny"])
def test_an_exempt_subject_stays_exempt_and_ends_no_outage(
    on_unavailable: Any, fault: Fault, server: FaultyServer, clock: Clock
) -> None:
    """Nothing was written, so the server may still take no writes; nor was it by what a shadow refuses."""
    override("x 0 0 ", "login", USER)
    outages, free = new_outages(clock), Rule.make("9/m", "9/m", cost=lambda request: 0)
    with fault.inject(server):
        assert check("9/m", "ip:192.0.2.1").degraded
        assert outages.is_on
        clock.now += SETTLE_TIME
        decision = check("0/m", USER, name="login", on_unavailable=on_unavailable, ban=BAN)
        assert (decision.allowed, decision.degraded) == (True, False)
        shadow = check("0/m", "ip:192.0.2.1", shadow=True, on_unavailable=on_unavailable)
        assert (shadow.allowed, shadow.degraded) == (True, False)
        assert not check(free, "ip:192.0.2.1", 0).degraded
        refund("9/m", "ip:192.0.2.1")
        assert outages.is_on
    clock.now += SETTLE_TIME
    assert check("9/m", "ip:192.0.2.1").allowed
    assert not outages.is_on
