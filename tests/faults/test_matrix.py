"""Each fault of a real Redis with each public call: only our errors, and everything works afterwards."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from django_quota import Decision, Rule, check, refund
from django_quota.testing import freeze
from tests.faults.calls import CALLS, MODES, assert_recovers, broken_promises, caches_at, prepared, use_site_rules
from tests.faults.faults import FAULTS, PASSWORD, Fault, FaultyServer
from tests.support.outages import SETTLE_TIME, new_outages
from tests.support.overridden import override
from tests.support.steps import ALGORITHMS, SECOND, START, Clock

TAKES_NO_WRITES = ("read-only", "cannot-save", "full", "no-replicas")

RESETS = {"reset", "reset all"}
READS = {
    "peek", *RESETS, "counter.get", "counter.series", "counter.take", "counter.unique_count", "holders", "unban",
}  # fmt: skip
"""What needs to write nothing in these tests: a server that refuses writes alone answers it, and rightly."""

FREES = {"counter.pop", "refund", "release what was held before", "settle what was held before"}
"""What a full server does, too, since it takes memory from nobody."""

ANSWERED = {**dict.fromkeys(TAKES_NO_WRITES, READS - RESETS), "full": READS | FREES}


def is_left_out(fault: str, mode: str) -> bool:
    return fault == "hung" or (mode != MODES[0] and fault != "refused")


@pytest.mark.parametrize(
    ("fault", "mode"),
    [
        pytest.param(
            fault,
            mode,
            id=f"{fault.name}-{mode}",
            marks=[pytest.mark.thorough("faults")] if is_left_out(fault.name, mode) else [],
        )
        for fault in FAULTS.values()
        for mode in (MODES[:1] if fault.name in ("hung", "loading") else MODES)  # under these each call waits
    ],
)
def test_each_call_keeps_its_promise_through_a_fault(
    fault: Fault, mode: str, server: FaultyServer, settings: Any
) -> None:
    settings.CACHES = caches_at(server.url, fault.timeout)
    use_site_rules(settings)
    clock = Clock()
    server.client.flushall()
    states = [prepared(call) for call in CALLS]

    with fault.inject(server):
        found = broken_promises(mode, states, clock)

    said = found.pop("said")
    answered = ANSWERED.get(fault.name, set())
    assert {name: wrong for name, (wrong, ill) in found.items() if ill or name not in answered} == {}
    assert [words for words in said if not re.search(fault.words, words) or PASSWORD in words] == []
    assert_recovers(mode, clock)


# --- a Redis that only reads -----------------------------------------------------------------------------------------

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
    """Each refusal would be counted and reported again, which needs a write."""
    with freeze(START):
        ask = REFUSED[case]()

    with freeze(START + 5 * SECOND), fault.inject(server):
        decision = ask()

    with freeze(START + 6 * SECOND):
        before = ask()
    assert (decision.allowed, decision.degraded) == (False, False)
    assert (decision.remaining, decision.limit) == (before.remaining, before.limit)


class TestWhatNeedsNoWrite:
    """It is decided by a server that takes no writes, and says nothing of whether it does again."""

    @pytest.fixture(params=["allow", "deny"])
    def on_unavailable(self, request: pytest.FixtureRequest) -> Any:
        return request.param

    @pytest.fixture
    def outages(self, fault: Fault, server: FaultyServer, clock: Clock) -> Iterator[Any]:
        """An outage that has lasted so long that an answer of Redis would end it; for as long, the server is ill."""
        override("x 0 0 ", "login", USER)
        outages = new_outages(clock)
        with fault.inject(server):
            assert check("9/m", "ip:192.0.2.1").degraded
            assert outages.is_on
            clock.now += SETTLE_TIME
            yield outages

    def test_an_exempt_subject_stays_exempt(self, outages: Any, on_unavailable: Any) -> None:
        decision = check("0/m", USER, name="login", on_unavailable=on_unavailable, ban=BAN)

        assert (decision.allowed, decision.degraded) == (True, False)
        assert outages.is_on

    def test_what_a_shadow_refuses_is_decided(self, outages: Any, on_unavailable: Any) -> None:
        decision = check("0/m", "ip:192.0.2.1", shadow=True, on_unavailable=on_unavailable)

        assert (decision.allowed, decision.degraded) == (True, False)
        assert outages.is_on

    def test_what_costs_nothing_is_decided(self, outages: Any) -> None:
        free = Rule.make("9/m", "9/m", cost=lambda request: 0)

        assert not check(free, "ip:192.0.2.1", 0).degraded
        assert outages.is_on

    def test_a_refund_of_nothing_ends_no_outage(self, outages: Any) -> None:
        refund("9/m", "ip:192.0.2.1")

        assert outages.is_on


def test_a_hit_ends_the_outage(fault: Fault, server: FaultyServer, clock: Clock) -> None:
    outages = new_outages(clock)
    with fault.inject(server):
        assert check("9/m", "ip:192.0.2.1").degraded
        assert outages.is_on
    clock.now += 2 * SETTLE_TIME

    assert check("9/m", "ip:192.0.2.1").allowed

    assert not outages.is_on
