"""Redis, memory, rows and the specification do the same: random operations at random times, and they never differ."""

import itertools
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any, Literal

import pytest
import redis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from django_quota import Rule
from django_quota.core.algorithms import NEVER
from django_quota.core.algorithms.sliding_window import WRAP, WindowEntry
from django_quota.core.algorithms.stock import MAX_INT64, MIN_INT64, Credit, Total
from django_quota.core.algorithms.token_bucket import Bucket, TokenBucket
from django_quota.core.errors import StoreDataError
from django_quota.core.keys import field, status_key
from django_quota.core.rates import Rate
from django_quota.engine import system_operations as site
from django_quota.engine.asks import Ask, Asked, Place
from django_quota.engine.codec import ALLOWED, PER_LIMIT, REFUSED, Flag, Mode, Reply
from django_quota.engine.decide import Decide
from django_quota.engine.events import NO_LOG, RecordHits
from django_quota.engine.hits import Ahead, Hit
from django_quota.engine.operations import Operation, text
from django_quota.engine.receipts import Receipt
from django_quota.features import bans, resets, subject_contents
from django_quota.features.counters import operations as counters
from django_quota.features.once import Once
from django_quota.features.reservations.calls import GiveBackEnded, RenewLeases
from django_quota.features.slots import calls as leases
from django_quota.features.usage import days
from django_quota.stores.database.connections import Turns
from tests.support.inputs import inputs
from tests.support.places import Machine, Places, run_machine
from tests.support.questions import Question, QuestionMode
from tests.support.random_plans import COSTS, CREDITS, GAPS, LEASED, PLANS, POOLED, RULES, VALUES, WITH_SHARES
from tests.support.selection import thorough
from tests.support.steps import MINUTE, SECOND, START, answers, hits_of

DAY = 86_400 * SECOND
MIDNIGHT = START // DAY * DAY
CLIENTS = st.sampled_from(["ip:1.2.3.4", "user:1"])
SOME_RULES = st.just(RULES) | st.lists(st.sampled_from(RULES), min_size=1, max_size=3)
"""All of them, or a few that meet the same subjects again and again."""


class Plans(Machine):
    """Plans of any rules are decided, looked at, forced, refunded, and settled; bans come and go."""

    @initialize(phase=st.integers(0, DAY), its_rules=SOME_RULES)
    def begin(self, phase: int, its_rules: list[Asked]) -> None:
        self.now = self.latest = START + phase
        self.its_rules = its_rules
        self.taken: list[Receipt] = []
        self.shares: dict[Place, list[tuple[Ahead, int]]] = {}
        self.ids = itertools.count(1)

    def ahead(self, place: Place, what: Sequence[int]) -> Ahead:
        """Return a share that is returned, in which any part is spent, and a wish for another one."""
        which, spent, wish, divisor = what
        shares = self.shares.get(place, [])
        new_id, lease = f"n{next(self.ids)}", (SECOND, 3 * SECOND)[wish % 2]
        if which >= len(shares):
            return Ahead("", 0, new_id, wish, divisor, lease)
        returned, units = shares.pop(which)
        return Ahead(returned.new_id, spent % (units + 1), new_id, wish, divisor, lease)

    @rule(gap=GAPS | st.integers(-2 * SECOND, -1) | st.just(-3_600 * SECOND))
    def time_passes_or_steps_back(self, gap: int) -> None:
        self.now = max(self.now + gap, self.swept_at)

    @rule(
        mode=st.sampled_from(["check", "check", "check", "force", "peek", "refund"]),
        hits=st.lists(st.tuples(st.integers(0, 99), CLIENTS, COSTS, st.sampled_from(VALUES)), min_size=1, max_size=3),
        stale=st.integers(0, 40),
        with_events=st.booleans(),
        is_estimate=st.booleans(),
        ahead=st.tuples(st.integers(0, 3), st.integers(0, 9), st.sampled_from([0, 1, 4, 40]), st.integers(1, 3)),
    )
    def a_plan_is_decided(
        self, mode: QuestionMode, hits: list[Any], stale: int, with_events: bool, is_estimate: bool, ahead: Any
    ) -> None:
        asks: dict[Place, Ask] = {}  # one rule asks one subject once, in a plan
        for number, subject, cost, value in hits:
            of = self.its_rules[number % len(self.its_rules)]
            units, counted = (min(cost, 1), value) if of.distinct else (cost, "")
            counted = f"lease{next(self.ids)}" if of in LEASED else counted
            asks[Place(of.name, subject)] = Ask(of, subject, units, counted, is_estimate)
        shares = {place: self.ahead(place, ahead) for place, ask in asks.items() if ask.rule.lease}
        question = Question(list(asks.values()), with_events=with_events, ahead=shares)
        guess = self.now - (0 if stale else 3 * DAY)
        before = self.places.dump()

        reply = self.everywhere(question, mode, guess)

        after = self.places.dump()
        its_hits = question.hits_at(reply[0])
        steps = [step for hit in its_hits for step in hit.limits]
        replied = dict(zip(steps, answers(reply[: 2 + PER_LIMIT * len(steps)]), strict=True))
        for step, answer in replied.items():
            assert not answer.allowed or answer.retry_after == 0 or step.limit.algorithm.name == "leaky_bucket"
            assert answer.allowed or answer.retry_after > 0 or answer.retry_after == NEVER
        refused = {hit.group for hit in its_hits if not all(replied[step].allowed for step in hit.limits)}
        for hit in its_hits:
            changes_nothing = mode == "check" and (reply[1] != ALLOWED or hit.group in refused)
            changes_nothing = changes_nothing and not hit.leased_keys  # leases that have ended give back
            has_returned = hit.ahead is not None and bool(hit.ahead.id) and mode != "peek"
            for step in hit.limits if changes_nothing and not has_returned else ():
                # A bucket follows a clock that has stepped back, whether or not the hit is admitted.
                follows = self.now < self.latest and isinstance(step.limit.algorithm, TokenBucket)
                if not (step.limit.options.count_refused and hit.group in refused) and not follows:
                    assert after.get(step.key) == before.get(step.key)
        if mode == "peek":
            assert after == before
        if mode == "check" and (receipt := question.receipt(reply)).taken:
            extended = [at for at, each in enumerate(self.taken) if [ask.place for ask in each.asks] == [*asks]]
            if extended and is_estimate:
                self.taken[extended[0]] = self.taken[extended[0]].extended(receipt)
            else:
                self.taken.append(receipt)
        for place, (taken, units, lease) in (question.granted(reply) if mode == "check" else {}).items():
            assert 0 < units <= taken.wish
            assert 0 < lease <= taken.lease
            self.shares.setdefault(place, []).append((taken, units))

    @rule(
        which=st.integers(0, 5),
        actual=st.lists(COSTS, min_size=3, max_size=3),
        undone=st.booleans(),
        with_events=st.booleans(),
        remembered=st.sampled_from([0, MINUTE, DAY, DAY]),
    )
    def what_it_took_is_adjusted(
        self, which: int, actual: list[int], undone: bool, with_events: bool, remembered: int
    ) -> None:
        if not self.taken:
            return
        receipt = self.taken.pop(which % len(self.taken))
        costs = [0 if undone else units for units in actual[: len(receipt.asks)]]
        question = Question(receipt.asks, with_events=with_events)
        until = (receipt.decided_at or 0) + remembered if remembered else 0
        first = self.everywhere(question.settled(receipt, costs, undone=undone, until=until), "adjust")
        dumped = self.places.dump()
        again = receipt if remembered else receipt.emptied()
        answer = self.everywhere(question.settled(again, costs[::-1], until=until), "adjust")
        assert self.places.dump() == dumped  # adjusting twice changes nothing
        if self.now < until:
            of_limits = 2 + PER_LIMIT * sum(len(hit.limits) for hit in question.hits if hit.place in receipt.taken)
            assert len(receipt.taken) < len(receipt.asks) or answer[2:of_limits] == first[2:of_limits]

    @rule(taken=st.sampled_from(LEASED), subject=CLIENTS, which=st.integers(0, 9), renews=st.booleans())
    def leases_are_renewed_or_end(self, taken: Any, subject: str, which: int, renews: bool) -> None:
        (hit,) = Question([Ask(taken, subject, 1)]).hits
        (key,) = hit.leased_keys
        members = sorted(self.kept().get(key, ["lease0:1"]))
        if renews:
            operation: Operation = RenewLeases(key, [members[which % len(members)], "lease0:7"], 20 * SECOND, taken.ttl)
        else:
            operation = GiveBackEnded(key)
        self.done(operation)

    @rule(
        counter=st.sampled_from([CREDITS, POOLED, *LEASED]),
        subject=CLIENTS,
        units=st.one_of(st.integers(-3, 40), st.sampled_from([10**12, 2**53 + 1, MAX_INT64, MAX_INT64 - 5, MIN_INT64])),
    )
    def a_counter_is_set(self, counter: Rule, subject: str, units: int) -> None:
        (hit,) = Question([Ask(counter, subject, 1)]).hits
        keys = (hit.limits[0].key, *hit.grants_keys)
        self.places.run(counters.Set(keys, units, hit.limits[0].parameters.a), self.now)

    @rule(
        counter=st.sampled_from([CREDITS, POOLED, *LEASED]),
        subject=CLIENTS,
        units=st.integers(1, 40) | st.just(10**12),
        span=st.sampled_from([0, 3, 20 * SECOND, 40 * SECOND, MINUTE, DAY]),
    )
    def units_that_expire_are_granted(self, counter: Rule, subject: str, units: int, span: int) -> None:
        (hit,) = Question([Ask(counter, subject, 1)]).hits
        mark = hit.limits[0].key.replace("}:c:", "}:granted:") + f":order-{next(self.ids)}"
        keys = (hit.limits[0].key, *hit.grants_keys, mark)
        self.places.run(counters.AddGrant(keys, units, hit.limits[0].parameters.a, span, "order"), self.now)

    @rule(number=st.integers(0, 99), subject=CLIENTS, span=st.integers(1, 90 * SECOND))
    def code_bans_a_subject(self, number: int, subject: str, span: int) -> None:
        of = self.its_rules[number % len(self.its_rules)]
        remembered = of.ban.durations[-1] if of.ban else 0
        operation = bans.BanSubject(status_key("quota", subject), field(of.name), span, remembered)
        assert self.places.run(operation, self.now)[0] >= self.now + span

    @rule(subject=CLIENTS)
    def code_lifts_bans(self, subject: str) -> None:
        fields = [field(each.name) for each in self.its_rules]
        self.places.run(bans.LiftBans(status_key("quota", subject), fields), self.now)

    @rule(number=st.integers(0, 99), subject=CLIENTS)
    def a_rule_is_reset(self, number: int, subject: str) -> None:
        of: Any = self.its_rules[number % len(self.its_rules)]
        question = Question([Ask(of, subject, 0)])
        states = [resets.RuleState.of([of], hit.status_key) for hit in question.hits]
        forgetting = resets.Reset(states, question.scope.log)
        self.places.age(self.now)
        self.places.in_memory(forgetting, self.now)  # which may have dropped what has expired: it counts less
        self.places.in_database(forgetting, self.now)
        assert self.places.in_redis(forgetting, self.now) == self.places.specified(forgetting, self.now)
        self.places.compare()
        assert set(forgetting.keys[1:]) & self.places.dump().keys() <= {"quota:1:{!}:bans"}

    def everywhere(self, question: Question, mode: QuestionMode, guess: int | None = None) -> list[Any]:
        decided = self.places.decide(question, mode, self.now, guess)
        self.latest = max(self.latest, self.now)
        return decided


PAUSES = st.just(0) | st.integers(0, 15 * SECOND) | st.sampled_from([MINUTE, MINUTE // 7, -SECOND, -3_600 * SECOND])
ACTS = st.sampled_from(["refund", "peek", "force", *6 * ["check"], *4 * ["adjust"]])


Act = tuple[int, str, int, int]
"""How much time passes first, what is done, at which cost, and which of those that took something is adjusted."""


def do_all(places: Places, its_rules: list[Asked], acts: list[Act], now: int, *, with_events: bool) -> None:
    """Do what one subject does under these rules."""
    taken: list[Receipt] = []

    def question(cost: int) -> Question:
        asks = [Ask(each, "user:1", *((1, VALUES[cost % 5]) if each.distinct else (cost, ""))) for each in its_rules]
        return Question(asks, with_events=with_events)

    def decide(mode: Any, cost: int) -> None:
        receipt = question(cost).receipt(places.decide(question(cost), mode, now))
        taken.extend([receipt] if receipt.taken else [])

    for gap, what, cost, other in acts:
        now += gap
        if what != "adjust":
            decide(what, cost)
        elif taken:
            receipt = taken.pop(other % len(taken))
            costs = [cost - 1] * len(its_rules)
            places.decide(question(1).settled(receipt, costs, undone=other == 0), "adjust", now)
            decide("peek", 1)


@pytest.mark.usefixtures("redis_cache")
@inputs(1_000, suppress_health_check=list(HealthCheck))
@given(
    its_rules=st.lists(st.sampled_from(RULES), min_size=1, max_size=2, unique_by=lambda rule: rule.name),
    phase=st.integers(0, DAY),
    acts=st.lists(st.tuples(PAUSES, ACTS, st.integers(1, 6), st.integers(0, 9)), min_size=6, max_size=30),
    with_events=st.booleans(),
)
def test_no_store_differs_in_what_it_gives_back(
    raw: redis.Redis, its_rules: list[Asked], phase: int, acts: list[Act], with_events: bool
) -> None:
    """One subject's checks, refunds and adjusts under one rule or two, many at a time."""
    raw.flushall()
    places = Places(raw)
    do_all(places, its_rules, acts, START + phase, with_events=with_events)
    places.close()


EACH: list[Act] = [
    (0, "check", 1, 0), (1, "check", 2, 0), (0, "peek", 1, 0), (SECOND // 3, "check", 1, 0), (0, "adjust", 6, 1),
    (SECOND, "check", 2, 0), (7 * SECOND, "refund", 1, 0), (0, "check", 6, 0), (SECOND, "check", 5, 0),
    (0, "force", 3, 0), (0, "check", 4, 0), (SECOND // 2, "check", 4, 0), (2 * SECOND, "adjust", 1, 0),
    (-SECOND, "check", 1, 0), (30 * SECOND, "check", 2, 0), (0, "adjust", 3, 1), (0, "check", 6, 0),
    (MINUTE, "check", 1, 0), (3 * MINUTE, "check", 3, 0), (0, "adjust", 2, 2), (60 * MINUTE, "check", 2, 0),
    (25 * 60 * MINUTE, "check", 1, 0), (0, "refund", 6, 0), (1, "check", 1, 0),
]  # fmt: skip


ONE_BY_ONE: list[Act] = [
    *12 * [(SECOND, "check", 1, 0)], *12 * [(SECOND, "force", 1, 0)], (MINUTE, "check", 1, 0),
    (60 * MINUTE, "check", 3, 0), (SECOND, "check", 2, 0), (MINUTE - SECOND, "adjust", 1, -2), (0, "check", 1, 0),
]  # fmt: skip
"""Each unit by itself, up to each share of the limit and past it; and what is given back in the moment it expires."""


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("acts", [EACH, thorough("variants", ONE_BY_ONE)], ids=["each act", "one by one"])
@pytest.mark.parametrize("with_events", [True, thorough("variants", False)], ids=["events", "silent"])
@pytest.mark.parametrize("its_rule", RULES, ids=[each.name + "-share" * (each in WITH_SHARES) for each in RULES])
def test_no_store_differs_under_any_rule(places: Places, its_rule: Asked, with_events: bool, acts: list[Act]) -> None:
    """What chance may leave out: each rule by itself, and each thing that can be done."""
    do_all(places, [its_rule], acts, START, with_events=with_events)


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("asked", ["a1", "e5"], ids=["the value", "another value"])
def test_no_store_differs_in_the_moment_in_which_a_value_is_forgotten(places: Places, asked: str) -> None:
    """It still lies there, and is the one value too many."""
    devices = next(each for each in RULES if each.name == "devices")
    steps: list[tuple[int, QuestionMode, str]] = [
        (0, "check", "a1"), (1, "check", "b2"), (1, "check", "c3"), (1, "force", "d4"), (MINUTE, "peek", asked),
    ]  # fmt: skip

    replies = [
        places.decide(Question([Ask(devices, "user:1", 1, value)]), mode, START + later) for later, mode, value in steps
    ]

    assert replies[-1][1:4] == [REFUSED, 0, 0]


@pytest.mark.usefixtures("redis_cache")
def test_no_store_differs_in_a_value_that_is_used_while_its_clock_is_back(places: Places) -> None:
    devices = Rule.make("r", "2/m", distinct=True)

    for at in (0, -30 * SECOND, 40 * SECOND, 40 * SECOND, 90 * SECOND, 200 * SECOND):
        places.decide(Question([Ask(devices, "user:1", 1, "a1")]), "check", START + at)

    assert places.decide(Question([Ask(devices, "user:1", 0)]), "peek", START + 200 * SECOND)[3] == 1


@pytest.mark.usefixtures("redis_cache")
def test_no_store_differs_in_values_under_a_limit_that_admits_none_any_more(places: Places) -> None:
    """Nor in a hit that costs nothing: it has no value, and asks whether there is room."""
    devices = Rule.make("r", "2/m", distinct=True)
    shut = devices.with_rates("0/m")
    steps: list[tuple[Rule, QuestionMode, int, str]] = [
        (devices, "check", 1, "a1"), (devices, "check", 0, ""), (devices, "check", 1, "b2"), (devices, "check", 0, ""),
        (devices, "check", 1, "c3"), (shut, "peek", 0, ""), (shut, "check", 1, "a1"), (shut, "check", 1, "c3"),
    ]  # fmt: skip

    replies = [
        places.decide(Question([Ask(of, "user:1", cost, value)]), mode, START) for of, mode, cost, value in steps
    ]

    assert [reply[1] for reply in replies] == [ALLOWED] * 4 + [REFUSED] * 4


MOVED: list[tuple[int, int, QuestionMode, int, int]] = [
    (0, 21, "check", 4, -40), (1, 30, "check", 2, -40), (1, 30, "peek", 1, 40), (2, 21, "force", 9, 0),
    (2, 21, "check", 1, 0), (3, 21, "refund", 2, 0), (3, 21, "refund", 20, 0), (3, 10, "check", 8, 0),
    (3, 10, "check", 3, 0), (2, 10, "refund", 1, 0), (2, 10, "check", 1, 0), (20, 21, "peek", 1, 0),
    (20, 10, "check", 1, 0), (40, 30, "peek", 1, 0), (40, 30, "check", 2, 0), (45, 15, "check", 1, 0),
    (80, 15, "peek", 1, 0), (80, 15, "check", 1, 0), (180, 21, "refund", 1, 0), (180, 21, "check", 1, 0),
]  # fmt: skip
"""The day since the start, the subject's day, the mode, the cost, and by how many days the first guess is off."""


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("counts", [False, True], ids=["plain", "counted"])
def test_no_store_differs_while_the_day_of_a_subject_changes(places: Places, counts: bool) -> None:
    receipts: list[Receipt] = []

    for day, starts, mode, cost, off in MOVED:
        now, begins = START + day * DAY, date(2025, 11, starts)
        rule = Rule.make("r", "9/month", algorithm="calendar", starts=begins, count_refused=counts)
        question = Question([Ask(rule, "user:1", cost)])
        reply = places.decide(question, mode, now, now + off * DAY)
        receipts += [question.receipt(reply)] if mode == "check" and reply[1] == ALLOWED else []
        if day in (20, 40, 180):
            receipt = receipts.pop(0)._replace(asks=question.asks)
            places.decide(question.settled(receipt, [0]), "adjust", now)

    assert places.decide(question, "peek", START + 400 * DAY)[3] == 9


@pytest.mark.usefixtures("redis_cache")
def test_no_store_differs_in_a_period_of_which_one_unit_is_used(places: Places) -> None:
    started = next(each for each in RULES if each.name == "started")

    for mode in ("check", "peek", "refund", "peek"):
        places.decide(Question([Ask(started, "user:1", 1)]), mode, START)


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(("days", "left"), [(0, 30), (10, 40), (31, 61), (32, 62), (62, 62)])
def test_no_store_differs_in_when_a_count_ends_that_was_opened_before_its_clock_stepped_back(
    places: Places, days: int, left: int
) -> None:
    """It ends when its own period does, at the begin of one that may be two periods away."""
    monthly = Rule.make("r", "9/month", algorithm="calendar", starts=date(2025, 11, 21))
    question = Question([Ask(monthly, "user:1", 1)])

    for later in (0, -days):
        reply = places.decide(question, "check", MIDNIGHT + later * DAY)

    assert reply[3:6] == [7, 0, left * DAY]


def follow(places: Places, steps: Sequence[tuple[int, Rule, QuestionMode, int]]) -> int:
    """Do what one subject does: the moment, the rule, the mode and the cost; return what is left in the end.

    "adjust" settles what the first of its checks took: the cost is what was really used.
    """
    taken: list[Receipt] = []
    for now, its_rule, mode, cost in steps:
        question = Question([Ask(its_rule, "user:1", cost)])
        if mode == "adjust":
            places.decide(question.settled(taken[0], [cost]), mode, now)
        else:
            reply = places.decide(question, mode, now)
            taken += [question.receipt(reply)] if mode == "check" else []
    now, its_rule, *_ = steps[-1]
    left: int = places.decide(Question([Ask(its_rule, "user:1", 0)]), "peek", now)[3]
    return left


Step = tuple[float, int, QuestionMode, int]
"""The day since 21 November, the day on which a month of the subject begins, the mode, and the cost."""
PERIODS: dict[str, tuple[list[Step], int]] = {
    "just before it ends": ([(0, 21, "check", 4), (30 - 1 / DAY, 21, "peek", 0)], 5),
    "as it ends": ([(0, 21, "check", 4), (30, 21, "peek", 0)], 9),
    "after a hit since it would have ended": ([(0, 21, "check", 4), (34, 1, "check", 1), (35, 21, "peek", 0)], 4),
    "after a hit as it would have ended": ([(0, 21, "check", 4), (30, 1, "check", 1), (31, 21, "peek", 0)], 4),
    "after a hit just before it ends": ([(0, 21, "check", 4), (30 - 1 / DAY, 1, "check", 1), (31, 21, "peek", 0)], 9),
    "of a hit as it began, which is given back": ([(0, 21, "check", 4), (1, 21, "adjust", 1)], 8),
    "of a hit before it began, which is given back": (
        [(-1, 21, "check", 4), (0, 21, "check", 3), (1, 21, "adjust", 1)], 6,
    ),
    "while the clock is back, before it began": ([(0, 21, "check", 4), (-1, 21, "refund", 1)], 6),
    "of a hit before it began, which used more": ([(-1, 21, "check", 4), (0, 21, "check", 3), (1, 21, "adjust", 6)], 4),
}  # fmt: skip


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(("steps", "left"), PERIODS.values(), ids=PERIODS)
def test_no_store_differs_in_what_a_period_has_left(places: Places, steps: list[Step], left: int) -> None:
    rules = {day: Rule.make("r", "9/month", algorithm="calendar", starts=date(2025, 11, day)) for day in (1, 21)}

    found = follow(
        places, [(MIDNIGHT + round(day * DAY), rules[starts], mode, cost) for day, starts, mode, cost in steps]
    )

    assert found == left


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("now", [MIDNIGHT + 30 * DAY, MIDNIGHT + 31 * DAY], ids=["as it ends", "a day later"])
def test_no_store_takes_the_edges_of_a_period_that_has_ended(places: Places, now: int) -> None:
    monthly = Rule.make("r", "9/month", algorithm="calendar", starts=date(2025, 11, 21))
    question = Question([Ask(monthly, "user:1", 4)])
    places.decide(question, "check", MIDNIGHT)

    reply = places.decide(question, "peek", now, MIDNIGHT + 30 * DAY - 1)

    assert reply[3] == 9


GUESSES = {
    "right": 0, "the hour before": -1, "two hours before": -60 * MINUTE - 1, "the hour after": 60 * MINUTE,
}  # fmt: skip


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("off", GUESSES.values(), ids=GUESSES)
def test_no_store_differs_in_the_hour_that_is_counted_if_the_guess_is(places: Places, off: int) -> None:
    """The store decides as the hour begins."""
    question = Question([Ask(Rule.make("r", "9/h", algorithm="calendar"), "ip:1.2.3.4", 4)])

    reply = places.decide(question, "check", MIDNIGHT, MIDNIGHT + off)

    assert reply[3:6] == [5, 0, 60 * MINUTE]


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("mode", ["check", "force"])
@pytest.mark.parametrize("off", [0, -1, DAY], ids=["right", "the day before", "the day after"])
def test_no_store_differs_in_the_day_that_is_counted_if_the_guess_is(
    places: Places, off: int, mode: QuestionMode
) -> None:
    """The store decides as the day begins."""
    question = Question([Ask(Rule.make("r", "9/h", daily=True), "user:1", 4)])

    places.decide(question, mode, MIDNIGHT, MIDNIGHT + off)

    assert places.lying()[key_of("user:1", "day:2025-11-21")] == {"r:a": "1", "r:u": "3"}


@pytest.mark.usefixtures("redis_cache")
def test_no_store_gives_a_hit_of_the_hour_before_back_to_an_hour_that_it_did_not_guess(places: Places) -> None:
    hourly, before = Rule.make("r", "9/h", algorithm="calendar"), MIDNIGHT - 1
    first, second = (Question([Ask(hourly, "ip:1.2.3.4", cost)]) for cost in (4, 3))
    receipt = first.receipt(places.decide(first, "check", before))
    places.decide(second, "check", MIDNIGHT)

    places.decide(first.settled(receipt, [0]), "adjust", MIDNIGHT, before)

    assert places.decide(second, "peek", MIDNIGHT)[3] == 6


REFUNDS = {
    "the value": (1, "a1", 3), "another value": (1, "b2", 2), "no value": (1, "", 2), "nothing": (0, "a1", 2),
}  # fmt: skip


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(("cost", "value", "left"), REFUNDS.values(), ids=REFUNDS)
def test_no_store_differs_in_what_is_left_of_different_values_after_a_refund_of(
    places: Places, cost: int, value: str, left: int
) -> None:
    devices = Rule.make("r", "3/m", distinct=True)
    places.decide(Question([Ask(devices, "user:1", 1, "a1")]), "check", START)

    reply = places.decide(Question([Ask(devices, "user:1", cost, value)]), "refund", START)

    assert reply[3] == left


LEFT: dict[str, tuple[Rule, list[tuple[int, QuestionMode, int]], int]] = {
    "a refund after an older hit has expired": (
        Rule.make("r", "5/m"), [(0, "check", 1), (50, "check", 2), (61, "refund", 1)], 4,
    ),
    "a refused hit that counts, of which a part has room": (
        Rule.make("r", "6/m", count_refused=True), [(0, "check", 5), (1, "check", 3)], 0,
    ),
    "a refused hit that counts under both limits": (
        Rule.make("r", "20/h; 6/m", count_refused=True), [(0, "check", 5), (1, "check", 3)], 12,
    ),
    "a hit comes back that has just expired": (
        Rule.make("r", "5/m"), [(0, "check", 2), (30, "check", 1), (60, "adjust", 0)], 4,
    ),
    "a hit comes back that has expired": (
        Rule.make("r", "5/m"), [(0, "check", 2), (30, "check", 1), (61, "adjust", 0)], 4,
    ),
    "a hit comes back that was refunded in part": (
        Rule.make("r", "5/m"), [(0, "check", 4), (1, "refund", 3), (30, "check", 2), (31, "adjust", 0)], 3,
    ),
    "a part of a hit comes back after an older hit has expired": (
        Rule.make("r", "5/m"), [(0, "force", 1), (30, "check", 2), (61, "adjust", 1)], 4,
    ),
    "a hit in a queue comes back behind which another one waits": (
        Rule.make("r", "12/m", algorithm="leaky_bucket"), [(0, "check", 3), (1, "check", 2), (2, "adjust", 0)], 7,
    ),
    "a fixed window has just ended": (
        Rule.make("r", "5/m", algorithm="fixed_window"), [(0, "check", 2), (60, "peek", 0)], 5,
    ),
    "a fixed window has ended, and another one begins": (
        Rule.make("r", "5/m", algorithm="fixed_window"), [(0, "check", 2), (60, "check", 1)], 4,
    ),
    "an hour of the calendar has just ended": (
        Rule.make("r", "5/h", algorithm="calendar"), [(0, "check", 2), (20 * 60, "peek", 0)], 5,
    ),
    "a refused hit that replaces the oldest": (
        Rule.make("r", "6/m", count_refused=True),
        [(0, "check", 4), (30, "check", 2), (31, "check", 3), (60, "peek", 0)], 1,
    ),
}  # fmt: skip
"""The rule, what happens in which second at which cost, and what is left in the last one."""


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(("its_rule", "steps", "left"), LEFT.values(), ids=LEFT)
def test_no_store_differs_in_what_is_left_after(
    places: Places, its_rule: Rule, steps: list[tuple[int, QuestionMode, int]], left: int
) -> None:
    found = follow(places, [(START + second * SECOND, its_rule, mode, cost) for second, mode, cost in steps])

    assert found == left


BY_SHARES = Rule.make("near", "10/m", warn_at=[0.5, 1.0])
OF_5, OF_10 = (Rule.make("near", rate, algorithm="fixed_window", warn_at=0.8) for rate in ("5/m", "10/m"))
BANS_SOON = Rule.make("near", "5/m", warn_at=0.8, ban={"after": "1/m", "for": "1m"})
NEAR: dict[str, tuple[list[tuple[int, Rule, QuestionMode, int, bool]], list[int]]] = {
    "a share that an estimate has just reached": (
        [(0, BY_SHARES, "check", 5, True), (0, BY_SHARES, "check", 1, False)], [],
    ),
    "a share that is reached again when the window ends": (
        [(0, OF_5, "check", 4, False), (MINUTE, OF_5, "check", 4, False)], [800, 800],
    ),
    "a share of another capacity": (
        [(0, OF_5, "check", 4, False), (0, OF_10, "check", 4, False)], [800, 800],
    ),
    "a share of the same capacity": (
        [(0, OF_5, "check", 4, False), (0, OF_5, "check", 1, False)], [800],
    ),
    "a share that a forced estimate reaches": ([(0, BY_SHARES, "force", 5, True)], []),
    "a share of a limit that admits nothing": (
        [(0, Rule.make("near", "0/m; 5/h", warn_at=1.0), "force", 1, False)], [],
    ),
    "one share after the other": (
        [(0, BY_SHARES, "check", 5, False), (0, BY_SHARES, "check", 4, False), (0, BY_SHARES, "check", 1, False)],
        [500, 1000],
    ),
    "a share that is forced under a ban": ([(0, BANS_SOON, "check", 6, False), (0, BANS_SOON, "force", 5, False)], []),
    "a share that a banned hit would reach": (
        [
            (0, BANS_SOON, "check", 3, False), (0, BANS_SOON, "check", 6, False),
            (2 * SECOND, BANS_SOON, "check", 2, False),
        ], [],
    ),
    "two shares at once": ([(0, BY_SHARES, "check", 10, False)], [1000]),
}  # fmt: skip
"""Steps (how much time passes first, the rule, the mode, the cost, is that an estimate), and what is reported."""


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(("steps", "shares"), NEAR.values(), ids=NEAR)
def test_no_store_differs_in_whether_it_reports(places: Places, steps: list[Any], shares: list[int]) -> None:
    now, flags = START, list[Any]()

    for gap, asked, mode, cost, is_estimate in steps:
        now += gap
        question = Question([Ask(asked, "user:1", cost, "", is_estimate)])
        flags += Reply.decode(places.decide(question, mode, now), question.hits_at(now)).flags

    assert [flag.value for flag in flags if flag.flag == Flag.NEAR_EMITTED] == shares


@pytest.mark.usefixtures("redis_cache")
def test_no_store_takes_units_that_are_out_for_used_where_it_reports(places: Places) -> None:
    """Two are out, so that the last hit leaves nothing."""
    near = Rule.make("near", "10/m", warn_at=0.8, prefetch=True)
    taking = {Ask(near, "user:1", 1).place: Ahead("", 0, "n1", 2, 2, SECOND)}
    places.decide(Question([Ask(near, "user:1", 1)], ahead=taking), "check", START)

    replies = [places.decide(Question([Ask(near, "user:1", cost)]), "check", START) for cost in (5, 2)]

    flags = [Reply.decode(reply, Question([Ask(near, "user:1", 1)]).hits).flags for reply in replies]
    assert flags == [[], [(0, Flag.NEAR_EMITTED, 800)]]


@pytest.mark.usefixtures("redis_cache")
def test_no_store_keeps_anything_of_a_forced_hit_that_costs_nothing(places: Places) -> None:
    places.decide(Question([Ask(Rule.make("r", "5/m", daily=True), "user:1", 0)]), "force", START)

    assert places.lying() == {}


@pytest.mark.usefixtures("redis_cache")
def test_no_store_differs_in_bans_that_follow_each_other(places: Places) -> None:
    """Each is longer than the one before it, as far as the list goes, until the last one is forgotten."""
    question = Question([Ask(Rule.make("r", "1/d", ban={"after": "1/m", "for": ["20s", "1m"]}), "user:1", 1)])
    now, spans, levels = START, list[int](), list[int]()

    for gap in (0, 1, 20, 60, 119, 120):
        now += gap * SECOND
        flags = Reply.decode(places.decide(question, "check", now), question.hits).flags
        spans += [flag.value - now for flag in flags if flag.flag == Flag.BANNED]
        levels += [flag.value for flag in flags if flag.flag == Flag.BAN_LEVEL]

    assert (spans, levels) == ([20 * SECOND, *[MINUTE] * 3, 20 * SECOND], [1, 2, 3, 4, 1])


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("algorithm", ["sliding_window", "fixed_window", "token_bucket"])
def test_no_store_counts_more_under_a_limit_that_admits_nothing_any_more(places: Places, algorithm: Any) -> None:
    """An override came in between: the hit took something, and used more of it."""
    rule = Rule.make("r", "5/m", algorithm=algorithm)
    receipt = Question([Ask(rule, "user:1", 2)]).receipt(
        places.decide(Question([Ask(rule, "user:1", 2)]), "check", START)
    )
    shut = receipt._replace(asks=[Ask(rule.with_rates("0/m"), "user:1", 2)])

    places.decide(Question(shut.asks).settled(shut, [4]), "adjust", START)

    assert places.decide(Question(receipt.asks), "peek", START)[3] == 3


ROOM_LEFT = [("5/h", 5), ("5/h; 9/d", 4)]
"""The rule when the hit is settled again, and what its first limit has left: by the first answer, or now."""


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(("rates", "left"), ROOM_LEFT, ids=["the same limits", "one limit more"])
def test_no_store_differs_in_the_answer_to_a_hit_that_is_settled_again(places: Places, rates: str, left: int) -> None:
    question, until = Question([Ask(Rule.make("r", "5/h"), "user:1", 2)]), START + MINUTE
    receipt = question.receipt(places.decide(question, "check", START))
    places.decide(question.settled(receipt, until=until), "adjust", START + 1)
    places.decide(Question([Ask(Rule.make("r", "5/h"), "user:1", 1)]), "check", START + 2)

    again = receipt._replace(asks=[Ask(Rule.make("r", rates), "user:1", 2)])

    assert places.decide(question.settled(again, until=until), "adjust", START + 3)[3] == left


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(("later", "left"), [(-1, 5), (0, 3), (1, 3)], ids=["in time", "at the end", "too late"])
def test_no_store_differs_in_when_it_is_too_late_to_settle(places: Places, later: int, left: int) -> None:
    question, until = Question([Ask(Rule.make("r", "5/h"), "user:1", 2)]), START + MINUTE
    receipt = question.receipt(places.decide(question, "check", START))

    places.decide(question.settled(receipt, until=until), "adjust", until + later)

    assert places.decide(question, "peek", until + later)[3] == left


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("algorithm", ["sliding_window", "fixed_window", "token_bucket"])
def test_no_store_differs_in_hits_past_a_limit_that_then_admits_nothing(places: Places, algorithm: Any) -> None:
    """Each hit is forced by itself, so that the state has no more entries than the limit has hits."""
    rule = Rule.make("r", "3/m", algorithm=algorithm)
    shut = rule.with_rates("0/m")
    steps: list[tuple[int, Rule, QuestionMode, int]] = [
        *((number * SECOND, rule, "force", 1) for number in range(8)),
        (8 * SECOND, rule, "peek", 1), (9 * SECOND, shut, "peek", 0), (9 * SECOND, shut, "check", 1),
        (MINUTE + SECOND, rule, "peek", 1), (MINUTE + SECOND, rule, "force", 1), (3 * MINUTE, shut, "check", 0),
    ]  # fmt: skip

    replies = [places.decide(Question([Ask(of, "user:1", cost)]), mode, START + at) for at, of, mode, cost in steps]

    assert [reply[1] for reply in replies[8:11]] == [REFUSED] * 3


LASTING: list[Asked] = [
    Rule.make("sliding", "20/w", daily=True),
    Rule.make("bucket", "20/w", algorithm="token_bucket", daily=True),
    LEASED[0],
]


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("until", [0, START + 7 * DAY], ids=["by its process", "by any process"])
@pytest.mark.parametrize("actual", [0, 2, 3, 5, 7, 9])
@pytest.mark.parametrize("its_rule", LASTING, ids=[each.name for each in LASTING])
def test_no_store_differs_in_what_was_taken_on_two_days(
    places: Places, its_rule: Asked, actual: int, until: int
) -> None:
    """Three units on the first day, and four more for the same work on the next."""
    first, more = (Question([Ask(its_rule, "user:1", units, f"lease{units}")]) for units in (3, 4))
    (hit,) = first.hits
    if hit.grants_keys:
        places.run(counters.Set((hit.limits[0].key, *hit.grants_keys), 20, TTL), START)
    receipts = [each.receipt(places.decide(each, "check", START + n * DAY)) for n, each in enumerate((first, more))]
    receipt = receipts[0].extended(receipts[1])

    for _ in range(2):  # settling again changes nothing
        settling = first.settled(receipt, [actual], until=until)
        places.decide(settling, "adjust", START + DAY + SECOND)
        receipt = receipt if until else receipt.emptied()

    of_days = sorted((key, fields) for key, fields in places.lying().items() if ":day:" in key)
    units = [sum(map(int, fields.values())) for _, fields in of_days]  # checks, and what each cost beyond one unit
    assert units == ([] if hit.grants_keys else [min(actual, 3), max(0, actual - 3)])  # the oldest is used first


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
def test_no_store_differs_while_its_clock_is_back_by_half_a_minute(places: Places, algorithm: str) -> None:
    """A refused hit moves the bucket back with the clock, once: the next one does not count the step again."""
    question = Question([Ask(Rule.make("few", "2/m", algorithm=algorithm), "user:1", 1)])

    for moment in (0, 0, 0, -30, -30, -15, -1, 0, 1, 30):
        places.decide(question, "check", START + moment * SECOND)


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
def test_no_store_differs_in_what_comes_back_while_its_clock_is_back(places: Places, algorithm: str) -> None:
    """The bucket has moved back with the clock, once."""
    question, earlier = Question([Ask(Rule.make("few", "7/m", algorithm=algorithm), "user:1", 5)]), START - MINUTE // 2
    receipt = question.receipt(places.decide(question, "check", START))

    places.decide(question.settled(receipt, [3]), "adjust", earlier)

    assert places.decide(question, "peek", earlier)[3] == 4


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("actual", [0, 1, 2, 3, 4, 5])
def test_no_store_differs_in_which_units_that_expire_come_back(places: Places, actual: int) -> None:
    """What was used counts against what expires first."""
    question = Question([Ask(CREDITS, "user:1", 5)])
    (hit,) = question.hits
    keys = (hit.limits[0].key, *hit.grants_keys)
    places.run(counters.Set(keys, 1, TTL), START)
    for order in (1, 2):
        places.run(granted_to(hit, 2, order * DAY, order), START)
    receipt = question.receipt(places.decide(question, "check", START))

    places.decide(question.settled(receipt, [actual], until=0), "adjust", START + SECOND)

    places.run(counters.Grants(keys), START + SECOND)


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(("held", "shown"), [(2 * 10**15, 10**15), (-2 * 10**15, -(10**15))], ids=["held", "owed"])
def test_no_store_shows_more_units_than_a_double_counts(places: Places, held: int, shown: int) -> None:
    question = Question([Ask(CREDITS, "user:1", 1)])
    (hit,) = question.hits
    places.run(counters.Set((hit.limits[0].key, *hit.grants_keys), held, TTL), START)

    assert places.decide(question, "peek", START)[3] == shown


@pytest.mark.usefixtures("redis_cache")
def test_what_is_owed_is_paid_of_what_expires_first_in_every_store(places: Places) -> None:
    question = Question([Ask(CREDITS, "user:1", 4)])
    (hit,) = question.hits
    keys = (hit.limits[0].key, *hit.grants_keys)
    for order in (1, 2):
        places.run(granted_to(hit, 2, order * DAY, order), START)
    receipt = question.receipt(places.decide(question, "check", START))
    places.run(counters.Set(keys, -1, TTL), START)

    places.decide(question.settled(receipt, [0]), "adjust", START)

    assert places.decide(question, "peek", START + DAY)[3] == 2


EXPIRING: dict[str, tuple[list[tuple[int, QuestionMode | Literal["set"], int]], int]] = {
    "just before they expire": ([(DAY - 1, "peek", 0)], 8),
    "as they expire": ([(DAY, "peek", 0)], 3),
    "refused for them": ([(DAY, "check", 4)], 3),
    "spent after they have expired": ([(DAY, "check", 2)], 1),
    "spent, and back in time": ([(0, "check", 6), (DAY - 1, "adjust", 0)], 8),
    "spent, and back too late": ([(0, "check", 6), (DAY, "adjust", 0)], 3),
    "spent, and a part back in time": ([(0, "check", 6), (DAY - 1, "adjust", 2), (DAY, "peek", 0)], 3),
    "spent, and a part back too late": ([(0, "check", 6), (DAY, "adjust", 2)], 3),
    "back where nothing is left": ([(0, "check", 6), (1, "set", 0), (2, "adjust", 0)], 6),
    "back where nothing is left, and expire": ([(0, "check", 6), (1, "set", 0), (2, "adjust", 0), (DAY, "peek", 0)], 1),
    "spent, and some that never expire are back": ([(0, "check", 8), (1, "adjust", 6), (DAY, "peek", 0)], 2),
    "spent, owed, and back to pay what is owed": ([(0, "check", 8), (1, "force", 5), (2, "adjust", 0)], 3),
    "spent, and more was used": ([(0, "check", 2), (1, "adjust", 4), (DAY, "peek", 0)], 3),
}  # fmt: skip
"""When something happens to a counter with 3 units, and 5 that expire in a day; what, and how many units."""


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(("steps", "left"), EXPIRING.values(), ids=EXPIRING)
def test_no_store_differs_in_what_a_counter_has_left_whose_units_are(
    places: Places, steps: list[tuple[int, Any, int]], left: int
) -> None:
    (hit,) = Question([Ask(CREDITS, "user:1", 1)]).hits
    keys, taken = (hit.limits[0].key, *hit.grants_keys), list[Receipt]()
    places.run(counters.Set(keys, 3, TTL), START)
    places.run(granted_to(hit, 5, DAY), START)

    for later, what, units in steps:
        now, question = START + later, Question([Ask(CREDITS, "user:1", units)])
        if what == "set":
            places.run(counters.Set(keys, units, TTL), now)
        elif what == "adjust":
            places.decide(question.settled(taken[0], [units]), what, now)
        else:
            taken.append(question.receipt(places.decide(question, what, now)))

    assert places.decide(Question([Ask(CREDITS, "user:1", 0)]), "peek", now)[3] == left


TEAMS = Rule.make("teams", {"free": "6/m", "team": "8/m"}, tier=lambda _: "team", daily=True)


def named(*names: str) -> list[Asked]:
    return [next(each for each in RULES if each.name == name) for name in names]


COUNTING_UNITS = named("exact", "slices", "fixed", "calendar", "started", "bucket", "leaky")


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("its_rule", COUNTING_UNITS, ids=[each.name for each in COUNTING_UNITS])
def test_no_store_differs_in_how_much_of_an_estimate_comes_back(places: Places, its_rule: Asked) -> None:
    question = Question([Ask(its_rule, "user:1", 5)])
    before = places.decide(question, "peek", START)[3]
    receipt = question.receipt(places.decide(question, "check", START))

    places.decide(question.settled(receipt, [3]), "adjust", START)

    assert places.decide(question, "peek", START)[3] == before - 3


SEVERAL: dict[str, list[Asked]] = {
    "two tiers": [PLANS.tiers["pro"], TEAMS.tiers["team"]],
    "shares and tiers": [*named("shares"), PLANS.tiers["free"], TEAMS.tiers["free"]],
    "counted refusals": named("banning", "shadow-counted", "aside-counted"),
    "several that decide alone": named("aside", "fixed", "shadow", "aside-counted", "leaky"),
    "each algorithm": named("slices", "fixed-counted", "calendar", "started", "burst-counted", "leaky", "devices"),
}


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("its_rules", SEVERAL.values(), ids=SEVERAL)
def test_no_store_differs_under_several_rules_at_once(places: Places, its_rules: list[Asked]) -> None:
    """A fast decision notes the tier of each."""
    do_all(places, its_rules, EACH, START, with_events=False)


@pytest.mark.usefixtures("redis_cache")
def test_no_store_differs_in_how_long_a_banned_hit_waits_that_had_room(places: Places) -> None:
    """Only the ban keeps it waiting, not the delay that it would have in the queue."""
    queue = Rule.make("queue", "12/m", algorithm="leaky_bucket", ban={"after": "1/m", "for": "1s"})

    replies = [places.decide(Question([Ask(queue, "user:1", cost)]), "check", START) for cost in (8, 9, 1)]

    waits = [Reply.decode(reply, Question([Ask(queue, "user:1", 1)]).hits).hits[0][0].retry_after for reply in replies]
    assert waits == [0, 25 * SECOND, SECOND]


def banned(seconds: int) -> Operation:
    """Return a ban of so many seconds, which is remembered for a minute after its end."""
    return bans.BanSubject(status_key("quota", "user:1"), field("login"), seconds * SECOND, MINUTE)


BANS = {
    "of a series": [(0, 60, 60, 1), (60, 60, 120, 2), (120, 60, 180, 3)],
    "one microsecond before the other ends": [(0, 60, 60, 1), (60 - 1e-6, 60, 120 - 1e-6, 1)],
    "as long as the one in force": [(0, 60, 60, 1), (10, 50, 60, 0)],
    "shorter than the one in force": [(0, 60, 60, 1), (10, 20, 60, 0)],
    "longer than the one in force": [(0, 60, 60, 1), (60, 60, 120, 2), (70, 60, 130, 2)],
    "as the other is forgotten": [(0, 60, 60, 1), (120, 60, 180, 1)],
    "just before the other is forgotten": [(0, 60, 60, 1), (120 - 1e-6, 60, 180 - 1e-6, 2)],
}
"""For each ban: when it is set, for how long, when the subject is free again, all in seconds, and its number."""


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("steps", BANS.values(), ids=BANS)
def test_no_store_differs_in_a_ban_that_code_sets(places: Places, steps: list[tuple[float, int, float, int]]) -> None:
    replies = [places.run(banned(span), START + round(moment * SECOND)) for moment, span, *_ in steps]

    assert replies == [[START + round(ends * SECOND), number] for *_, ends, number in steps]


# --- counters ---------------------------------------------------------------------------------------------------------

TTL = 400 * DAY
ACCOUNTS = st.sampled_from(["a", "b"])
OFF = st.sampled_from([0, 0, 0, 0, 0, -1, 1])
"""Days by which the day that is sent is not that of the moment."""
BIG = st.sampled_from([2**53, 2**53 + 1, MAX_INT64 - 1, MAX_INT64])
AMOUNTS = st.integers(0, 9) | BIG
SIGNED = AMOUNTS | st.integers(-9, -1) | st.sampled_from([MIN_INT64, MIN_INT64 + 1, -(2**53) - 1])
FOREIGN = Bucket(1, 1)
"""The value in the specification for a list in Redis."""


def key_of(subject: str, kind: str = "c:total") -> str:
    return f"quota:1:{{{subject}}}:{kind}"


def keys_of(subject: str) -> tuple[str, str]:
    """Return the keys of a total, and of the units of it that expire."""
    return key_of(subject), key_of(subject, "grants:total")


BOTH = tuple(key for pair in zip(keys_of("a"), keys_of("b"), strict=True) for key in pair)


class Counters(Machine):
    """Counts, takes, moves and reads in any order: what is done is exact, and what is not done changes nothing."""

    def is_done(self, operation: Operation) -> bool:
        before = self.places.dump()
        done = self.done(operation)[0] == counters.DONE
        after = self.places.dump()
        changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
        assert changed <= (set(operation.keys) if done else set())
        return bool(done)

    def opened(self, subject: str) -> Total:
        """Return the total of a subject, without what has expired; 0 if something else lies there."""
        units, grants = (self.places.states.get(key) for key in keys_of(subject))
        if not isinstance(units, int) or not isinstance(grants, dict | None):
            return Total(0, 0)
        return Total.read(units, 0, grants or {}, self.now)

    def totals(self) -> dict[str, int]:
        return {each: self.opened(each).units for each in "ab"}

    def left(self, subject: str) -> list[tuple[int, int]]:
        """Return when units of a subject expire, and how many."""
        return [(each.expires, each.left) for each in self.opened(subject).credits if each.left]

    def day(self, off: int) -> tuple[str, int, int]:
        """Return a day near the current one, and when it begins and ends."""
        number = (self.now - MIDNIGHT) // DAY + off
        return f"{21 + number:02}", MIDNIGHT + number * DAY, MIDNIGHT + (number + 1) * DAY

    @rule(gap=st.one_of(st.integers(0, 3), st.integers(0, 3 * DAY)), to_midnight=st.sampled_from([None, None, 0, 1]))
    def time_passes(self, gap: int, to_midnight: int | None) -> None:
        gap = gap if to_midnight is None else DAY - self.now % DAY - to_midnight
        self.now = min(self.now + gap, MIDNIGHT + 9 * DAY)  # within the month, and within every ttl

    @rule(subject=ACCOUNTS, amount=SIGNED, off=OFF)
    def it_is_incremented(self, subject: str, amount: int, off: int) -> None:
        before = self.totals()[subject]
        keys = (key_of(subject), key_of(subject, "c:total:2025-11"), keys_of(subject)[1])
        if self.is_done(counters.Incr(keys, amount, TTL, *self.day(off))):
            assert (off, self.totals()[subject]) == (0, before + amount)

    @rule(subject=ACCOUNTS, amount=SIGNED)
    def it_is_set(self, subject: str, amount: int) -> None:
        if self.is_done(counters.Set(keys_of(subject), amount, TTL)):
            assert self.totals()[subject] == amount

    @rule(subject=ACCOUNTS, day=st.one_of(st.none(), st.integers(21, 29)))
    def it_is_read(self, subject: str, day: int | None) -> None:
        before = self.places.dump()
        self.is_done(counters.Get(keys_of(subject)))
        months = [key_of(subject, f"c:total:2025-{month}") for month in (11, 12)]
        self.is_done(counters.Days(months, [(20, 30), (1, 31)]))
        self.is_done(counters.UniqueCount(key_of(subject, "u:total" + (f":2025-11-{day}" if day else ""))))
        assert self.places.dump() == before

    @rule(subject=ACCOUNTS)
    def it_is_popped(self, subject: str) -> None:
        if self.is_done(counters.Pop(keys_of(subject))):
            assert self.totals()[subject] == 0

    @rule(
        subject=ACCOUNTS,
        amount=st.integers(1, 9) | st.just(10**12),
        span=st.sampled_from([0, 1, DAY, 2 * DAY, 2 * DAY]),
        order=st.integers(0, 9),
    )
    def units_that_expire_are_granted(self, subject: str, amount: int, span: int, order: int) -> None:
        before, left, mark = self.totals()[subject], self.left(subject), key_of(subject, f"granted:total:{order}")
        is_known = mark in self.kept()
        done = self.is_done(counters.AddGrant((*keys_of(subject), mark), amount, TTL, span, str(order)))
        more = amount if done and not is_known else 0
        assert self.totals()[subject] == before + more
        if more:
            assert self.places.states.get(mark) == str(before + more)
            living = min(more, max(0, before + more)) if span else 0
            assert sum(units for _, units in self.left(subject)) == sum(units for _, units in left) + living

    @rule(subject=ACCOUNTS)
    def grants_are_read(self, subject: str) -> None:
        reply = self.done(counters.Grants(keys_of(subject)))
        assert reply[0] == counters.NO_COUNTER or list(map(Credit.read, map(text, reply[3:]))) == [
            each for each in self.opened(subject).credits if each.left
        ]

    @rule(subject=ACCOUNTS, amount=AMOUNTS.filter(bool))
    def some_is_taken(self, subject: str, amount: int) -> None:
        before, left = self.totals()[subject], self.left(subject)
        done = self.is_done(counters.TakeUnits(keys_of(subject), amount, TTL))
        assert self.totals()[subject] == (before - amount if done else before) >= min(before, 0)
        if done:  # what expires first is used first
            in_order = [expires for expires, units in left for _ in range(min(units, 100))][: min(amount, 100)]
            assert all(expires >= in_order[-1] for expires, _ in self.left(subject)) if in_order else True

    @rule(source=ACCOUNTS, destination=ACCOUNTS, amount=AMOUNTS)
    def some_is_moved(self, source: str, destination: str, amount: int) -> None:
        before = self.totals()
        keys = [key for pair in zip(keys_of(source), keys_of(destination), strict=True) for key in pair]
        self.is_done(counters.Transfer(keys, amount, TTL))
        after = self.totals()
        assert sum(after.values()) == sum(before.values())
        assert all(after[each] >= min(before[each], 0) for each in "ab")

    @rule(subject=ACCOUNTS, value=st.integers(0, 9), off=OFF)
    def a_value_is_counted(self, subject: str, value: int, off: int) -> None:
        day, *edges = self.day(off)
        keys = (key_of(subject, "u:total"), key_of(subject, f"u:total:2025-11-{day}"))
        self.is_done(counters.Unique(keys, f"value {value}", TTL, *edges))

    @rule(
        subject=ACCOUNTS,
        kind=st.sampled_from(["c:total", "grants:total", "c:total:2025-11", "u:total", "u:total:2025-11-21"]),
        cleared=st.booleans(),
    )
    def something_else_lies_there(self, subject: str, kind: str, cleared: bool) -> None:
        key = key_of(subject, kind)
        self.places.put(key, FOREIGN, START + 2 * TTL, "RPUSH", key, *FOREIGN)
        if cleared:
            self.places.drop(key)


# --- leases -----------------------------------------------------------------------------------------------------------

KEYS = leases.SlotKeys("quota:1:{global}:l:total", "quota:1:{global}:lately:total")
TOKENS = st.sampled_from("abcdefg")
LIMITS = st.sampled_from([1, 2, 2, 3, 3, 3])
"""Who shares a slot may differ in what they think its limit is."""
SPANS = st.one_of(st.integers(1, 30 * SECOND), st.sampled_from([10 * SECOND, 3_600 * SECOND]))


class Leases(Machine):
    """Slots and values that were seen, beside a plain model: no more hold a slot than may."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[str, int] = {}
        """The model: when the lease of each holder ends."""
        self.since: dict[str, int] = {}
        """When each got its slot."""
        self.spans: list[int] = []
        """For how long those that gave it back had held it."""

    def holders(self) -> set[str]:
        return {token for token, stop in self.ends.items() if stop > self.now}

    @rule(gap=st.one_of(st.integers(0, 3), st.integers(0, 12 * SECOND)), to_an_end=st.booleans())
    def time_passes(self, gap: int, to_an_end: bool) -> None:
        ends = [self.ends[token] for token in self.holders()]
        self.now = min(ends) if to_an_end and ends else self.now + gap

    @rule(token=TOKENS, limit=LIMITS, span=SPANS)
    def a_slot_is_asked_for(self, token: str, limit: int, span: int) -> None:
        before, held = self.kept(), self.holders()
        granted, free, wait, reset, now = self.done(leases.Acquire(KEYS, token, limit, span))
        assert granted == (token in held or len(held) < limit)
        assert now == self.now
        if granted:
            self.ends[token] = self.now + span
            self.since[token] = now
            assert token in held or len(self.holders()) <= limit
        else:
            assert self.kept() == before
        ends = sorted(self.ends[holder] - self.now for holder in self.holders())
        assert (free, reset) == (max(0, limit - len(ends)), ends[-1])
        over = max(0, len(ends) - limit)
        if before.get(KEYS.recent):  # the rate at which slots were given back, and never later than leases end
            assert 0 < wait <= ends[over]
            assert wait <= max(1, max(self.spans) * (over + 1) / len(ends))
            assert wait >= min(ends[over], int(min(self.spans) * (over + 1) / len(ends)))
        else:
            assert wait == ends[over]

    @rule(token=TOKENS, span=SPANS, again=st.booleans())
    def a_lease_is_renewed(self, token: str, span: int, again: bool) -> None:
        before = self.kept()
        renewed = self.done(leases.Renew(KEYS, token, span, again=again))
        assert renewed == (again or token in self.holders())
        if renewed:
            self.ends[token] = self.now + span
        else:
            assert self.kept() == before

    @rule(token=TOKENS, knows_since=st.booleans(), span=SPANS)
    def a_slot_is_given_back(self, token: str, knows_since: bool, span: int) -> None:
        before, was_held = self.kept(), token in self.holders()
        since = self.since.get(token) if knows_since else None
        assert self.done(leases.Release(KEYS, token, since, span)) == was_held
        if token not in self.ends:  # a foreign token changes nothing
            assert self.kept() == before
        self.ends.pop(token, None)
        others = {other: stop for other, stop in before.get(KEYS.leases, {}).items() if other != token}
        assert self.kept().get(KEYS.leases, {}) == others
        if was_held and since is not None and KEYS.recent in before:
            took, lately = max(1, self.now - since), int(before[KEYS.recent])
            self.spans.append(took)
            assert int(self.kept()[KEYS.recent]) == ((7 * lately + took) // 8 if lately else took)
        else:
            assert self.kept().get(KEYS.recent) == before.get(KEYS.recent)

    @rule()
    def the_holders_are_looked_at(self) -> None:
        before = self.kept()
        reply = self.done(leases.Holders(KEYS))
        left = {token: self.ends[token] - self.now for token in self.holders()}
        assert dict(zip(reply[::2], reply[1::2], strict=True)) == left
        assert self.kept() == before

    @rule(value=st.integers(0, 4), span=SPANS)
    def a_value_is_seen(self, value: int, span: int) -> None:
        key = f"quota:1:{{once:{value}}}:once:total"
        until = self.kept().get(key, 0)
        assert self.done(Once(key, span)) == (until <= self.now)
        assert self.kept()[key] == (self.now + span if until <= self.now else until)


# --- what is counted for the operator ---------------------------------------------------------------------------------

TODAY, ASIDE = key_of("u", "day:2025-11-21"), key_of("u", "day:2025-11-21:aside")
SETS = [key_of("u", f"l:{number}") for number in range(3)]
METRICS = site.MetricsKeys(*(key_of("!", kind) for kind in ("day", "minute", "refused", "slots", "totals", "sent")))
AROUND = st.integers(START - 5, START + 5)
NAMES = st.sampled_from(["a", "b", "c"])
COUNTS = st.dictionaries(NAMES.map("{}:a".format), st.integers(1, 9))
TOKEN = st.integers(0, 3) | AROUND


def aside(token: int) -> dict[str, int]:
    return {"a:a": 5, "#": token}


class Upkeep(Machine):
    """The days of a subject, the metrics, the workers, and the sweep."""

    @initialize(
        day=st.none()
        | st.dictionaries(st.sampled_from(["a:a", "a:r", "a:u"]), st.integers(-(2**62), 2**62), min_size=1),
        was_aside=st.none() | TOKEN.filter(bool).map(aside),
        sets=st.dictionaries(st.sampled_from(SETS), st.dictionaries(NAMES, AROUND, min_size=1)),
    )
    def begin(self, day: Any, was_aside: Any, sets: dict[str, dict[str, int]]) -> None:
        for key, fields in ((TODAY, day), (ASIDE, was_aside)):
            if fields:
                self.places.put(
                    key, fields, START + DAY, "HSET", key, *(part for pair in fields.items() for part in pair)
                )
        for key, scores in sets.items():
            self.places.put_scores(key, scores, START + DAY)

    @rule(gap=st.integers(0, 20 * SECOND))
    def time_passes(self, gap: int) -> None:
        self.now += gap

    @rule(
        operation=st.just(days.ReadDays([TODAY, ASIDE, key_of("u", "day:2025-11-20")]))
        | st.builds(days.SetAside, st.just(TODAY), st.just(ASIDE), TOKEN)
        | st.builds(days.DropAside, st.just(ASIDE), TOKEN)
        | st.builds(
            lambda *given: RecordHits(key_of("u", "s"), key_of("u", "sent:p"), *given),
            st.sampled_from([TODAY, ""]), st.integers(1, 20), NAMES,
            st.dictionaries(st.sampled_from("aru"), st.integers(-9, 9)), st.sampled_from([0, SECOND]),
            st.sampled_from(["", "free", "pro"]), st.sampled_from([0, 0, START, START + 30 * SECOND, START + DAY]),
        )
    )  # fmt: skip
    def a_day_is_counted_and_moved(self, operation: Operation) -> None:
        self.done(operation)

    @rule(
        operation=st.builds(site.RegisterWorker, st.just(key_of("!", "workers")), NAMES, st.just(30 * SECOND))
        | st.builds(
            site.AddMetrics,
            st.just(METRICS),
            st.integers(1, 20),
            COUNTS,
            COUNTS,
            st.dictionaries(NAMES, st.just(SECOND)),
        )
    )
    def a_process_reports(self, operation: Operation) -> None:
        self.done(operation)

    @rule(swept=st.lists(st.booleans(), min_size=3, max_size=3), most=st.integers(0, 9))
    def what_has_expired_is_swept(self, swept: list[bool], most: int) -> None:
        self.done(site.Sweep(SETS, swept, [1] * len(SETS), most, repairs=True))


@pytest.mark.hypothesis
@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(
    ("machine", "examples"),
    [(Plans, 500), (Counters, 300), (Leases, 200), (Upkeep, 200)],
    ids=["plans", "counters", "leases", "upkeep"],
)
def test_lua_never_differs_from_its_specification(machine: type[Machine], examples: int, raw: redis.Redis) -> None:
    run_machine(machine, raw, examples)


AHEAD: list[Asked] = [each for each in RULES if each.lease]


class TakenAhead(Plans):
    """Plans of rules under which units are taken ahead, mostly one rule at a time."""

    @initialize(phase=st.integers(0, DAY), its_rules=st.lists(st.sampled_from(AHEAD), min_size=1, max_size=2))
    def begin(self, phase: int, its_rules: list[Asked]) -> None:
        super().begin(phase, its_rules)


@pytest.mark.thorough("slow")
@pytest.mark.usefixtures("redis_cache")
def test_stores_never_differ_in_what_is_taken_ahead(raw: redis.Redis) -> None:
    run_machine(TakenAhead, raw, examples=200)


class Credits(Plans):
    """Plans of counters alone, of whose units some expire."""

    @initialize(phase=st.integers(0, DAY), its_rules=st.just([CREDITS, POOLED, *LEASED]))
    def begin(self, phase: int, its_rules: list[Asked]) -> None:
        super().begin(phase, its_rules)


@pytest.mark.thorough("slow")
@pytest.mark.usefixtures("redis_cache")
def test_stores_never_differ_in_what_expires_of_a_counter(raw: redis.Redis) -> None:
    run_machine(Credits, raw, examples=300)


ONE_AFTER_ANOTHER: list[tuple[int, Literal["check", "force", "peek", "refund", "reset"], int, int, int, int]] = [
    (0, "check", 1, 4, 9, 0), (1, "check", 1, 4, 9, 0), (SECOND, "peek", 1, 0, 9, 0), (0, "check", 1, 4, 0, 3),
    (0, "reset", 0, 0, 9, 0), (5 * SECOND, "peek", 1, 0, 9, 0), (0, "check", 2, 4, 9, 0), (0, "refund", 1, 0, 0, 2),
    (0, "check", 7, 0, 9, 0), (0, "check", 3, 0, 9, 0), (3 * SECOND, "check", 9, 0, 0, 4), (0, "force", 9, 0, 9, 0),
    (9 * SECOND, "peek", 3, 0, 9, 0), (0, "check", 3, 0, 9, 0), (40 * SECOND, "check", 1, 4, 9, 0),
    (9 * SECOND, "reset", 0, 0, 9, 0), (0, "check", 1, 0, 0, 1), (4 * SECOND, "check", 1, 1, 9, 0),
    (20 * SECOND, "check", 1, 1, 0, 1), (MINUTE, "check", 4, 2, 0, 1), (4 * SECOND, "peek", 9, 0, 9, 0),
    (-SECOND, "check", 9, 0, 9, 0), (60 * MINUTE, "check", 1, 4, 9, 0), (25 * 60 * MINUTE, "check", 1, 4, 0, 4),
    (3 * 60 * MINUTE, "check", 1, 4, 9, 0), (SECOND, "reset", 0, 0, 9, 0), (SECOND, "check", 1, 0, -1, 2),
    (57 * SECOND, "check", 1, 4, 9, 0),
    (0, "peek", 99, 0, 9, 0), (0, "check", 99, 0, 9, 0), (0, "peek", 1, 0, -1, 2),
    (0, "reset", 0, 0, 9, 0), (0, "check", 1, 4, 9, 0), (0, "refund", 1, 0, 9, 0), (5 * SECOND, "check", 1, 0, 9, 0),
    (0, "reset", 0, 0, 9, 0), (0, "check", 1, 4, 9, 0), (61 * SECOND, "peek", 1, 0, 9, 0), (0, "check", 1, 0, 9, 0),
    (0, "reset", 0, 0, 9, 0), (0, "check", 1, 1, 9, 0), (20 * SECOND, "peek", 1, 0, 9, 0), (0, "check", 99, 0, 9, 0),
    (0, "reset", 0, 0, 9, 0), (0, "check", 1, 4, 9, 0), (SECOND, "check", 99, 0, -1, 0), (0, "check", 1, 0, 9, 0),
]  # fmt: skip
"""How much time passes first, the mode, the cost, the wish, which share is returned, and what was spent of it."""


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("its_rule", AHEAD, ids=[each.name for each in AHEAD])
def test_stores_never_differ_in_what_is_taken_ahead_one_after_the_other(places: Places, its_rule: Asked) -> None:
    now, ids = START, itertools.count(1)
    shares: list[tuple[Ahead, int, int]] = []

    for gap, mode, cost, wish, which, spent in ONE_AFTER_ANOTHER:
        now += gap
        ask = Ask(its_rule, "user:1", cost)
        if mode == "reset":
            of: Any = its_rule
            hit, *_ = Question([ask]).hits_at(now)
            places.run(resets.Reset([resets.RuleState.of([of], hit.status_key)], NO_LOG), now)
            continue
        returned = shares.pop(which)[0].new_id if which < len(shares) != 0 else ""
        ahead = Ahead(returned, spent, f"n{next(ids)}", wish, 2, 3 * SECOND)
        question = Question([ask], ahead={ask.place: ahead})
        reply = places.decide(question, mode, now)
        shares += question.granted(reply).values() if mode == "check" else ()


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(("mode", "cost"), [("peek", 0), ("check", 1), ("force", 1)], ids=["peek", "check", "force"])
@pytest.mark.parametrize("its_rule", AHEAD, ids=[each.name for each in AHEAD])
def test_stores_never_differ_in_what_is_returned_to_a_limit_that_admits_nothing_any_more(
    places: Places, its_rule: Any, mode: QuestionMode, cost: int
) -> None:
    """An override came in between: what was spent of the share is not counted, and the share is gone."""
    first, second = (
        Ask(its_rule, "user:1", 1),
        Ask(its_rule.with_rates(*map(none_of, its_rule.rates)), "user:1", cost),
    )
    taking = {first.place: Ahead("", 0, "n1", 4, 2, 3 * SECOND)}
    places.decide(Question([first], ahead=taking), "check", START)

    returning = {second.place: Ahead("n1", 2, "n2", 0, 2, 3 * SECOND)}
    reply = places.decide(Question([second], ahead=returning), mode, START + SECOND)

    assert reply[2] == 0


def none_of(rate: Rate) -> str:
    return f"0/{rate.window}"


@pytest.mark.thorough("slow")
def test_rows_of_each_database_never_differ_from_the_specification(
    database: dict[str, Any], redis_cache: Any, raw: redis.Redis
) -> None:
    """All other tests of this file have rows of SQLite in memory."""
    run_machine(Plans, raw, examples=60)


@pytest.mark.thorough("slow")
@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("machine", [Plans, Leases], ids=["plans", "leases"])
def test_rows_never_differ_from_the_specification_if_each_call_looks_before_its_turn(
    machine: type[Machine], raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a flood. What changes something must not be decided by the look."""
    monkeypatch.setattr(Turns, "are_taken", lambda *_: True)
    run_machine(machine, raw, examples=60)


def test_metrics_do_not_grow_with_the_names_of_rules(places: Places) -> None:
    first = {f"rule{n}:a": 1 for n in range(site.FIELDS + 7)}

    for number, counts in enumerate((first, {"rule0:a": 1, "one-more:a": 1, "one-more:r": 4}), 1):
        places.run(site.AddMetrics(METRICS, number, counts, {}, {}), START)

    rules = places.lying()[METRICS.day]
    assert (rules["rule0:a"], rules[f"{site.OTHER}:a"], rules[f"{site.OTHER}:r"]) == ("2", "8", "4")
    assert len(rules) <= site.FIELDS + 3


def test_metrics_count_outages_beside_any_number_of_rules(places: Places) -> None:
    rules = {f"rule{n}:a": 1 for n in range(site.FIELDS)}

    for number, counts in enumerate((rules, {site.OUTAGES: 3}), 1):
        places.run(site.AddMetrics(METRICS, number, counts, {}, {}), START)

    assert places.lying()[METRICS.totals][site.OUTAGES] == "3"


def test_metrics_keep_the_subjects_that_are_refused_most(places: Places) -> None:
    many = {f"ip:{number}": 1 + (number == 5) for number in range(site.SUBJECTS * 3 // 2 + 1)}

    places.run(site.AddMetrics(METRICS, 3, {}, many, {}), START)

    refused = places.lying()[METRICS.refused]
    assert (len(refused), refused["ip:5"]) == (site.SUBJECTS, "2")


@pytest.mark.parametrize("more", [0, 1], ids=["as many as there may be", "one too many"])
def test_metrics_keep_the_slots_that_are_needed_longest(more: int, places: Places) -> None:
    most = site.SLOTS * 3 // 2
    many = {f"slot-{number}": SECOND + number for number in range(most + more)}

    places.run(site.AddMetrics(METRICS, 3, {}, {}, many), START)

    slots = places.lying()[METRICS.slots]
    assert len(slots) == (site.SLOTS if more else most)
    assert ("slot-0" in slots, f"slot-{most - 1}" in slots) == (not more, True)


def recorded(
    number: int, counts: dict[str, int], tier: str = "", span: int = SECOND, until: int = 0, day: str = TODAY
) -> Operation:
    return RecordHits(key_of("u", "s"), key_of("u", "sent:p"), day, number, "a", counts, span, tier, until)


def reported(number: int, counts: dict[str, int], refused: dict[str, int], slots: dict[str, int]) -> Operation:
    return site.AddMetrics(METRICS, number, counts, refused, slots)


def alive(token: str) -> Operation:
    return site.RegisterWorker(key_of("!", "workers"), token, 30 * SECOND)


READ = days.ReadDays([TODAY, ASIDE])
STEPS_OF_UPKEEP: dict[str, list[tuple[int, Operation]]] = {
    "sends hits": [
        (0, recorded(3, {"a": 2, "u": 4}, "pro")), (0, recorded(3, {"a": 2})), (0, recorded(2, {"a": 2})), (0, READ),
        (SECOND - 1, recorded(4, {"a": -1, "u": 0})), (1, recorded(5, {"r": 1}, "free")), (0, READ),
        (0, recorded(6, {"r": 1}, span=0)), (SECOND, recorded(7, {}, span=0)), (0, recorded(8, {}, "pro")), (0, READ),
        (MINUTE, recorded(9, {"a": 1})),
    ],
    "sends hits that no day counts": [
        (0, recorded(1, {"r": 1}, "pro", day="")), (0, recorded(2, {"r": 1}, "pro", day="")), (0, READ),
    ],
    "sends hits that are remembered until a moment": [
        (0, recorded(1, {"a": 1}, until=START)), (0, recorded(1, {"a": 1}, until=START + 1)), (0, READ),
        (0, recorded(1, {"a": 1}, until=START + DAY)), (1, recorded(2, {"a": 1}, until=START + DAY)), (0, READ),
        (0, recorded(2, {"a": 1}, until=START + DAY)), (0, READ),
    ],
    "moves a day": [
        (0, READ), (0, days.SetAside(TODAY, ASIDE, 0)), (0, recorded(1, {"a": 2})), (0, days.SetAside(TODAY, ASIDE, 7)),
        (0, READ), (0, days.SetAside(TODAY, ASIDE, START + 9)), (0, recorded(2, {"r": 1})),
        (1, days.SetAside(TODAY, ASIDE, 0)), (0, READ), (0, days.DropAside(ASIDE, START - 1)), (0, READ),
        (0, days.DropAside(ASIDE, START)), (0, days.DropAside(ASIDE, START)), (0, READ),
        (0, days.SetAside(TODAY, ASIDE, START + 9)), (0, READ), (0, days.DropAside(ASIDE, START + 10)), (0, READ),
    ],
    "sends metrics": [
        (0, reported(1, {"a:a": 2, "b:r": 1}, {"ip:1": 3}, {"slot": SECOND})), (0, reported(1, {"a:a": 2}, {}, {})),
        (0, reported(2, {"a:a": 1, "a:s": 4}, {"ip:1": 1, "ip:2": 2}, {"slot": 2 * SECOND, "other": SECOND})),
        (SECOND, reported(3, {}, {}, {})), (SECOND, reported(4, {}, {}, {"new": MINUTE})), (0, reported(3, {}, {}, {})),
        (2 * DAY - MINUTE, reported(5, {"a:a": 1}, {"ip:1": 1}, {})),
    ],
    "asked for a slot that is remembered longer than the next": [
        (0, reported(1, {}, {}, {"long": MINUTE, "short": SECOND})), (0, reported(2, {}, {}, {"other": 2 * SECOND})),
    ],
    "is alive": [
        (0, alive("a")), (0, alive("b")), (SECOND, alive("a")), (29 * SECOND - 1, alive("c")), (1, alive("c")),
        (SECOND - 1, alive("c")), (1, alive("c")), (MINUTE, alive("d")),
    ],
}  # fmt: skip
"""How much time passes first, and what a process does then."""


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("steps", STEPS_OF_UPKEEP.values(), ids=STEPS_OF_UPKEEP)
def test_no_store_differs_in_what_it_keeps_for_a_process_that(
    places: Places, steps: list[tuple[int, Operation]]
) -> None:
    places.run_in_turn(steps)


def near_the_wrap(places: Places) -> str:
    """Let a window's running total be near the end of its numbers; return its key."""
    (hit,) = hits_of(Rule.make("sliding", "10/m"), cost=3)
    key, expiry = hit.limits[0].key, START + MINUTE
    places.put(key, (WindowEntry(2 * WRAP - 3, 1, expiry),), expiry, "ZADD", key, expiry, f"{2 * WRAP - 3}:1")
    return key


def after_the_wrap(places: Places) -> list[int]:
    """Hit twice and look; return what is left each time."""
    (hit,) = hits_of(Rule.make("sliding", "10/m"), cost=3)
    modes: list[Mode] = ["check", "check", "peek"]
    return [answers(places.run(Decide([hit], mode), START + n))[0].remaining for n, mode in enumerate(modes, 1)]


def test_a_running_total_that_wraps_to_zero_hides_no_entry(places: Places) -> None:
    near_the_wrap(places)

    assert after_the_wrap(places) == [6, 3, 3]


def test_a_running_total_begins_again_where_it_wraps(places: Places) -> None:
    key = near_the_wrap(places)
    after_the_wrap(places)

    totals = [int(entry.partition(":")[0]) for entry in places.lying()[key]]

    assert totals == [each.total for each in places.states.get(key)]
    assert all(WRAP <= total < 2 * WRAP for total in totals)


def test_entries_around_a_wrap_expire_in_their_turn(places: Places) -> None:
    near_the_wrap(places)
    after_the_wrap(places)
    (hit,) = hits_of(Rule.make("sliding", "10/m"), cost=3)
    (dear,) = hits_of(Rule.make("sliding", "10/m"), cost=6)

    waits = [answers(places.run(Decide([dear], "peek"), now))[0].retry_after for now in (START + 4, START + MINUTE)]

    assert waits == [MINUTE - 3, 1]
    assert answers(places.run(Decide([hit], "peek"), START + MINUTE))[0].remaining == 4


IN_TWO_KEYS: dict[str, Operation] = {
    "incr": counters.Incr(
        (key_of("a"), key_of("a", "c:total:2025-11"), keys_of("a")[1]), 3, TTL, "21", MIDNIGHT, MIDNIGHT + DAY
    ),
    "unique": counters.Unique(
        (key_of("a", "u:total"), key_of("a", "u:total:2025-11-21")), "value", TTL, MIDNIGHT, MIDNIGHT + DAY
    ),
    "transfer": counters.Transfer(BOTH, 0, TTL),
}


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("times", [0, 1], ids=["at first", "again"])
@pytest.mark.parametrize("place", [0, 1], ids=["first key", "second key"])
@pytest.mark.parametrize("operation", IN_TWO_KEYS.values(), ids=IN_TWO_KEYS)
def test_a_count_in_two_keys_changes_neither_if_one_holds_something_else(
    places: Places, operation: Operation, place: int, times: int
) -> None:
    key = operation.keys[place]
    for _ in range(times):
        places.run(operation, START)
    places.put(key, FOREIGN, START + 2 * TTL, "RPUSH", key, *FOREIGN)
    before = places.dump()

    assert places.run(operation, START) == [counters.NO_COUNTER, place + 1]
    assert places.dump() == before


def of_a(kind: Callable[..., Operation], *amount: int) -> Operation:
    return kind(keys_of("a"), *amount, *[TTL for _ in amount])


def granted(units: int, span: int, order: int, subject: str = "a") -> Operation:
    """Return the grant of units that live so long; 0: for good."""
    keys = (*keys_of(subject), key_of(subject, f"granted:total:{order}"))
    return counters.AddGrant(keys, units, TTL, span, str(order))


def granted_to(hit: Hit, units: int, span: int, order: int = 1) -> Operation:
    """Return the grant of units that live so long to the counter of a hit."""
    key = hit.limits[0].key
    keys = (key, *hit.grants_keys, key.replace("}:c:", "}:granted:") + f":{order}")
    return counters.AddGrant(keys, units, TTL, span, str(order))


def incremented(amount: int, off: int = 0, subject: str = "a", day: int = 0) -> Operation:
    """Return an increment. `day`: how many days have passed; `off`: by how many the day that is sent is wrong."""
    keys = (key_of(subject), key_of(subject, "c:total:2025-11"), keys_of(subject)[1])
    begins = MIDNIGHT + (day + off) * DAY
    return counters.Incr(keys, amount, TTL, f"{21 + day + off:02}", begins, begins + DAY)


def moved(amount: int, source: str = "a", destination: str = "b") -> Operation:
    keys = [key for pair in zip(keys_of(source), keys_of(destination), strict=True) for key in pair]
    return counters.Transfer(keys, amount, TTL)


def seen(value: str, off: int = 0, day: int = 0) -> Operation:
    """Return the count of a distinct value; see `incremented`."""
    number = 21 + day + off
    begins = MIDNIGHT + (day + off) * DAY
    keys = (key_of("a", "u:total"), key_of("a", f"u:total:2025-11-{number:02}"))
    return counters.Unique(keys, value, TTL, begins, begins + DAY)


MONTHS = [key_of("a", f"c:total:2025-{month}") for month in (10, 11, 12)]
DAYS = counters.Days(MONTHS, [(31, 31), (20, 23), (1, 2)])
DIFFERENT = [counters.UniqueCount(key_of("a", f"u:total{day}")) for day in ("", ":2025-11-21", ":2025-11-22")]
GET, GRANTS, POP = of_a(counters.Get), of_a(counters.Grants), of_a(counters.Pop)
OF_B = counters.Grants(keys_of("b"))
STEPS_OF_COUNTERS: dict[str, list[tuple[int, Operation]]] = {
    "not there": [
        (0, of_a(counters.TakeUnits, 1)), (0, moved(1)), (0, moved(0)), (0, moved(1, "a", "a")), (0, POP), (0, GRANTS),
        (0, granted(5, 0, 1)), (0, moved(9)), (0, moved(5)), (0, of_a(counters.TakeUnits, 1)), (0, moved(1)),
    ],
    "spent in order": [
        (0, granted(5, DAY, 1)), (0, granted(3, DAY, 2)), (0, granted(3, DAY, 2)), (0, granted(4, 0, 3)),
        (0, granted(2, 2 * DAY, 4)), (0, GRANTS), (1, of_a(counters.TakeUnits, 6)), (0, GRANTS), (0, incremented(2)),
        (0, GRANTS), (0, incremented(-1)), (0, GRANTS), (0, of_a(counters.TakeUnits, 99)), (0, GRANTS),
    ],
    "expired to the microsecond": [
        (0, granted(5, DAY, 1)), (0, granted(3, DAY, 2)), (DAY - 1, GET), (1, GET), (0, GRANTS), (1, GET), (0, GRANTS),
        (0, of_a(counters.TakeUnits, 1)), (0, POP), (0, GET),
    ],
    "taken after some have expired": [
        (0, granted(5, DAY, 1)), (0, granted(4, 0, 2)), (DAY, of_a(counters.TakeUnits, 5)), (0, GET),
        (0, of_a(counters.TakeUnits, 4)), (0, GET), (0, GRANTS),
    ],
    "counted after some have expired": [
        (0, granted(5, DAY, 1)), (0, granted(4, 2 * DAY, 2)), (DAY, incremented(3, day=1)), (0, GRANTS),
        (0, granted(2, DAY, 3)), (0, GRANTS), (DAY, incremented(1, day=2)), (0, GRANTS), (0, POP), (0, GRANTS),
    ],
    "moved with their time": [
        (0, granted(5, DAY, 1)), (0, granted(3, 2 * DAY, 2)), (0, granted(4, DAY, 3, "b")), (0, moved(6)), (0, GRANTS),
        (0, OF_B), (0, moved(2, "b", "a")), (0, GRANTS), (0, OF_B), (0, moved(9)), (0, moved(3, "a", "a")),
        (DAY, moved(1)), (0, OF_B), (0, moved(9, "b", "a")), (0, moved(0, "a", "a")), (DAY, moved(1, "b", "a")),
        (0, OF_B), (0, GRANTS),
    ],
    "owed": [
        (0, of_a(counters.Set, -5)), (0, granted(3, DAY, 1)), (0, GRANTS), (0, granted(6, DAY, 2)), (0, GRANTS),
        (0, incremented(-9)), (0, GRANTS), (0, granted(4, DAY, 3)), (DAY, GET), (0, granted(4, DAY, 4)),
        (0, GRANTS), (0, incremented(-6, day=1)), (DAY, GET), (0, of_a(counters.Set, 7)), (0, GRANTS),
    ],
    "owed where they are moved": [
        (0, granted(5, DAY, 1)), (0, granted(3, 2 * DAY, 2)), (0, counters.Set(keys_of("b"), -4, TTL)), (0, moved(6)),
        (0, OF_B), (DAY, OF_B), (0, moved(2)), (0, OF_B),
    ],
    "too many for 64 bits": [
        (0, of_a(counters.Set, MAX_INT64 - 9)), (0, granted(5, DAY, 1)), (0, granted(5, 0, 2)), (0, incremented(5)),
        (DAY, granted(10, 0, 3)), (0, incremented(10, day=1)), (0, GET), (0, granted(9, DAY, 4)), (0, GET),
        (0, incremented(-3, day=1)), (0, of_a(counters.TakeUnits, MAX_INT64)), (0, GET), (0, moved(9)), (0, OF_B),
    ],
    "too many for 64 bits on one day": [
        (0, incremented(MAX_INT64)), (0, incremented(1)), (0, of_a(counters.Set, 5)), (0, incremented(1)), (0, GET),
        (0, DAYS), (0, POP), (0, incremented(1)), (0, GET), (0, granted(4, DAY, 1)), (0, incremented(2)), (0, GRANTS),
    ],
    "moved to one that is full": [
        (0, of_a(counters.Set, 9)), (0, granted(5, DAY, 1)), (0, counters.Set(keys_of("b"), MAX_INT64 - 4, TTL)),
        (0, granted(4, DAY, 2, "b")), (0, moved(1)), (DAY, moved(5)), (0, GET), (0, OF_B), (0, moved(4)), (0, OF_B),
    ],
    "of another day": [
        (0, incremented(3, off=-1)), (0, incremented(3, off=1)), (0, incremented(3)), (0, granted(2, DAY, 1)),
        (MIDNIGHT + DAY - 1 - START, incremented(1)), (1, incremented(1)), (0, incremented(1, day=1)), (0, GRANTS),
        (0, DAYS), (0, incremented(-8, day=1)), (0, incremented(MIN_INT64 + 9, day=1)), (0, DAYS), (0, GET),
    ],
    "granted at one moment": [
        (0, granted(5, DAY, 1)), (0, granted(4, DAY, 2)), (0, granted(3, DAY + 1, 3)), (0, granted(2, DAY, 4)),
        (0, GRANTS), (DAY, GRANTS), (1, GRANTS), (1, GRANTS), (1, GRANTS),
    ],
    "different values": [
        (0, seen("x", off=-1)), (0, seen("x", off=1)), (0, seen("x")), (0, seen("x")), (0, seen("y")),
        *[(0, each) for each in DIFFERENT], (MIDNIGHT + DAY - 1 - START, seen("z")), (1, seen("z")),
        (0, seen("z", day=1)), (0, seen("w", day=1)), *[(0, each) for each in DIFFERENT],
    ],
    "changed again after a while": [
        (0, of_a(counters.Set, 9)), (0, granted(5, 3 * DAY, 1)), (0, counters.Set(keys_of("b"), 1, TTL)),
        (0, seen("x")),
        (DAY, of_a(counters.TakeUnits, 1)), (DAY, moved(2)), (0, seen("x", day=2)), (DAY // 2, incremented(1, day=2)),
        (DAY // 4, of_a(counters.TakeUnits, 99)), (0, moved(0, "b", "a")), (0, moved(99)), (0, moved(0, "a", "a")),
    ],
}  # fmt: skip
"""How much time passes first, and what is done then."""


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("steps", STEPS_OF_COUNTERS.values(), ids=STEPS_OF_COUNTERS)
def test_no_store_differs_in_units_that_are(places: Places, steps: list[tuple[int, Operation]]) -> None:
    """What chance may leave out: each thing that can be done to a counter whose units expire, at the edges."""
    places.run_in_turn(steps)


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(("used_up", "kept"), [(99, 100), (100, 1)], ids=["a hundred grants", "one more"])
def test_no_store_keeps_more_than_a_hundred_grants_with_those_that_are_used_up(
    places: Places, used_up: int, kept: int
) -> None:
    _, key = keys_of("a")
    members = {f"0:5:{START + DAY + number}:{number}": START + DAY + number for number in range(used_up)}
    places.age(START)
    places.put_scores(key, members, START + TTL)

    places.run(granted(5, DAY // 2, 1), START)

    assert len(places.states.get(key)) == kept


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(
    ("left", "span", "reply"),
    [(999, DAY // 2, counters.DONE), (1_000, DAY // 2, counters.TOO_MANY), (1_000, 0, counters.DONE)],
    ids=["one fewer", "as many", "as many, and one that never expires"],
)
def test_no_store_differs_in_how_many_grants_may_be_left(places: Places, left: int, span: int, reply: int) -> None:
    total_key, key = keys_of("a")
    members = {f"1:1:{START + DAY + number}:{number}": START + DAY + number for number in range(left)}
    places.age(START)
    places.put(total_key, left, START + TTL, "SET", total_key, left)
    places.put_scores(key, members, START + TTL)

    assert places.run(granted(5, span, 1), START)[0] == reply


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(("left", "reply"), [(999, counters.DONE), (1_000, counters.TOO_MANY)])
def test_no_store_differs_in_whether_units_that_expire_have_room_where_they_are_moved(
    places: Places, left: int, reply: int
) -> None:
    _, key = keys_of("b")
    members = {f"1:1:{START + DAY + number}:{number}": START + DAY + number for number in range(left)}
    places.run(granted(5, DAY // 2, 1), START)
    places.run(counters.Set(keys_of("b"), left, TTL), START)
    places.put_scores(key, members, START + TTL)

    assert places.run(moved(5), START)[0] == reply


OF_TWO_KEYS: dict[str, Operation] = {
    "get": GET, "grants": GRANTS, "pop": POP, "set": of_a(counters.Set, 5), "take": of_a(counters.TakeUnits, 1),
    "incr": incremented(1), "grant": granted(5, DAY, 1), "grant for good": granted(5, 0, 1), "transfer": moved(0),
    "transfer to it": moved(0, "b", "a"),
}  # fmt: skip


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("kind", ["c:total", "grants:total"])
@pytest.mark.parametrize("operation", OF_TWO_KEYS.values(), ids=OF_TWO_KEYS)
def test_no_store_differs_in_which_key_of_a_counter_holds_something_else(
    places: Places, operation: Operation, kind: str
) -> None:
    key = key_of("a", kind)
    places.put(key, FOREIGN, START + 2 * TTL, "RPUSH", key, *FOREIGN)
    before = places.dump()

    assert places.run(operation, START) == [counters.NO_COUNTER, operation.keys.index(key) + 1]
    assert places.dump() == before


def acquired(token: str, limit: int = 2, span: int = 10 * SECOND) -> Operation:
    return leases.Acquire(KEYS, token, limit, span)


def renewed(token: str, span: int = 10 * SECOND, *, again: bool = False) -> Operation:
    return leases.Renew(KEYS, token, span, again=again)


def released(token: str, since: int | None = START, span: int = 10 * SECOND) -> Operation:
    return leases.Release(KEYS, token, since, span)


HOLDERS = leases.Holders(KEYS)
ONCE = Once("quota:1:{once:a}:once:total", 3 * SECOND)
STEPS_OF_SLOTS: dict[str, list[tuple[int, Operation]]] = {
    "taken": [
        (0, HOLDERS), (0, acquired("a")), (1, acquired("b", span=20 * SECOND)), (1, acquired("c")), (0, HOLDERS),
        (SECOND, acquired("a")), (0, acquired("c", limit=3)), (0, acquired("d", limit=1)), (0, HOLDERS),
        (10 * SECOND - 1, acquired("d")), (1, acquired("d", limit=3)), (0, HOLDERS),
    ],
    "given back": [
        (0, acquired("a")), (0, released("a")), (0, acquired("a")), (0, acquired("b")), (3 * SECOND + 1, released("x")),
        (0, released("a")), (0, released("a")), (0, acquired("c")), (0, acquired("d")), (SECOND + 1, released("b")),
        (0, acquired("d", limit=4)), (0, acquired("e", limit=1)), (1, released("d", None)), (0, HOLDERS),
        (0, released("c", START + MINUTE)), (0, acquired("f", limit=1)), (0, acquired("g", limit=1)),
        (0, released("f", START, span=MINUTE)), (0, HOLDERS),
    ],
    "given back at once": [
        (0, acquired("a", limit=1)), (0, released("a")), (0, acquired("b", limit=1)), (0, acquired("c", limit=1)),
        (9 * SECOND, acquired("c", limit=1)), (SECOND - 1, acquired("c", limit=1)), (1, acquired("c", limit=1)),
    ],
    "given back at once by one of two": [
        (0, acquired("a")), (0, acquired("b")), (0, released("a")), (0, acquired("c")), (0, acquired("d")),
    ],
    "given back later than the next lease ends": [
        (0, acquired("a", limit=1, span=MINUTE)), (30 * SECOND, released("a")), (0, acquired("b", limit=1)),
        (0, acquired("c", limit=1)),
    ],
    "given back after their lease has ended": [
        (0, acquired("a", limit=1)), (10 * SECOND, released("a")), (0, HOLDERS), (0, acquired("a", limit=1)),
    ],
    "renewed": [
        (0, renewed("a")), (0, acquired("a", limit=1)), (3 * SECOND, renewed("a", SECOND)), (0, HOLDERS),
        (SECOND - 1, renewed("a")), (10 * SECOND, renewed("a")), (0, renewed("b", again=True)), (0, HOLDERS),
        (0, renewed("a", 40 * SECOND, again=True)), (0, renewed("a", again=True)), (0, acquired("c", limit=1)),
    ],
    "remembered once": [
        (0, ONCE), (1, ONCE), (3 * SECOND - 2, ONCE), (1, ONCE), (0, ONCE), (3 * SECOND - 1, ONCE), (1, ONCE),
    ],
}  # fmt: skip


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("steps", STEPS_OF_SLOTS.values(), ids=STEPS_OF_SLOTS)
def test_no_store_differs_in_slots_that_are(places: Places, steps: list[tuple[int, Operation]]) -> None:
    places.run_in_turn(steps)


STATUS = status_key("quota", "user:1")
CREDIT_LEASES = key_of("user:1", "leased:credits")


def looked_at() -> Operation:
    return subject_contents.InspectSubject(STATUS, [])


def ban_of(rule: str, seconds: int) -> Operation:
    return bans.BanSubject(STATUS, rule, seconds * SECOND, MINUTE)


def lifted(*rules: str) -> Operation:
    return bans.LiftBans(STATUS, rules)


def forgotten(*rules: tuple[str, str]) -> Operation:
    """Return the reset of rules, each with the kinds of its states."""
    return resets.Reset([
        resets.RuleState(rule, STATUS, [key_of("user:1", f"{kind}:{rule}") for kind in kinds]) for rule, kinds in rules
    ])  # fmt: skip


def filled(places: Places) -> None:
    """Let a subject have counts, bans, and what was reported of two rules."""
    places.age(START)
    for name in ("a", "b"):
        for kind in "cxyz":
            key = key_of("user:1", f"{kind}:{name}")
            places.put(key, 5, START + DAY, "SET", key, 5)
    fields = {f"{kind}:{name}": f"{START + 9} 1 {START + 99}" for name in ("a", "b") for kind in "bew"}
    places.put(STATUS, fields, START + DAY, "HSET", STATUS, *(word for pair in fields.items() for word in pair))


STEPS_OF_A_SUBJECT: dict[str, list[tuple[int, Operation]]] = {
    "is forgiven": [
        (0, lifted("b", "none")), (0, looked_at()), (0, lifted("b")), (8, lifted("a")), (0, looked_at()), (0, lifted()),
    ],
    "is forgiven after the bans have ended": [(9, lifted("a", "b")), (0, looked_at())],
    "is banned again": [
        (8, ban_of("a", 1)), (0, ban_of("a", 1)), (1, ban_of("b", 1)), (0, looked_at()), (SECOND, ban_of("a", 200)),
        (0, ban_of("c", 5)), (0, lifted("a", "b", "c")), (0, looked_at()),
    ],
    "is banned for longer than it was known": [(0, ban_of("c", 2 * 86_400)), (0, looked_at())],
    "is banned just before a ban is forgotten": [
        (0, ban_of("c", 1)), (SECOND + MINUTE - 1, ban_of("c", 1)), (0, looked_at()),
    ],
    "is banned as a ban is forgotten": [(0, ban_of("c", 1)), (SECOND + MINUTE, ban_of("c", 1)), (0, looked_at())],
    "is forgotten": [
        (0, forgotten(("a", "cx"), ("none", "yz"))), (0, looked_at()), (0, forgotten(("a", "y"))),
        (0, forgotten(("a", "cz"), ("b", "c"))), (0, looked_at()), (0, forgotten(("b", ""))),
        (0, forgotten(("b", "xyz"))),
    ],
}  # fmt: skip


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("steps", STEPS_OF_A_SUBJECT.values(), ids=STEPS_OF_A_SUBJECT)
def test_no_store_differs_in_a_subject_that(places: Places, steps: list[tuple[int, Operation]]) -> None:
    filled(places)
    places.run_in_turn(steps)


@pytest.mark.usefixtures("redis_cache")
def test_no_store_differs_in_which_leases_of_a_subject_are_read(places: Places) -> None:
    """It counts all that have not ended, and reads the first of them to end."""
    most = subject_contents.MAX_READ
    of_slots = {
        key_of("user:1", "l:many"): {f"t{number:03}": START + number for number in range(most + 3)},
        key_of("user:1", "l:one"): {"t": START + MINUTE},
    }
    places.age(START)
    for key, ends in of_slots.items():
        places.put_scores(key, ends, START + DAY)
    looking = subject_contents.InspectSubject(STATUS, [*of_slots, key_of("user:1", "l:none")])

    now, _, many, one, none = places.in_redis(looking, START + 1)

    assert [now, [], *[[int(count), *map(text, rest)] for count, *rest in (many, one, none)]] == [
        START + 1, [],
        [most + 1, *(str(word) for number in range(2, most + 2) for word in (f"t{number:03}", START + number))],
        [1, "t", str(START + MINUTE)], [0],
    ]  # fmt: skip


LEASES_OF_UNITS = {"l1:3:": START + SECOND, "l2:4:": START + 2 * SECOND, "l3:5:": START + 3 * SECOND}
UNITS = counters.Get((key_of("user:1", "c:credits"), key_of("user:1", "grants:credits")))
BACK_AGAIN = GiveBackEnded(CREDIT_LEASES)


def leases_go_on(*members: str) -> Operation:
    return RenewLeases(CREDIT_LEASES, members, 5 * SECOND, DAY)


STEPS_OF_LEASED_UNITS: dict[str, list[tuple[int, Operation]]] = {
    "go back": [
        (0, BACK_AGAIN), (SECOND - 1, BACK_AGAIN), (1, BACK_AGAIN), (0, UNITS), (2 * SECOND, BACK_AGAIN), (0, UNITS),
        (0, BACK_AGAIN), (0, UNITS),
    ],
    "stay out": [
        (0, leases_go_on("l1:3:", "none:3:", "l3:5:")), (4 * SECOND, BACK_AGAIN), (0, UNITS),
        (0, leases_go_on("l2:4:")), (0, leases_go_on()), (0, leases_go_on("l3:5:")), (SECOND, BACK_AGAIN), (0, UNITS),
        (4 * SECOND, BACK_AGAIN), (0, UNITS), (0, leases_go_on("l3:5:")),
    ],
}  # fmt: skip


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("steps", STEPS_OF_LEASED_UNITS.values(), ids=STEPS_OF_LEASED_UNITS)
def test_no_store_differs_in_leased_units_that(places: Places, steps: list[tuple[int, Operation]]) -> None:
    places.age(START)
    places.put_scores(CREDIT_LEASES, LEASES_OF_UNITS, START + MINUTE)
    places.run_in_turn(steps)


def leased_since_the_start(places: Places, taken: Any) -> Hit:
    """Let a subject take 60 of 100 units for a lease of 40 seconds; return the hit."""
    question = Question([Ask(taken, "user:1", 60, "lease1")])
    (hit,) = question.hits
    places.run(counters.Set((hit.limits[0].key, *hit.grants_keys), 100, hit.limits[0].parameters.a), START)
    places.decide(question, "check", START)
    return hit


ENDED = START + 41 * SECOND
BACK: dict[str, Callable[[Places, Any, Hit], object]] = {
    "the sweep": lambda places, taken, hit: places.run(GiveBackEnded(hit.leased_keys[0]), ENDED),
    "a refused request": lambda places, taken, hit: places.decide(
        Question([Ask(taken, "user:1", 101, "lease2")]), "check", ENDED
    ),
}


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("gives_back", BACK.values(), ids=BACK)
@pytest.mark.parametrize("taken", LEASED, ids=["a counter", "of a group"])
def test_a_total_lives_as_long_as_the_lease_that_went_back_was_remembered(
    places: Places, taken: Any, gives_back: Callable[[Places, Any, Hit], object]
) -> None:
    hit = leased_since_the_start(places, taken)
    total_key, remembered = hit.limits[0].key, places.states.expiry(hit.leased_keys[0])

    gives_back(places, taken, hit)  # which compares the TTLs of all places

    assert places.states.get(total_key) == 100
    assert places.states.expiry(total_key) == remembered


@pytest.mark.usefixtures("redis_cache")
def test_no_store_gives_a_lease_that_has_ended_back_where_it_only_looks(places: Places) -> None:
    leased_since_the_start(places, LEASED[0])

    reply = places.decide(Question([Ask(LEASED[0], "user:1", 1, "lease2")]), "peek", ENDED)

    assert reply[3] == 40


@pytest.mark.usefixtures("redis_cache")
def test_a_total_that_lives_longer_than_a_lease_was_remembered_stays_as_long_as_it_would(places: Places) -> None:
    hit = leased_since_the_start(places, LEASED[0])
    keys = (hit.limits[0].key, *hit.grants_keys)
    places.run(granted_to(hit, 5, DAY), START + MINUTE)

    places.run(GiveBackEnded(hit.leased_keys[0]), START + MINUTE + SECOND)  # which compares the TTLs of all places

    assert [places.states.expiry(key) for key in keys] == [START + MINUTE + TTL, START + MINUTE + TTL + SECOND]


@pytest.mark.usefixtures("redis_cache")
def test_units_that_have_expired_are_lost_once_where_two_leases_go_back(places: Places) -> None:
    hit = leased_since_the_start(places, LEASED[0])
    keys = (hit.limits[0].key, *hit.grants_keys)
    places.run(granted_to(hit, 50, ENDED - START), START)
    places.decide(Question([Ask(LEASED[0], "user:1", 20, "lease2")]), "check", START)

    ended = places.run(GiveBackEnded(hit.leased_keys[0]), ENDED)

    assert (ended, places.states.get(keys[0])) == (2, 100)  # 40 that were left, and the 60 of the first lease


@pytest.mark.usefixtures("redis_cache")
def test_units_that_have_expired_are_lost_where_a_lease_has_no_room_to_go_back(places: Places) -> None:
    hit = leased_since_the_start(places, LEASED[0])
    keys = (hit.limits[0].key, *hit.grants_keys)
    places.run(counters.Set(keys, MAX_INT64 - 30, TTL), START)
    places.run(granted_to(hit, 30, ENDED - START), START)

    ended = places.run(GiveBackEnded(hit.leased_keys[0]), ENDED)

    assert (ended, places.states.get(keys[0])) == (1, MAX_INT64 - 30)


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("in_redis", [True, False], ids=["in Redis", "as specified"])
@pytest.mark.parametrize("what", ["total", "grants"])
def test_a_lease_that_has_ended_stays_where_the_counter_holds_something_else(
    places: Places, what: str, in_redis: bool
) -> None:
    hit = leased_since_the_start(places, LEASED[0])
    key = hit.limits[0].key if what == "total" else hit.grants_keys[0]
    places.put(key, FOREIGN, START + 2 * TTL, *(("SET", key, "text") if what == "total" else ("RPUSH", key, *FOREIGN)))
    before = places.dump()

    with pytest.raises(StoreDataError):
        (places.in_redis if in_redis else places.specified)(GiveBackEnded(hit.leased_keys[0]), ENDED)

    assert places.dump() == before
