"""Lua and specification are driven with the same random operations, costs and times, and must never differ.

After every step: every key has a TTL, and a refused or peeked operation has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from django_quota import Rule
from django_quota.core.algorithms import NEVER
from django_quota.core.algorithms.sliding_window import WRAP, Entry
from django_quota.core.algorithms.token_bucket import TokenBucket
from django_quota.core.keys import field
from django_quota.engine.codec import (
    ALLOWED,
    PER_LIMIT,
    REFUSED,
    RETRY_WITH,
    Flag,
    HoldId,
    Mode,
    Renew,
    Reply,
    Reservation,
    Settle,
)
from django_quota.engine.decide import Decide
from django_quota.engine.hits import Hit
from django_quota.engine.plans import Plan
from django_quota.engine.subject_operations import BanSubject, LiftBans
from django_quota.services.overrides import status_key
from tests.support.inputs import inputs
from tests.support.places import Machine, Places, run_machine
from tests.support.published import publish
from tests.support.random_plans import COSTS, GAPS, RULES, VALUES, Asked
from tests.support.steps import ALGORITHMS, SECOND, START, answers, hits_of, include_holds

TTLS = st.one_of(st.integers(1, 90 * SECOND), st.just(3_600 * SECOND))
SUBJECTS = st.sampled_from(["ip:1.2.3.4", "user:1"])


def hits() -> st.SearchStrategy[Asked]:
    return st.builds(
        lambda its_rule, subject, cost, value: (
            (its_rule, subject, min(cost, 1), value) if its_rule.distinct else (its_rule, subject, cost, "")
        ),
        st.sampled_from(RULES), SUBJECTS, COSTS, st.sampled_from(VALUES),
    )  # fmt: skip


class Stores(Machine):
    """One plan after another in Redis, in memory and in the specification."""

    @initialize(phase=st.integers(0, 86_400 * SECOND))
    def begin(self, phase: int) -> None:
        self.open()
        self.now = self.latest = START + phase
        self.held: list[tuple[list[Asked], list[HoldId | None]]] = []
        self.tokens = 0

    # --- time ---------------------------------------------------------------------------------------------------------

    @rule(gap=GAPS)
    def time_passes(self, gap: int) -> None:
        self.now += gap

    @rule(gap=st.integers(1, 2 * SECOND))
    def the_clock_steps_back(self, gap: int) -> None:
        self.now -= gap

    @rule(gap=GAPS)
    def the_memory_store_sweeps(self, gap: int) -> None:
        self.now += gap
        self.places.memory.sweep(self.now - 2 * SECOND)  # no further than the clock may step back

    # --- decisions ----------------------------------------------------------------------------------------------------

    @rule(
        mode=st.sampled_from(["check", "check", "check", "peek", "refund"]),
        # One rule asks one subject once, in a plan.
        asked=st.lists(hits(), min_size=1, max_size=3, unique_by=lambda hit: (hit[0].name, hit[1])),
        stale=st.integers(0, 40),
        with_events=st.booleans(),
    )
    def a_plan_is_decided(self, mode: Mode, asked: list[Asked], stale: int, with_events: bool) -> None:
        guess = self.now - (0 if stale else 3 * 86_400 * SECOND)
        before = self.places.dump()
        plan, reply = self.everywhere(lambda: self.plan(asked, with_events), mode, guess)
        after = self.places.dump()
        replied = answers(reply[: 2 + PER_LIMIT * len(list(plan.limits))])
        for step, answer in zip(plan.limits, replied, strict=True):
            assert not answer.allowed or answer.retry_after == 0 or step.limit.algorithm.name == "leaky_bucket"
            assert answer.allowed or answer.retry_after > 0 or answer.retry_after == NEVER
        refused = set()
        for hit in plan.hits:
            if not all(answer.allowed for step, answer in zip(plan.limits, replied, strict=True) if step in hit.limits):
                refused.add(hit.group)
        for hit in plan.hits:
            changes_nothing = mode == "check" and (reply[1] != ALLOWED or hit.group in refused)
            if not changes_nothing or hit.holds:  # the next call restores abandoned holds
                continue
            for step in hit.limits:
                # A bucket follows a clock that has stepped back, whether or not the hit is admitted.
                follows = self.now < self.latest and isinstance(step.limit.algorithm, TokenBucket)
                if not (step.limit.options.count_refused and hit.group in refused) and not follows:
                    assert after.get(step.key) == before.get(step.key)
        if mode == "peek":
            assert after == before

    @rule(
        asked=st.lists(hits(), min_size=1, max_size=3, unique_by=lambda hit: (hit[0].name, hit[1])),
        ttl=TTLS,
        with_events=st.booleans(),
    )
    def some_is_reserved(self, asked: list[Asked], ttl: int, with_events: bool) -> None:
        asked = [hit for hit in asked if not hit[0].distinct]
        if not asked:
            return
        self.tokens += 1
        reservation = Reservation(f"t{self.tokens}", ttl)

        def holding() -> Plan:
            plan = self.plan(asked, with_events)
            plan.reserve(reservation)
            return plan

        plan, reply = self.everywhere(holding, "check")
        plan.read(reply)
        for hit, held in zip(plan.hits, plan.holds, strict=True):
            found: Any = self.raw.zrangebyscore(hit.holds, self.now + ttl, self.now + ttl)
            costs = [member.split(b" ")[1] for member in found if member.startswith(f"{reservation.token} ".encode())]
            assert costs == ([] if held is None else [str(hit.cost).encode()])
            assert held is None or reply[1] == ALLOWED
        if any(plan.holds):
            self.held.append((asked, plan.holds))

    @rule(which=st.integers(0, 5), ttl=TTLS, lost=st.booleans())
    def holds_are_renewed(self, which: int, ttl: int, lost: bool) -> None:
        if not self.held:
            return
        asked, held = self.held[which % len(self.held)]
        plan, reply = self.everywhere(lambda: self.holding(asked), Renew.of(held, [ttl] * len(held)))
        dues = {index: value for index, flag, value in Reply.decode(reply, plan.hits).flags if flag == Flag.HELD}
        for index, (hit, hold) in enumerate(zip(plan.hits, held, strict=True)):
            if hold is None:
                assert index not in dues
            elif index in dues:
                assert dues[index] >= max(hold.due, self.now + ttl)
                assert self.due_of(hit, hold) == dues[index]
                if not lost:  # else the hold is found under its older name
                    held[index] = HoldId(dues[index], hold.token)
            else:
                due = self.due_of(hit, hold)
                assert due is None or due <= self.now

    @rule(which=st.integers(0, 5), actual=st.lists(COSTS, min_size=3, max_size=3))
    def holds_are_settled(self, which: int, actual: list[int]) -> None:
        if not self.held:
            return
        asked, held = self.held.pop(which % len(self.held))
        self.everywhere(lambda: self.holding(asked), Settle.of(held, actual[: len(held)]))
        if all(hold is None or self.now < hold.due for hold in held):
            before = self.places.dump()
            self.everywhere(lambda: self.holding(asked), Settle.of(held, actual[: len(held)][::-1]))
            assert self.places.dump() == before  # settling twice in time changes nothing

    def holding(self, asked: list[Asked]) -> Plan:
        plan = self.plan(asked, with_events=False)
        include_holds(plan)
        return plan

    def due_of(self, hit: Hit, hold: HoldId) -> int | None:
        """When a hold is due in Redis; None if it is gone."""
        found: Any = self.raw.zrange(hit.holds, 0, -1, withscores=True)
        dues = [int(due) for member, due in found if member.startswith(f"{hold.token} ".encode())]
        return dues[0] if dues else None

    # --- what stands above the limits ---------------------------------------------------------------------------------

    @rule(
        its_rule=st.one_of(st.just("*"), st.sampled_from([r.name for r in RULES])),
        subject=SUBJECTS,
        mode=st.sampled_from(["x", "b", "r", "gone"]),
        rates=st.sampled_from(["2/m", "30/m; 100/h", "9/fortnight"]),
        begins=st.sampled_from([0, -SECOND, 5 * SECOND]),
        ends=st.sampled_from([None, 30 * SECOND, -SECOND]),
    )
    def an_override_is_published(
        self, its_rule: str, subject: str, mode: str, rates: str, begins: int, ends: int | None
    ) -> None:
        start = self.now + begins if begins else 0
        stop = 0 if ends is None else self.now + ends
        value = "" if mode == "gone" else f"{mode} {start} {stop} {rates if mode == 'r' else ''}"
        self.places.run(publish(subject, its_rule, value), self.now)

    @rule(its_rule=st.sampled_from(RULES), subject=SUBJECTS, span=st.integers(1, 90 * SECOND))
    def code_bans_a_subject(self, its_rule: Rule, subject: str, span: int) -> None:
        remembered = its_rule.ban.durations[-1] if its_rule.ban else 0
        operation = BanSubject(status_key("quota", subject), field(its_rule.name), span, remembered)
        assert self.places.run(operation, self.now)[0] >= self.now + span

    @rule(its_rules=st.lists(st.sampled_from(RULES), max_size=3), subject=SUBJECTS)
    def code_lifts_bans(self, its_rules: list[Rule], subject: str) -> None:
        operation = LiftBans(status_key("quota", subject), [field(each.name) for each in its_rules])
        self.places.run(operation, self.now)

    @rule(its_rule=st.sampled_from(RULES), subject=SUBJECTS)
    def a_rule_is_reset(self, its_rule: Rule, subject: str) -> None:
        forgetting = self.plan([(its_rule, subject, 0, "")], with_events=True).reset_operation()
        self.places.in_memory(forgetting, self.now)  # which may have dropped what has expired: it counts less
        assert self.places.in_redis(forgetting, self.now) == self.places.specified(forgetting, self.now)
        assert set(forgetting.keys[1:]) & self.places.dump().keys() <= {"quota:1:{!}:bans"}
        self.held = [held for held in self.held if (its_rule, subject) not in [hit[:2] for hit in held[0]]]

    # --- how ----------------------------------------------------------------------------------------------------------

    def plan(self, asked: list[Asked], with_events: bool) -> Plan:
        plan = Plan("quota", 100 if with_events else 0)
        for its_rule, subject, cost, value in asked:
            plan.add(its_rule, subject, cost, value)
        return plan

    def everywhere(self, make: Callable[[], Plan], mode: Mode, guess: int | None = None) -> tuple[Plan, list[Any]]:
        """Decide the same in all places; return the plan in the form that it came to, and the reply."""
        decided = self.places.decide(make, mode, self.now, guess)
        self.latest = max(self.latest, self.now)
        return decided


# --- giving back ------------------------------------------------------------------------------------------------------

GIVING_BACK = [
    Rule.make("bucket", "7/m", algorithm="token_bucket", burst=30),
    Rule.make("buckets", "30/m; 60/h", algorithm="token_bucket"),
    Rule.make("leaky", "30/m", algorithm="leaky_bucket"),
    Rule.make("exact", "30/m"),
    Rule.make("slices", "30/m", precision=3),
    Rule.make("fixed", "30/m", algorithm="fixed_window"),
    Rule.make("calendar", "30/m", algorithm="calendar"),
]
ACTS = st.lists(
    st.tuples(
        st.one_of(
            st.just(0), st.integers(0, 15 * SECOND), st.sampled_from([60 * SECOND, 60 * SECOND // 7]),
            st.sampled_from([-SECOND, -3_600 * SECOND]),
        ),
        st.sampled_from(
            ["check", "refund", "peek", "held", "abandon", "renew", "undo", *2 * ["reserve", "settle", "tentative"]]
        ),
        st.integers(1, 12),
        st.integers(0, 14),
    ),
    max_size=30,
)  # fmt: skip
DAY = 86_400 * SECOND


class Subject:
    """One subject under one rule in all places, with what is held and taken there."""

    def __init__(self, places: Places, its_rule: Rule, now: int) -> None:
        self.places = places
        self.rule = its_rule
        self.now = now
        self.held: list[HoldId] = []
        self.taken: list[Decide] = []

    def ask(self, mode: Mode, cost: int, reservation: Reservation | None = None) -> Any:
        _, reply = self.places.decide(lambda: self.plan(mode, cost, reservation), mode, self.now)
        return reply

    def plan(self, mode: Mode, cost: int, reservation: Reservation | None = None) -> Plan:
        plan = Plan("quota")
        plan.add(self.rule, "ip:1.2.3.4", cost)
        if isinstance(mode, (Renew, Settle)):
            include_holds(plan)
        if reservation is not None:
            plan.reserve(reservation)
        return plan

    def reserve(self, cost: int, ttl: int, token: str) -> None:
        if self.ask("check", cost, Reservation(token, ttl))[1] == ALLOWED:
            self.held.append(HoldId(self.now + ttl, token))

    def settle(self, actual: int, which: int) -> None:
        if self.held:
            self.ask(Settle.of([self.held.pop(which % len(self.held))], [actual]), 1)

    def renew(self, ttl: int, which: int) -> None:
        if self.held:
            self.ask(Renew.of([self.held[which % len(self.held)]], [ttl]), 1)  # found later, as if its reply were lost

    def take(self, cost: int, reservation: Reservation | None = None) -> None:
        plan, reply = self.places.decide(lambda: self.plan("tentative", cost, reservation), "tentative", self.now)
        plan.read(reply)
        operation = plan.compensation()
        self.taken += [operation] if operation else []

    def undo(self, which: int) -> None:
        if self.taken:
            self.places.run(self.taken.pop(which % len(self.taken)), self.now)


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("its_rule", GIVING_BACK, ids=lambda its_rule: its_rule.name)
@inputs(100, suppress_health_check=list(HealthCheck), always=True)
@given(phase=st.integers(0, DAY), acts=ACTS)
def test_lua_and_specification_never_differ_in_what_they_give_back(
    raw: redis.Redis, its_rule: Rule, phase: int, acts: list[tuple[int, str, int, int]]
) -> None:
    """One subject's holds, refunds, and tentative hits that are compensated, many at a time."""
    raw.flushall()
    places = Places(raw)
    one = Subject(places, its_rule, START + phase)
    for number, (gap, what, cost, other) in enumerate(acts):
        one.now += gap
        if what in ("reserve", "abandon"):
            one.reserve(cost, DAY if what == "reserve" else other * SECOND + 1, f"t{number}")
        elif what == "settle":
            one.settle(cost - 1, other)
        elif what == "renew":
            one.renew(other * SECOND + 1, cost)
        elif what == "tentative":
            one.take(cost)
        elif what == "held":
            one.take(cost, Reservation(f"t{number}", other * SECOND + 1))
        elif what == "undo":
            one.undo(other)
        else:
            modes: dict[str, Mode] = {"check": "check", "refund": "refund", "peek": "peek"}
            one.ask(modes[what], cost)
        one.ask("peek", 1)
    places.close()


def test_a_calendar_limit_asks_for_new_edges_outside_the_two_periods_sent(places: Places) -> None:
    hits = hits_of(Rule.make("calendar", "9/m", algorithm="calendar"))
    begins, _, ends, *_ = hits[0].limits[0].parameters[1:]
    verdicts = [places.run(Decide(hits, "check"), now)[1] for now in (begins - 1, begins, ends - 1, ends)]
    assert verdicts == [RETRY_WITH, ALLOWED, ALLOWED, RETRY_WITH]


def test_a_counted_day_asks_for_new_edges_outside_the_day_sent(places: Places) -> None:
    hits = hits_of(Rule.make("daily", "9/m"), subject="user:1")
    day: Any = hits[0].day
    moments = (day.begins - 1, day.begins, day.ends - 1, day.ends)
    assert [places.run(Decide(hits, "check"), now)[1] for now in moments] == [RETRY_WITH, ALLOWED, ALLOWED, RETRY_WITH]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_rate_of_zero_keeps_nothing_even_if_refusals_count(algorithm: str, places: Places) -> None:
    rule = Rule.make("never", "0/m", algorithm=algorithm, count_refused=True)
    for moment in (START, START + SECOND):
        reply = places.run(Decide(hits_of(rule, now=moment), "check"), moment)
        assert (reply[1], answers(reply[: 2 + PER_LIMIT])[0].retry_after) == (REFUSED, NEVER)
    assert not [key for key in places.dump() if ":r:" in key]


def test_a_subject_without_a_status_hides_no_other_one(places: Places) -> None:
    its_rule = Rule.make("exact", "5/m")
    hits = [hit for subject in ("ip:1.2.3.4", "user:1") for hit in hits_of(its_rule, subject=subject)]
    places.run(publish("user:1", "*", "b 0 0 "), START)
    reply = places.run(Decide(hits, "check"), START)
    assert (reply[1], reply[-3:]) == (REFUSED, [1, Flag.BLOCKED, 0])


def test_the_day_counts_who_is_exempt_and_not_a_hit_that_another_one_refuses(places: Places) -> None:
    hits = hits_of(Rule.make("free", "5/m"), Rule.make("full", "0/m"), subject="user:1")
    places.run(publish("user:1", "free", "x 0 0 "), START)
    for _ in range(2):
        places.run(Decide(hits[:1], "check"), START)
    places.run(publish("user:1", "free", ""), START)
    places.run(Decide(hits, "check"), START)
    counts: Any = places.raw.hgetall(hits[0].keys[-1])
    assert {name.decode(): int(count) for name, count in counts.items()} == places.states.get(hits[0].keys[-1])
    assert places.states.get(hits[0].keys[-1]) == {"#": START, "free:a": 2, "full:r": 1}


def test_an_override_that_is_gone_with_the_whole_status_is_noticed(places: Places) -> None:
    (hit,) = hits_of(Rule.make("exact", "5/m"))
    hit.override = "r 0 0 7/m"
    assert places.run(Decide([hit], "check"), START)[:4] == [START, RETRY_WITH, 0, Flag.OVERRIDDEN]


def has_used_all_but(places: Places, key: str, left: int) -> None:
    """Let a sliding window have one entry, whose running total is so far from the end of its numbers."""
    expiry = START + 3_600 * SECOND
    places.raw.zadd(key, {f"{2 * WRAP - left}:1": expiry})
    places.raw.pexpire(key, 3_600_000)
    for states in (places.states, places.memory._shard(key)):
        states.put(key, (Entry(2 * WRAP - left, 1, expiry),), expiry)


def test_running_totals_wrap_around_in_lua_as_in_the_specification(places: Places) -> None:
    (hit,) = hits_of(Rule.make("sliding", f"{10**12}/d"), cost=10**12 // 3)
    key = hit.limits[0].key
    has_used_all_but(places, key, 2)
    for number in range(1, 4):
        places.run(Decide([hit], "check"), START + number)
        kept: Any = places.raw.zrange(key, 0, -1, withscores=True)
        entries = places.states.get(key)
        assert [(member.decode(), int(score)) for member, score in kept] == [
            (f"{entry.total}:{entry.cost}", entry.expiry) for entry in entries
        ]
        assert all(WRAP <= entry.total < 2 * WRAP for entry in entries)


def test_a_running_total_that_wraps_to_zero_hides_no_entry(places: Places) -> None:
    (hit,) = hits_of(Rule.make("sliding", "10/m"), cost=3)
    has_used_all_but(places, hit.limits[0].key, 3)
    modes: list[Mode] = ["check", "check", "peek"]
    left = [answers(places.run(Decide([hit], mode), START + n))[0].remaining for n, mode in enumerate(modes, 1)]
    assert left == [6, 3, 3]


@pytest.mark.hypothesis
@pytest.mark.usefixtures("redis_cache")
def test_lua_and_specification_never_differ(raw: redis.Redis) -> None:
    run_machine(Stores, raw, examples=200, steps=30, always=True)
