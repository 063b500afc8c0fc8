"""Lua and specification are driven with the same random operations, costs and times, and must never differ.

After every step: every key has a TTL, and a refused or peeked operation has changed nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
import redis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from django_quota import Rule
from django_quota.core.algorithms import NEVER
from django_quota.core.algorithms.sliding_window import WRAP, Entry
from django_quota.core.algorithms.stock import MAX_INT64, MIN_INT64
from django_quota.core.algorithms.token_bucket import TokenBucket
from django_quota.core.keys import field, status_key
from django_quota.core.overrides import OverrideTable
from django_quota.engine.codec import ALLOWED, PER_LIMIT, REFUSED, RETRY_WITH, Mode
from django_quota.engine.counter_operations import Set
from django_quota.engine.decide import Decide
from django_quota.engine.plans import Place, Plan, PlanMode, Taken
from django_quota.engine.subject_operations import BanSubject, LiftBans
from tests.support.inputs import inputs
from tests.support.places import Machine, Places, run_machine
from tests.support.random_plans import COSTS, CREDITS, GAPS, POOLED, RULES, VALUES, Asked
from tests.support.specifications import Put
from tests.support.steps import ALGORITHMS, MINUTE, SECOND, START, answers, hits_of
from tests.support.stores import memory_states

TTLS = st.one_of(st.integers(1, 90 * SECOND), st.just(3_600 * SECOND))
SUBJECTS = st.sampled_from(["ip:1.2.3.4", "user:1"])


HITS = st.builds(
    lambda its_rule, subject, cost, value: (
        (its_rule, subject, min(cost, 1), value) if its_rule.distinct else (its_rule, subject, cost, "")
    ),
    st.sampled_from(RULES), SUBJECTS, COSTS, st.sampled_from(VALUES),
)  # fmt: skip
DAY = 86_400 * SECOND


class Stores(Machine):
    """One plan after another in Redis, in memory and in the specification."""

    @initialize(phase=st.integers(0, 86_400 * SECOND))
    def begin(self, phase: int) -> None:
        self.open()
        self.now = self.latest = START + phase
        self.taken: list[tuple[list[Asked], Mapping[Place, Taken]]] = []

    @rule(gap=GAPS)
    def time_passes(self, gap: int) -> None:
        self.now += gap

    @rule(gap=st.integers(1, 2 * SECOND))
    def the_clock_steps_back(self, gap: int) -> None:
        self.now -= gap

    def a_plan_is_decided(
        self, mode: PlanMode, asked: list[Asked], stale: int, with_events: bool, is_estimate: bool
    ) -> None:
        guess = self.now - (0 if stale else 3 * DAY)
        before = self.places.dump()
        plan, reply = self.everywhere(lambda: self.plan(asked, with_events, is_estimate), mode, guess)
        after = self.places.dump()
        replied = dict(zip(plan.limits, answers(reply[: 2 + PER_LIMIT * len(list(plan.limits))]), strict=True))
        for step, answer in replied.items():
            assert not answer.allowed or answer.retry_after == 0 or step.limit.algorithm.name == "leaky_bucket"
            assert answer.allowed or answer.retry_after > 0 or answer.retry_after == NEVER
        refused = {hit.group for hit in plan.hits if not all(replied[step].allowed for step in hit.limits)}
        for hit in plan.hits:
            changes_nothing = mode == "check" and (reply[1] != ALLOWED or hit.group in refused)
            for step in hit.limits if changes_nothing else ():
                # A bucket follows a clock that has stepped back, whether or not the hit is admitted.
                follows = self.now < self.latest and isinstance(step.limit.algorithm, TokenBucket)
                if not (step.limit.options.count_refused and hit.group in refused) and not follows:
                    assert after.get(step.key) == before.get(step.key)
        if mode == "peek":
            assert after == before
        plan.read(reply)
        if mode == "check" and plan.taken:
            self.taken.append((asked, plan.taken))

    @rule(
        which=st.integers(0, 5),
        actual=st.lists(COSTS, min_size=3, max_size=3),
        undone=st.booleans(),
        with_events=st.booleans(),
    )
    def what_it_took_is_adjusted(self, which: int, actual: list[int], undone: bool, with_events: bool) -> None:
        if not self.taken:
            return
        asked, taken = self.taken.pop(which % len(self.taken))
        costs = [0 if undone else units for units in actual[: len(asked)]]
        plan = self.plan(asked, with_events)
        self.everywhere(lambda: plan.settled(taken, costs, undone=undone), "adjust")
        dumped = self.places.dump()
        self.everywhere(lambda: plan.settled({}, costs), "adjust")
        assert self.places.dump() == dumped  # adjusting twice changes nothing

    @rule(
        counter=st.sampled_from([CREDITS, POOLED]),
        subject=SUBJECTS,
        units=st.one_of(st.integers(-3, 40), st.sampled_from([10**12, 2**53 + 1, MAX_INT64, MAX_INT64 - 5, MIN_INT64])),
    )
    def a_counter_is_set(self, counter: Rule, subject: str, units: int) -> None:
        (hit,) = self.plan([(counter, subject, 1, "")], with_events=False).hits
        self.places.run(Set([hit.limits[0].key], units, hit.limits[0].parameters.a), self.now)

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
        forgetting = self.plan([(its_rule, subject, 0, "")], with_events=True).reset_operation(OverrideTable())
        self.places.in_memory(forgetting, self.now)  # which may have dropped what has expired: it counts less
        self.places.in_database(forgetting, self.now)
        assert self.places.in_redis(forgetting, self.now) == self.places.specified(forgetting, self.now)
        assert set(forgetting.keys[1:]) & self.places.dump().keys() <= {"quota:1:{!}:bans"}

    def plan(self, asked: list[Asked], with_events: bool, is_estimate: bool = False) -> Plan:
        plan = Plan("quota", 100 if with_events else 0, asked=list(asked))
        if is_estimate:
            plan.estimate()
        return plan

    def everywhere(self, make: Callable[[], Plan], mode: PlanMode, guess: int | None = None) -> tuple[Plan, list[Any]]:
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
    CREDITS,
    POOLED,
]
ACTS = st.lists(
    st.tuples(
        st.one_of(
            st.just(0), st.integers(0, 15 * SECOND), st.sampled_from([60 * SECOND, 60 * SECOND // 7]),
            st.sampled_from([-SECOND, -3_600 * SECOND]),
        ),
        st.sampled_from(["refund", "peek", "force", *4 * ["check", "adjust"]]),
        st.integers(1, 12),
        st.integers(0, 14),
    ),
    max_size=30,
)  # fmt: skip


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("its_rule", GIVING_BACK, ids=lambda its_rule: its_rule.name)
@inputs(100, suppress_health_check=list(HealthCheck), always=True)
@given(phase=st.integers(0, DAY), acts=ACTS)
def test_lua_and_specification_never_differ_in_what_they_give_back(
    raw: redis.Redis, its_rule: Rule, phase: int, acts: list[tuple[int, str, int, int]]
) -> None:
    """One subject's checks, refunds and adjusts, many at a time."""
    raw.flushall()
    places, now = Places(raw), START + phase
    taken: list[tuple[Plan, Mapping[Place, Taken]]] = []

    def plan_for(cost: int) -> Plan:
        return Plan("quota", asked=[(its_rule, "ip:1.2.3.4", cost, "")])

    for gap, what, cost, other in acts:
        now += gap
        if what != "adjust":
            plan, reply = places.decide(lambda: plan_for(cost), cast("PlanMode", what), now)  # noqa: B023
            plan.read(reply)
            taken += [(plan, plan.taken)] if what == "check" else []
        elif taken:
            plan, found = taken.pop(other % len(taken))
            places.decide(lambda: plan.settled(found, [cost - 1], undone=other == 0), "adjust", now)  # noqa: B023
        places.decide(lambda: plan_for(1), "peek", now)
    places.close()


def test_a_check_asks_for_new_edges_outside_the_periods_and_the_day_sent(places: Places) -> None:
    calendar = hits_of(Rule.make("calendar", "9/m", algorithm="calendar"))
    daily: Any = hits_of(Rule.make("daily", "9/m"), subject="user:1")
    (begins, _, ends, *_), day = calendar[0].limits[0].parameters[1:], daily[0].day
    for hits, edges in ((calendar, (begins, ends)), (daily, (day.begins, day.ends))):
        moments = (edges[0] - 1, edges[0], edges[1] - 1, edges[1])
        verdicts = [places.run(Decide(hits, "check"), now)[1] for now in moments]
        assert verdicts == [RETRY_WITH, ALLOWED, ALLOWED, RETRY_WITH]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_rate_of_zero_keeps_nothing_even_if_refusals_count(algorithm: str, places: Places) -> None:
    rule = Rule.make("never", "0/m", algorithm=algorithm, count_refused=True)
    reply = places.run(Decide(hits_of(rule), "check"), START)
    assert (reply[1], answers(reply[: 2 + PER_LIMIT])[0].retry_after) == (REFUSED, NEVER)
    assert not [key for key in places.dump() if ":r:" in key]


def test_a_running_total_that_wraps_to_zero_hides_no_entry(places: Places) -> None:
    (hit,) = hits_of(Rule.make("sliding", "10/m"), cost=3)
    key, expiry = hit.limits[0].key, START + MINUTE
    value = (Entry(2 * WRAP - 3, 1, expiry),)  # so far from the end of its numbers
    places.raw.zadd(key, {f"{2 * WRAP - 3}:1": expiry})
    places.raw.pexpire(key, 3_600_000)
    for states in (places.states, memory_states(places.memory)):
        states.put(key, value, expiry)
    places.in_database(Put(key, value, expiry), START)

    modes: list[Mode] = ["check", "check", "peek"]
    found = [answers(places.run(Decide([hit], mode), START + n))[0] for n, mode in enumerate(modes, 1)]
    assert [each.remaining for each in found] == [6, 3, 3]
    stored: Any = places.raw.zrange(key, 0, -1)
    totals = [int(each.partition(b":")[0]) for each in stored]
    assert totals == [each.total for each in places.states.get(key)]
    assert all(WRAP <= total < 2 * WRAP for total in totals)
    (dear,) = hits_of(Rule.make("sliding", "10/m"), cost=6)
    waits = [answers(places.run(Decide([dear], "peek"), now))[0].retry_after for now in (START + 4, START + MINUTE)]
    assert waits == [MINUTE - 3, 1]
    assert answers(places.run(Decide([hit], "peek"), START + MINUTE))[0].remaining == 4


@pytest.mark.hypothesis
@pytest.mark.usefixtures("redis_cache")
def test_lua_and_specification_never_differ(raw: redis.Redis) -> None:
    run_machine(Stores, raw, examples=200, steps=30, always=True)


def test_neither_do_rows_in_a_file_and_in_postgresql(
    database: dict[str, Any], redis_cache: Any, raw: redis.Redis
) -> None:
    """The test above has rows of SQLite in memory."""
    run_machine(Stores, raw, examples=15, steps=30, always=True)
