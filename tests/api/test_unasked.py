"""Hits that no store decides: when they are sent, in which portions, and which of them are signals and events."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import RequestFactory

from django_quota import Rule, check, check_all
from django_quota.adapters import decide
from django_quota.core.errors import StoreUnavailable
from django_quota.engine.events import AppendEvents, EventRecord, RecordHits
from django_quota.engine.resolving import event_log_of
from django_quota.limiting import unasked
from django_quota.limiting.registry import get_limiter
from django_quota.limiting.unasked import REFUSED_ONCE, TallyPlace, UnaskedHits
from django_quota.signals import refused
from django_quota.testing import freeze
from tests.support.calls import operations_of
from tests.support.counts import checks_of, count_what_waits
from tests.support.memory import with_room_for_uncounted
from tests.support.outages import no_answer
from tests.support.overridden import override
from tests.support.signals import received
from tests.support.steps import SECOND, START
from tests.support.stores import current_store

RULE = Rule.make("api", "2/m", daily=True)

pytestmark = pytest.mark.usefixtures("memory_store")


@pytest.fixture
def hits(memory_store: None) -> UnaskedHits:
    return get_limiter().unasked


@pytest.fixture
def sent(hits: UnaskedHits, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The messages that count hits, and the events that are written."""
    return operations_of(monkeypatch, RecordHits, AppendEvents)


def place(number: int) -> TallyPlace:
    return TallyPlace(f"quota:1:{{user:{number}}}:s", f"quota:1:{{user:{number}}}:day:2025-11-21", "api", "")


def events_in(sent: list[Any]) -> list[EventRecord]:
    return [event for operation in sent if isinstance(operation, AppendEvents) for event in operation.events]


def test_the_key_of_a_message_has_its_subject_rule_day_tier_and_process() -> None:
    key = place(7)._replace(tier="pro").sent_key("abc")

    assert key == "quota:1:{user:7}:sent:api:2025-11-21:pro:abc"


def test_hits_of_a_place_are_sent_together(hits: UnaskedHits, sent: list[Any]) -> None:
    for _ in range(2):
        hits.add(place(1), {"a": 1, "u": 4})
    hits.add(place(1), REFUSED_ONCE)

    hits.flush()

    [message] = sent
    assert (message.counts, message.number, message.span) == ({"a": 2, "u": 8, "r": 1}, 1, 0)


def test_a_round_after_an_outage_sends_the_old_message_and_the_next(hits: UnaskedHits, sent: list[Any]) -> None:
    hits.add(place(1), REFUSED_ONCE)
    with no_answer(), pytest.raises(StoreUnavailable):
        hits.flush()
    hits.add(place(1), {"r": 2})
    sent.clear()

    hits.flush()

    assert [(each.number, each.counts) for each in sent] == [(1, {"r": 1}), (2, {"r": 2})]
    assert len(hits) == 0


def test_a_round_in_an_outage_asks_once(hits: UnaskedHits, monkeypatch: pytest.MonkeyPatch) -> None:
    hits.add(place(1), REFUSED_ONCE)
    asked: list[int] = []

    def fail(operations: Any, _: Any) -> Any:
        asked.append(len(operations))
        return [StoreUnavailable("it is away")] * len(operations)

    monkeypatch.setattr(current_store(), "try_all", fail)
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="it is away"):
            hits.flush()

    assert asked == [1, 1, 1]


def test_a_call_counts_five_hundred_places(hits: UnaskedHits, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    try_all = current_store().try_all

    def count(operations: Any, now: Any) -> Any:
        asked.append(len(operations))
        return try_all(operations, now)

    monkeypatch.setattr(current_store(), "try_all", count)
    for number in range(1_001):
        hits.add(place(number), REFUSED_ONCE)

    hits.flush()

    assert asked == [500, 500, 1]


def test_a_call_that_fails_stops_no_other(hits: UnaskedHits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unasked, "HITS_A_CALL", 1)
    errors: list[Exception] = [StoreUnavailable("it is away"), RuntimeError("no event loop")]
    try_all = current_store().try_all

    def fail_twice(operations: Any, now: Any) -> Any:
        if errors:
            raise errors.pop(0)
        return try_all(operations, now)

    monkeypatch.setattr(current_store(), "try_all", fail_twice)
    for number in range(3):
        hits.add(place(number), REFUSED_ONCE)

    with pytest.raises(StoreUnavailable, match="it is away"):
        hits.flush()

    assert len(hits) == 2


def test_ten_thousand_places_can_wait(hits: UnaskedHits) -> None:
    for number in range(10_001):
        hits.add(place(number), REFUSED_ONCE)

    assert len(hits) == 10_000


def test_the_log_says_what_is_left_out(
    hits: UnaskedHits, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_room_for_uncounted(1_000, monkeypatch)
    for number in range(1_002):
        hits.add(place(number), REFUSED_ONCE)

    [record] = caplog.records
    assert (record.name, record.levelname) == ("django_quota.metrics", "WARNING")
    assert record.getMessage() == (
        "The hits of 1,000 rules and subjects wait to be counted. Until the store answers, the usage and events will "
        "lack further hits that this process decides without it."
    )


def test_what_is_sent_again_has_room_for_further_hits_though_no_other_place_has(
    hits: UnaskedHits, sent: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_room_for_uncounted(1, monkeypatch)
    hits.add(place(1), REFUSED_ONCE)
    with no_answer(), pytest.raises(StoreUnavailable):
        hits.flush()
    sent.clear()

    hits.add(place(1), {"r": 2})
    hits.add(place(2), REFUSED_ONCE)
    hits.flush()

    assert [each.counts for each in sent] == [{"r": 1}, {"r": 2}]


def test_a_round_ends_the_time_in_which_hits_are_left_out(hits: UnaskedHits, monkeypatch: pytest.MonkeyPatch) -> None:
    with_room_for_uncounted(1, monkeypatch)
    for number in (1, 2):
        hits.add(place(number), REFUSED_ONCE)

    hits.flush()
    hits.add(place(2), REFUSED_ONCE)

    assert len(hits) == 1


# --- signals and events -----------------------------------------------------------------------------------------------


@pytest.fixture
def signals(memory_store: None) -> Iterator[list[tuple[str, str]]]:
    found: list[tuple[str, str]] = []

    def hear(rule: Rule, subject: str, **_: Any) -> None:
        found.append((rule.name, subject))

    with received(refused, hear):
        yield found


def blocked(*subjects: str) -> None:
    for subject in subjects:
        override("b 0 0 ", "*", subject)


@pytest.mark.parametrize(
    ("micros", "times"), [(0, 1), (SECOND - 1, 1), (SECOND, 2)], ids=["at once", "within a second", "after a second"]
)
@pytest.mark.parametrize("between", [lambda: None, count_what_waits], ids=["in a round", "in two rounds"])
def test_a_block_is_signalled_once_a_second(
    micros: int, times: int, between: Callable[[], object], signals: list[tuple[str, str]]
) -> None:
    blocked("user:1")
    with freeze(START):
        check(RULE, "user:1")
        between()
    with freeze(START + micros):
        between()
        check(RULE, "user:1")

    assert signals == [("api", "user:1")] * times


def test_blocks_are_signalled_for_as_many_subjects_as_can_wait(
    signals: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_room_for_uncounted(2, monkeypatch)
    blocked("user:1", "user:2", "user:3")
    with freeze(START):
        for number in (1, 2, 3):
            check(RULE, f"user:{number}")

    assert [subject for _, subject in signals] == ["user:1", "user:2"]


@pytest.mark.parametrize(
    ("end", "until"), [(0, 0), (START + 90 * SECOND, START + 90 * SECOND)], ids=["for ever", "for a while"]
)
def test_the_event_of_a_block_says(end: int, until: int, sent: list[Any]) -> None:
    override(f"b 0 {end} ", "*", "user:1")
    with freeze(START):
        check(Rule.make("a rule", "2/m"), "user:1", 5)
        count_what_waits()

    assert events_in(sent) == [EventRecord("refused", "a%20rule", "user:1", until, 0, 2, cost=5, reason="blocked")]


def test_the_event_of_a_block_is_kept_for_as_long_as_the_settings_say(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.QUOTA = {**settings.QUOTA, "EVENTS": 70, "EVENT_DAYS": 5}
    sent = operations_of(monkeypatch, AppendEvents)
    blocked("user:1")
    with freeze(START):
        check(RULE, "user:1")
        count_what_waits()

    [append] = sent
    assert append.log == event_log_of("quota", 70, 5)


def test_the_event_of_a_block_has_the_subject_as_keys_have_it(sent: list[Any]) -> None:
    blocked("user:a b")
    with freeze(START):
        check(RULE, "user:a b")
        count_what_waits()

    assert [event.subject for event in events_in(sent)] == ["user:a%20b"]


def test_the_event_of_a_block_has_the_first_of_several_limits(sent: list[Any]) -> None:
    blocked("user:1")
    with freeze(START):
        check(Rule.make("api", "2/m", "9/h"), "user:1")
        count_what_waits()

    assert [event.capacity for event in events_in(sent)] == [2]


def test_of_several_refusals_in_a_round_the_event_reports_the_first(sent: list[Any]) -> None:
    blocked("ip:192.0.2.7")
    rule = Rule.make("api", "2/m", key="ip")
    with freeze(START):
        for path in ("/first/", "/second/"):
            decide(RequestFactory().get(path, REMOTE_ADDR="192.0.2.7"), [rule])
        count_what_waits()

    assert [event.path for event in events_in(sent)] == ["/first/"]


def test_the_event_of_a_block_says_the_path_of_a_request_whose_body_another_rule_would_read(sent: list[Any]) -> None:
    blocked("ip:192.0.2.7")
    rules = [Rule.make("api", "2/m", key="ip"), Rule.make("phones", "2/m", key="json:phone")]
    request = RequestFactory().post("/first/", {"phone": "1"}, "application/json", REMOTE_ADDR="192.0.2.7")
    with freeze(START):
        decide(request, rules)
        count_what_waits()

    assert [(event.rule, event.path) for event in events_in(sent)] == [("api", "/first/")]


def test_a_block_of_a_shadow_is_no_event_and_no_signal(sent: list[Any], signals: list[tuple[str, str]]) -> None:
    blocked("user:1")
    with freeze(START):
        check(Rule.make("trial", "2/m", shadow=True, daily=True), "user:1")
        count_what_waits()

        assert (events_in(sent), signals) == ([], [])
        assert checks_of("user:1") == {"trial": (0, 1)}


def test_an_exemption_is_no_event_and_delays_none(sent: list[Any]) -> None:
    override("x 0 0 ", "*", "user:1")
    with freeze(START):
        check(RULE, "user:1")
        count_what_waits()
        assert events_in(sent) == []

        override("b 0 0 ", "*", "user:1")
        check(RULE, "user:1")
        count_what_waits()

    assert [event.subject for event in events_in(sent)] == ["user:1"]


def test_a_site_without_events_writes_none_and_counts_the_day(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.QUOTA = {**settings.QUOTA, "EVENTS": 0}
    sent = operations_of(monkeypatch, RecordHits, AppendEvents)
    blocked("user:1")
    with freeze(START):
        check(RULE, "user:1")
        count_what_waits()

    assert [operation.span for operation in sent if isinstance(operation, RecordHits)] == [0]
    assert events_in(sent) == []


def test_of_two_blocked_rules_the_free_one_counts_nothing(signals: list[tuple[str, str]]) -> None:
    blocked("ip:192.0.2.7")
    free = Rule.make("free", "2/m", key="ip", cost=lambda request: 0, daily=True)
    paid = Rule.make("paid", "2/m", key="ip", daily=True)
    with freeze(START):
        decide(RequestFactory().get("/", REMOTE_ADDR="192.0.2.7"), [free, paid])
        count_what_waits()

        assert checks_of("ip:192.0.2.7") == {"paid": (0, 1)}
    assert signals == [("paid", "ip:192.0.2.7")]


def test_a_refused_request_counts_nothing_for_the_day_of_an_exempt_subject(sent: list[Any]) -> None:
    override("x 0 0 ", "*", "user:2")
    with freeze(START):
        check_all([(RULE, "user:2"), (Rule.make("full", "0/m"), "user:1")])
        count_what_waits()

    assert [operation.field for operation in sent if isinstance(operation, RecordHits)] == []
