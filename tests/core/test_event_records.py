"""Which events a decision reports, and of which of its limits."""

from typing import Any

import pytest

from django_quota import Rule, counter
from django_quota.core.keys import status_key
from django_quota.engine.asks import Ask, Asked
from django_quota.engine.codec import Reply
from django_quota.engine.events import NO_LOG, EventLog, EventRecord, events_of, lifted_bans
from django_quota.engine.operations import DictStates
from tests.support.questions import Question, driven
from tests.support.steps import MINUTE, SECOND, START

HOUR = 60 * MINUTE
CREDITS = counter("credits").as_take
USER = "user:1"


def reported(states: DictStates, *asks: Ask, mode: Any = "check", now: int = START) -> list[EventRecord]:
    """Decide, and return the events that this reports."""
    question = Question(asks)
    reply = driven(lambda operation, at: operation.run(states, at), question, mode, now)
    return events_of(question.hits_at(now), Reply.decode(reply, question.hits_at(now)))


def after(used: int, rule: Asked, cost: int = 1) -> list[EventRecord]:
    """Use so many units whether or not there is room, and return what the next check reports."""
    states = DictStates()
    if used:
        reported(states, Ask(rule, USER, used), mode="force")
    return reported(states, Ask(rule, USER, cost))


@pytest.mark.parametrize(
    ("rates", "used", "cost", "capacity", "until"),
    [
        pytest.param("2/m; 3/h", 3, 1, 3, START + HOUR, id="the second refuses longest"),
        pytest.param("3/h; 2/m", 3, 1, 3, START + HOUR, id="the first refuses longest"),
        pytest.param("2/m; 9/h", 2, 1, 2, START + MINUTE, id="only the first refuses"),
        pytest.param("9/h; 2/m", 2, 1, 2, START + MINUTE, id="only the second refuses"),
        pytest.param("2/m; 4/h", 4, 3, 2, 0, id="the first never admits it"),
        pytest.param("4/h; 2/m", 4, 3, 2, 0, id="the second never admits it"),
    ],
)
def test_a_refusal_is_of_the_limit_that_refuses_longest(
    rates: str, used: int, cost: int, capacity: int, until: int
) -> None:
    (event,) = after(used, Rule.make("api", *rates.split("; "), warn_at=None), cost)

    assert (event.kind, event.capacity, event.until, event.cost) == ("refused", capacity, until, cost)


@pytest.mark.parametrize(
    ("rates", "cost", "capacity", "remaining"),
    [
        pytest.param("10/m; 20/h", 10, 20, 10, id="the second is just past it"),
        pytest.param("20/h; 10/m", 10, 20, 10, id="the first is just past it"),
        pytest.param("10/m; 21/h", 9, 10, 1, id="the second is just short of it"),
        pytest.param("21/h; 10/m", 9, 10, 1, id="the first is just short of it"),
    ],
)
def test_a_share_is_of_the_limit_that_has_just_reached_it(rates: str, cost: int, capacity: int, remaining: int) -> None:
    (event,) = after(0, Rule.make("api", *rates.split("; "), warn_at=0.5), cost)

    assert (event.kind, event.share, event.capacity, event.remaining) == ("near", 500, capacity, remaining)


def test_what_is_left_of_a_limit_is_never_below_zero() -> None:
    (event,) = after(5, Rule.make("api", "3/h", warn_at=None))

    assert (event.remaining, event.capacity) == (0, 3)


def test_the_capacity_of_a_counter_is_what_it_holds() -> None:
    states = DictStates()
    states.put(Question([Ask(CREDITS, USER, 1)]).hits[0].limits[0].key, 5, START + HOUR)

    (event,) = reported(states, Ask(CREDITS, USER, 9))

    assert (event.kind, event.rule, event.capacity, event.remaining, event.cost) == ("refused", "credits", 5, 5, 9)


def test_an_event_is_of_the_subject_that_was_refused() -> None:
    asks = [Ask(Rule.make("wide", "9/m"), "ip:192.0.2.1", 1), Ask(Rule.make("shut", "0/m"), "name:a b", 1)]

    (event,) = reported(DictStates(), *asks)

    assert (event.rule, event.subject) == ("shut", "name:a%20b")


class TestBans:
    RULE = Rule.make("api", "0/m", ban={"after": "2/m", "for": ["10m", "1h"]})

    def test_the_refusal_that_begins_one_is_reported_as_a_ban(self) -> None:
        states = DictStates()
        reported(states, Ask(self.RULE, USER, 1))

        (event,) = reported(states, Ask(self.RULE, USER, 1))

        assert (event.kind, event.until, event.level, event.reason) == ("banned", START + 10 * MINUTE, 1, "")

    def test_a_refusal_under_one_says_why(self) -> None:
        states = DictStates()
        for _ in range(2):
            reported(states, Ask(self.RULE, USER, 1))

        (event,) = reported(states, Ask(self.RULE, USER, 1), now=START + SECOND)

        assert (event.kind, event.until, event.level, event.reason) == ("refused", 0, 0, "banned")

    def test_a_refusal_before_one_says_nothing(self) -> None:
        (event,) = reported(DictStates(), Ask(self.RULE, USER, 1))

        assert (event.kind, event.reason) == ("refused", "")


@pytest.mark.parametrize(
    ("log", "kinds"), [(EventLog(("events", "bans"), 9, MINUTE), ["lifted"]), (NO_LOG, [])], ids=["on", "off"]
)
def test_a_lifted_ban_is_reported_if_events_are(log: EventLog, kinds: list[str]) -> None:
    events = lifted_bans(log, [(status_key("quota", USER), "api")])

    assert [(event.kind, event.rule, event.subject) for event in events] == [(kind, "api", USER) for kind in kinds]
