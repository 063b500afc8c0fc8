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
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

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
from django_quota.engine.operations import DictStates
from django_quota.engine.plans import Plan
from django_quota.engine.subject_operations import BanSubject, LiftBans
from django_quota.services.overrides import status_key
from django_quota.stores.memory import MemoryStore
from django_quota.stores.redis.store import RedisStore
from django_quota.testing import RedisServer
from tests.support.inputs import inputs
from tests.support.published import publish
from tests.support.random_plans import COSTS, GAPS, RULES, VALUES, Asked
from tests.support.steps import ALGORITHMS, SECOND, START, answers, driven, hits_of, include_holds
from tests.support.stores import current_store, forget_forms

TTLS = st.one_of(st.integers(1, 90 * SECOND), st.just(3_600 * SECOND))
SUBJECTS = st.sampled_from(["ip:1.2.3.4", "user:1"])


def hits() -> st.SearchStrategy[Asked]:
    return st.builds(
        lambda its_rule, subject, cost, value: (
            (its_rule, subject, min(cost, 1), value) if its_rule.distinct else (its_rule, subject, cost, "")
        ),
        st.sampled_from(RULES), SUBJECTS, COSTS, st.sampled_from(VALUES),
    )  # fmt: skip


class Stores(RuleBasedStateMachine):
    """One plan after another, through real Redis, the memory store and the bare specification."""

    store: RedisStore
    raw: redis.Redis

    @initialize(phase=st.integers(0, 86_400 * SECOND))
    def begin(self, phase: int) -> None:
        self.raw.flushall()
        forget_forms()
        self.memory = MemoryStore(shards=3, sweep_interval=3_600)
        self.states = DictStates()
        self.now = self.latest = START + phase
        self.held: list[tuple[list[Asked], list[HoldId | None]]] = []
        self.tokens = 0

    def teardown(self) -> None:
        if hasattr(self, "memory"):
            self.memory.close()

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
        self.memory.sweep(self.now - 2 * SECOND)  # no further than the clock may step back

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
        before = self.dump()
        plan, reply = self.everywhere(lambda: self.plan(asked, with_events), mode, guess)
        after = self.dump()
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
                    assert after.get(step.key.encode()) == before.get(step.key.encode())
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
            before = self.dump()
            self.everywhere(lambda: self.holding(asked), Settle.of(held, actual[: len(held)][::-1]))
            assert self.dump() == before  # settling twice in time changes nothing

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
        for run in self.stores():
            run(publish(subject, its_rule, value), self.now)

    @rule(its_rule=st.sampled_from(RULES), subject=SUBJECTS, span=st.integers(1, 90 * SECOND))
    def code_bans_a_subject(self, its_rule: Rule, subject: str, span: int) -> None:
        remembered = its_rule.ban.durations[-1] if its_rule.ban else 0
        operation = BanSubject(status_key("quota", subject), field(its_rule.name), span, remembered)
        replies = [run(operation, self.now) for run in self.stores()]
        assert replies[0] == replies[1] == replies[2]
        assert replies[0][0] >= self.now + span
        self.every_key_has_a_ttl()

    @rule(its_rules=st.lists(st.sampled_from(RULES), max_size=3), subject=SUBJECTS)
    def code_lifts_bans(self, its_rules: list[Rule], subject: str) -> None:
        operation = LiftBans(status_key("quota", subject), [field(each.name) for each in its_rules])
        replies = [run(operation, self.now) for run in self.stores()]
        assert replies[0] == replies[1] == replies[2]

    @rule(its_rule=st.sampled_from(RULES), subject=SUBJECTS)
    def a_rule_is_reset(self, its_rule: Rule, subject: str) -> None:
        replies = []
        for run in self.stores():
            forgetting = self.plan([(its_rule, subject, 0, "")], with_events=True).reset_operation()
            replies.append(run(forgetting, self.now))
        assert replies[0] == replies[2]
        left = {key.encode() for key in forgetting.keys[1:]} & self.dump().keys()
        assert left <= {b"quota:1:{!}:bans"}
        self.held = [held for held in self.held if (its_rule, subject) not in [hit[:2] for hit in held[0]]]

    # --- how ----------------------------------------------------------------------------------------------------------

    def plan(self, asked: list[Asked], with_events: bool) -> Plan:
        plan = Plan("quota", 100 if with_events else 0)
        for its_rule, subject, cost, value in asked:
            plan.add(its_rule, subject, cost, value)
        return plan

    def stores(self) -> list[Callable[..., Any]]:
        return [self.store.run, self.memory.run, lambda operation, now: operation.run(self.states, now)]

    def everywhere(self, make: Callable[[], Plan], mode: Mode, guess: int | None = None) -> tuple[Plan, list[Any]]:
        """Decide the same on all three; return the plan in the form that it came to, and the reply."""
        made = [make() for _ in range(3)]
        replies = [driven(run, plan, mode, self.now, guess) for run, plan in zip(self.stores(), made, strict=True)]
        assert replies[0] == replies[1] == replies[2]
        self.every_key_has_a_ttl()
        self.latest = max(self.latest, self.now)
        return made[0], replies[0]

    def dump(self) -> dict[bytes, bytes | None]:
        return {key: self.raw.dump(key) for key in self.raw.scan_iter()}

    def every_key_has_a_ttl(self) -> None:
        assert all(self.raw.pttl(key) > 0 for key in self.raw.scan_iter())


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


class Pair:
    """One subject under one rule, in Redis and under the specification, with what is held and taken there."""

    def __init__(self, its_rule: Rule, now: int) -> None:
        self.rule = its_rule
        self.now = now
        self.states = DictStates()
        self.held: list[HoldId] = []
        self.taken: list[Decide] = []

    def run(self, make: Callable[[Callable[..., Any]], Any]) -> Any:
        """Do the same in both, and return the reply."""
        replies = [make(run) for run in (current_store().run, lambda asked, now: asked.run(self.states, now))]
        assert replies[0] == replies[1]
        return replies[0]

    def ask(self, mode: Mode, cost: int, reservation: Reservation | None = None) -> Any:
        return self.run(lambda run: driven(run, self.plan(mode, cost, reservation), mode, self.now))

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
        plan = self.plan("tentative", cost, reservation)
        plan.read(self.run(lambda run: driven(run, plan, "tentative", self.now)))
        operation = plan.compensation()
        self.taken += [operation] if operation else []

    def undo(self, which: int) -> None:
        if self.taken:
            undo = self.taken.pop(which % len(self.taken))
            self.run(lambda run: run(undo, self.now))


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("its_rule", GIVING_BACK, ids=lambda its_rule: its_rule.name)
@inputs(100, suppress_health_check=list(HealthCheck), always=True)
@given(phase=st.integers(0, DAY), acts=ACTS)
def test_lua_and_specification_never_differ_in_what_they_give_back(
    raw: redis.Redis, its_rule: Rule, phase: int, acts: list[tuple[int, str, int, int]]
) -> None:
    """One subject's holds, refunds, and tentative hits that are compensated, many at a time."""
    raw.flushall()
    forget_forms()
    pair = Pair(its_rule, START + phase)
    for number, (gap, what, cost, other) in enumerate(acts):
        pair.now += gap
        if what in ("reserve", "abandon"):
            pair.reserve(cost, DAY if what == "reserve" else other * SECOND + 1, f"t{number}")
        elif what == "settle":
            pair.settle(cost - 1, other)
        elif what == "renew":
            pair.renew(other * SECOND + 1, cost)
        elif what == "tentative":
            pair.take(cost)
        elif what == "held":
            pair.take(cost, Reservation(f"t{number}", other * SECOND + 1))
        elif what == "undo":
            pair.undo(other)
        else:
            modes: dict[str, Mode] = {"check": "check", "refund": "refund", "peek": "peek"}
            pair.ask(modes[what], cost)
        pair.ask("peek", 1)
        assert all(raw.pttl(key) > 0 for key in raw.scan_iter())


@pytest.mark.usefixtures("redis_cache")
def test_a_calendar_limit_asks_for_new_edges_outside_the_two_periods_sent() -> None:
    hits = hits_of(Rule.make("calendar", "9/m", algorithm="calendar"))
    begins, _, ends, *_ = hits[0].limits[0].parameters[1:]
    states = DictStates()
    for run in (current_store().run, lambda asked, now: asked.run(states, now)):
        replies = [run(Decide(hits, "check"), now) for now in (begins - 1, begins, ends - 1, ends)]
        assert [reply[1] for reply in replies] == [RETRY_WITH, ALLOWED, ALLOWED, RETRY_WITH]


@pytest.mark.usefixtures("redis_cache")
def test_a_counted_day_asks_for_new_edges_outside_the_day_sent() -> None:
    hits = hits_of(Rule.make("daily", "9/m"), subject="user:1")
    day = hits[0].day
    assert day is not None
    states = DictStates()
    for run in (current_store().run, lambda asked, now: asked.run(states, now)):
        replies = [run(Decide(hits, "check"), now) for now in (day.begins - 1, day.begins, day.ends - 1, day.ends)]
        assert [reply[1] for reply in replies] == [RETRY_WITH, ALLOWED, ALLOWED, RETRY_WITH]


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_rate_of_zero_keeps_nothing_even_if_refusals_count(algorithm: str, raw: redis.Redis) -> None:
    rule = Rule.make("never", "0/m", algorithm=algorithm, count_refused=True)
    states = DictStates()
    for run in (current_store().run, lambda asked, now: asked.run(states, now)):
        for moment in (START, START + SECOND):
            reply = run(Decide(hits_of(rule, now=moment), "check"), moment)
            assert (reply[1], answers(reply[: 2 + PER_LIMIT])[0].retry_after) == (0, NEVER)
    assert list(raw.scan_iter("*:r:*")) == []


@pytest.mark.usefixtures("redis_cache")
def test_a_subject_without_a_status_hides_no_other_one() -> None:
    states = DictStates()
    its_rule = Rule.make("exact", "5/m")
    hits = [hit for subject in ("ip:1.2.3.4", "user:1") for hit in hits_of(its_rule, subject=subject)]
    for run in (current_store().run, lambda asked, now: asked.run(states, now)):
        run(publish("user:1", "*", "b 0 0 "), START)
        reply = run(Decide(hits, "check"), START)
        assert (reply[1], reply[-3:]) == (REFUSED, [1, Flag.BLOCKED, 0])


@pytest.mark.usefixtures("redis_cache")
def test_the_day_counts_who_is_exempt_and_not_a_hit_that_another_one_refuses(raw: redis.Redis) -> None:
    states = DictStates()
    hits = hits_of(Rule.make("free", "5/m"), Rule.make("full", "0/m"), subject="user:1")
    for run in (current_store().run, lambda asked, now: asked.run(states, now)):
        run(publish("user:1", "free", "x 0 0 "), START)
        for _ in range(2):
            run(Decide(hits[:1], "check"), START)
        run(publish("user:1", "free", ""), START)
        run(Decide(hits, "check"), START)
    key = hits[0].keys[-1]
    counts: Any = raw.hgetall(key)
    assert {name.decode(): int(count) for name, count in counts.items()} == states.get(key)
    assert states.get(key) == {"#": START, "free:a": 2, "full:r": 1}


@pytest.mark.usefixtures("redis_cache")
def test_an_override_that_is_gone_with_the_whole_status_is_noticed() -> None:
    states = DictStates()
    (hit,) = hits_of(Rule.make("exact", "5/m"))
    hit.override = "r 0 0 7/m"
    for run in (current_store().run, lambda asked, now: asked.run(states, now)):
        assert run(Decide([hit], "check"), START)[:4] == [START, RETRY_WITH, 0, Flag.OVERRIDDEN]


@pytest.mark.usefixtures("redis_cache")
def test_running_totals_wrap_around_in_lua_as_in_the_specification(raw: redis.Redis) -> None:
    its_rule = Rule.make("sliding", f"{10**12}/d")
    (hit,) = hits_of(its_rule, cost=10**12 // 3)
    key, states, expiry = hit.limits[0].key, DictStates(), START + 3_600 * SECOND
    raw.zadd(key, {f"{2 * WRAP - 2}:1": expiry})
    raw.pexpire(key, 3_600_000)
    states.put(key, (Entry(2 * WRAP - 2, 1, expiry),), expiry)
    for number in range(1, 4):
        replies = [
            run(Decide([hit], "check"), START + number)
            for run in (current_store().run, lambda asked, now: asked.run(states, now))
        ]
        assert replies[0] == replies[1]
        kept: Any = raw.zrange(key, 0, -1, withscores=True)
        assert [(member.decode(), int(score)) for member, score in kept] == [
            (f"{entry.total}:{entry.cost}", entry.expiry) for entry in states.get(key)
        ]
        assert all(WRAP <= entry.total < 2 * WRAP for entry in states.get(key))


@pytest.mark.usefixtures("redis_cache")
def test_a_running_total_that_wraps_to_zero_hides_no_entry(raw: redis.Redis) -> None:
    (hit,) = hits_of(Rule.make("sliding", "10/m"))
    (key, states, expiry), hit.cost = (hit.limits[0].key, DictStates(), START + 10 * SECOND), 3
    raw.zadd(key, {f"{2 * WRAP - 3}:1": expiry})
    states.put(key, (Entry(2 * WRAP - 3, 1, expiry),), expiry)
    for run in (current_store().run, lambda asked, now: asked.run(states, now)):
        assert [answers(run(Decide([hit], "check"), START + n))[0].remaining for n in (1, 2)] == [6, 3]
        assert answers(run(Decide([hit], "peek"), START + 3))[0].remaining == 3


@pytest.mark.hypothesis
@pytest.mark.usefixtures("redis_cache")
def test_lua_and_specification_never_differ(raw: redis.Redis, redis_server: RedisServer) -> None:
    Stores.store = RedisStore("default")
    Stores.raw = raw
    run_state_machine_as_test(
        Stores,
        settings=inputs(200, stateful_step_count=30, suppress_health_check=list(HealthCheck), always=True),
    )
    Stores.store.close()
