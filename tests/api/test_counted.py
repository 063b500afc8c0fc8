"""What the metrics count of a decision, the labels of an exporter, and who observes decisions."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import RequestFactory

from django_quota import Decision, Rule, check, check_all, peek, refund, slot
from django_quota.adapters import decide
from django_quota.engine.system_operations import FIELD_ENDS, FIELDS, OTHER, AddMetrics, MetricsKeys
from django_quota.exceptions import ConfigurationError
from django_quota.limiting import metrics
from django_quota.limiting.registry import get_limiter
from django_quota.metrics import RuleLabels, counted, observe, unobserve
from django_quota.testing import freeze
from tests.support.calls import operations_of
from tests.support.counts import count_what_waits
from tests.support.memory import with_room_for_metrics
from tests.support.outages import no_answer
from tests.support.steps import SECOND, START

SUBJECT = "ip:203.0.113.9"

pytestmark = pytest.mark.usefixtures("memory_store")

OPEN, TWO = Rule.make("open", "9/m"), Rule.make("two", "9/m", "99/h")
FULL, SOFT = Rule.make("full", "0/m"), Rule.make("soft", "0/m", block=False)
TRIAL = Rule.make("trial", "0/m", shadow=True)


@pytest.mark.parametrize(
    ("rules", "outcomes"),
    [
        pytest.param([OPEN], {"open": "allowed"}, id="one with room"),
        pytest.param([TRIAL], {"trial": "shadowed"}, id="a shadow"),
        pytest.param([FULL], {"full": "refused"}, id="one without room"),
        pytest.param([TWO], {"two": "allowed"}, id="two rates of one rule"),
        pytest.param([OPEN, TWO], {"open": "allowed", "two": "allowed"}, id="two rules"),
        pytest.param([OPEN, FULL], {"full": "refused"}, id="one that had room beside one that refuses"),
        pytest.param([OPEN, SOFT], {"open": "allowed", "soft": "refused"}, id="one that blocks nothing"),
        pytest.param([OPEN, TRIAL], {"open": "allowed", "trial": "shadowed"}, id="beside a shadow"),
        pytest.param([TRIAL, FULL, SOFT], {"trial": "shadowed", "full": "refused", "soft": "refused"}, id="all refuse"),
    ],
)
def test_a_decision_counts(rules: list[Rule], outcomes: dict[str, Any]) -> None:
    decision = check_all([(rule, SUBJECT) for rule in rules])

    assert counted(decision) == [metrics.Counted(rule, SUBJECT, outcome) for rule, outcome in outcomes.items()]


@pytest.mark.parametrize("beside", [[], [Rule.make("open", "9/m", key="ip")]], ids=["alone", "beside another"])
def test_a_rule_that_costs_nothing_counts_nothing(beside: list[Rule]) -> None:
    free = Rule.make("free", "9/m", key="ip", cost=lambda request: 0)
    request = RequestFactory().get("/", REMOTE_ADDR="203.0.113.9")

    decision = decide(request, [free, *beside])

    assert [each.rule for each in counted(decision)] == [rule.name for rule in beside]


def slot_decision() -> Decision:
    found: list[Decision] = []
    observe(found.append)
    try:
        with slot("export", 1):
            pass
    finally:
        unobserve(found.append)
    return found[0]


def test_a_slot_counts_nothing() -> None:
    assert counted(slot_decision()) == []


def test_beside_a_limit_a_slot_counts_nothing() -> None:
    decision = check(OPEN, SUBJECT).combined_with(slot_decision())

    assert len(decision.outcomes) == 2
    assert [each.rule for each in counted(decision)] == ["open"]


class TestLabels:
    MOST = FIELDS // len(FIELD_ENDS)

    def test_there_are_as_many_as_rules_in_the_overview(self) -> None:
        labels = RuleLabels()

        found = [labels.of(f"rule {number}") for number in range(self.MOST + 2)]

        assert found == [*(f"rule {number}" for number in range(333)), "other", "other"]

    def test_a_rule_keeps_its_label_when_there_are_no_more(self) -> None:
        labels = RuleLabels()
        for number in range(self.MOST + 1):
            labels.of(f"rule {number}")

        assert [labels.of("rule 0"), labels.of(f"rule {self.MOST - 1}")] == ["rule 0", f"rule {self.MOST - 1}"]

    def test_the_label_of_a_long_name_is_a_digest(self) -> None:
        label = RuleLabels().of("x" * 500)

        assert label.startswith("~")
        assert len(label) == 65


# --- observers --------------------------------------------------------------------------------------------------------


class Observer:
    def __init__(self) -> None:
        self.given: list[tuple[Any, ...]] = []

    def __call__(self, *given: Any) -> None:
        self.given.append(given)


@pytest.fixture
def observer() -> Iterator[Observer]:
    observer = Observer()
    yield observer
    unobserve(observer)


def test_an_observer_gets_each_decision_and_no_look(observer: Observer) -> None:
    observe(observer)

    decision = check(OPEN, SUBJECT)
    peek(OPEN, SUBJECT)
    refund(OPEN, SUBJECT)

    assert observer.given == [(decision,)]


def test_observe_returns_the_function_so_that_it_can_decorate_it(observer: Observer) -> None:
    assert observe(observer) is observer


def test_an_observer_gets_the_seconds_that_a_decision_took(observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "perf_counter_ns", lambda: 3_500_000_000)
    observe(observer, duration=True)
    decision = Decision.without_limit()

    metrics.notify(decision, 1_000_000_000)

    assert observer.given == [(decision, 2.5)]


def test_an_observer_gets_no_seconds_of_a_slot(observer: Observer) -> None:
    observe(observer, duration=True)

    with slot("export", 1):
        pass

    assert [seconds for _, seconds in observer.given] == [None]


def test_an_observer_gets_no_seconds_unless_it_asks_for_them(observer: Observer) -> None:
    observe(observer)

    metrics.notify(Decision.without_limit(), 1)

    assert [len(given) for given in observer.given] == [1]


def test_a_function_that_is_registered_twice_is_called_once_as_it_was_the_last_time(observer: Observer) -> None:
    observe(observer)
    observe(observer, duration=True)

    check(OPEN, SUBJECT)

    assert [len(given) for given in observer.given] == [2]


def test_an_observer_that_stopped_is_not_called(observer: Observer) -> None:
    observe(observer)
    unobserve(observer)

    check(OPEN, SUBJECT)

    assert observer.given == []


def test_an_observer_that_ends_itself_hides_no_decision_from_the_next_one(observer: Observer) -> None:
    def once(_: Decision) -> None:
        unobserve(once)

    observe(once)
    observe(observer)

    check(OPEN, SUBJECT)

    assert len(observer.given) == 1


def test_unobserve_returns_whether_the_function_was_an_observer(observer: Observer) -> None:
    observe(observer)

    assert [unobserve(observer), unobserve(observer)] == [True, False]


def test_stopping_one_observer_leaves_the_others(observer: Observer) -> None:
    other = Observer()
    observe(other)
    observe(observer)
    assert unobserve(other)

    check(OPEN, SUBJECT)

    assert (len(other.given), len(observer.given)) == (0, 1)


def test_the_error_of_an_observer_is_logged_and_the_others_are_called(
    observer: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Decision) -> None:
        raise ValueError("no label")

    observe(fail)
    observe(observer)
    try:
        decision = check(OPEN, SUBJECT)
    finally:
        unobserve(fail)

    assert observer.given == [(decision,)]
    [record] = caplog.records
    assert (record.name, record.levelno) == ("django_quota.metrics", logging.ERROR)
    assert record.getMessage() == f"An observer of decisions failed: {fail!r}"
    assert record.exc_info is not None


async def late(_: Decision) -> None: ...


@pytest.mark.parametrize("wrong", ["count", None, late], ids=["a string", "nothing", "an async function"])
def test_only_a_sync_function_observes(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "receivers", [])

    with pytest.raises(ConfigurationError) as caught:
        observe(wrong)

    assert str(caught.value) == (
        f"observe() got {wrong!r}, which is not a sync function. "
        "Use a function of the decision: def count(decision): ..."
    )
    assert not metrics.receivers


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[AddMetrics]:
    return operations_of(monkeypatch, AddMetrics)


def test_a_round_after_an_outage_sends_the_old_message_and_the_next(sent: list[AddMetrics]) -> None:
    check(OPEN, SUBJECT)
    with no_answer():
        count_what_waits()
    check(TWO, SUBJECT)
    sent.clear()

    count_what_waits()

    assert [(each.number, each.counts) for each in sent] == [(1, {"open:a": 1}), (2, {"two:a": 1})]


def test_a_message_has_five_hundred_subjects_and_slots_at_most(sent: list[AddMetrics]) -> None:
    counting = get_limiter().metrics
    for number in range(501):
        counting.count_refusal(START, "api:r", f"user:{number}")
        counting.count_slot(f"user:{number}", "export", 3, SECOND)

    count_what_waits()

    [message] = sent
    assert (message.counts, len(message.refused), len(message.slots)) == ({"api:r": 501}, 500, 500)


def test_a_message_counts_further_rules_together(sent: list[AddMetrics], monkeypatch: pytest.MonkeyPatch) -> None:
    with_room_for_metrics(2, 9, monkeypatch)
    for name in "abcd":
        check("9/m", SUBJECT, name=name)
    check("0/m", SUBJECT, name="e")

    count_what_waits()

    [message] = sent
    assert message.counts == {"a:a": 1, "b:a": 1, f"{OTHER}:a": 2, f"{OTHER}:r": 1}


def test_an_outage_is_not_sent_without_a_decision(sent: list[AddMetrics]) -> None:
    get_limiter().metrics.count_outage()

    count_what_waits()

    assert sent == []


def test_a_round_sends_one_message(sent: list[AddMetrics]) -> None:
    with freeze(START):
        for _ in range(3):
            check(OPEN, SUBJECT)
        check(FULL, SUBJECT)

        count_what_waits()

    [message] = sent
    assert (message.counts, message.refused, message.slots) == ({"open:a": 3, "full:r": 1}, {SUBJECT: 1}, {})


def test_a_message_has_five_hundred_subjects(sent: list[AddMetrics]) -> None:
    counting = get_limiter().metrics
    for number in range(502):
        counting.count_refusal(START, "full:r", f"user:{number}")
    counting.count_refusal(START, "full:r", "user:0")

    count_what_waits()

    [message] = sent
    assert message.counts == {"full:r": 503}
    assert message.refused == {"user:0": 2, **{f"user:{number}": 1 for number in range(1, 500)}}


def test_a_message_has_five_hundred_slots(sent: list[AddMetrics]) -> None:
    counting = get_limiter().metrics
    for number in range(502):
        counting.count_slot(f"user:{number}", "export", 3, 900 * SECOND)

    count_what_waits()

    [message] = sent
    assert message.slots == {f"user:{number} export 3": 900 * SECOND for number in range(500)}


def test_units_that_were_taken_ahead_never_make_a_message_older(sent: list[AddMetrics]) -> None:
    counting = get_limiter().metrics
    with freeze(START):
        check(OPEN, SUBJECT)
        counting.count_spent(START - 86_400 * SECOND, "hot:a", 2)
        count_what_waits()
        counting.count_spent(START, "hot:a", 2)
        count_what_waits()

    days = [MetricsKeys(*each.keys).day for each in sent]
    assert days[0] == days[1]


def test_a_site_without_observers_reads_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_quota.limiting.limiter.perf_counter_ns", lambda: pytest.fail("it was read"))

    assert check(OPEN, SUBJECT)
