"""The verbs: rules, subjects and stores put together; and forced hits, which count whether or not there is room."""

import asyncio
import logging
import warnings
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import redis
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User
from django.test import RequestFactory

from django_quota import (
    Decision,
    Rule,
    acheck,
    apeek,
    apeek_all,
    arefund,
    areset,
    ban,
    check,
    check_all,
    counter,
    peek,
    peek_all,
    quota,
    raise_limit,
    refund,
    reset,
    unban,
)
from django_quota.adapters import decide
from django_quota.exceptions import QuotaExceeded, RuleError
from django_quota.features.usage.days import Count, recent_usage
from django_quota.limiting.flusher import flusher
from django_quota.signals import near_limit, refused
from django_quota.testing import freeze
from tests.support.calls import both_ways, called
from tests.support.counts import checks_of_today
from tests.support.overridden import override
from tests.support.signals import received
from tests.support.steps import ALGORITHMS, SECOND, START

SUBJECT = "ip:203.0.113.9"
REDIS = pytest.mark.usefixtures("redis_cache")


def bools(decisions: list[Decision]) -> list[bool]:
    return [bool(decision) for decision in decisions]


@pytest.fixture(params=ALGORITHMS)
def ask(request: pytest.FixtureRequest, redis_cache: Any) -> Callable[..., Any]:
    """Ask Redis for a rule of each algorithm, by a verb or its async twin."""

    def asked(verb: Any, averb: Any, is_async: bool, *cost: int) -> Any:
        return called(is_async, verb, averb, "3/m", SUBJECT, *cost, algorithm=request.param)

    return asked


@pytest.mark.usefixtures("at_one_time")
@both_ways
def test_a_limit_is_admitted_by_redis(ask: Callable[..., Any], is_async: bool) -> None:
    assert bools([ask(check, acheck, is_async) for _ in range(4)]) == [True, True, True, False]


@pytest.mark.usefixtures("at_one_time")
@both_ways
def test_a_peek_says_what_is_left(ask: Callable[..., Any], is_async: bool) -> None:
    assert ask(peek, apeek, is_async).remaining == 3
    ask(check, acheck, is_async)
    assert ask(peek, apeek, is_async, 3).allowed is False


@pytest.mark.usefixtures("at_one_time")
@both_ways
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@REDIS
def test_a_refund_makes_room_except_in_a_leaky_bucket(algorithm: Any, is_async: bool) -> None:
    for _ in range(3):
        check("3/m", SUBJECT, algorithm=algorithm)

    refunded = called(is_async, refund, arefund, "3/m", SUBJECT, 2, algorithm=algorithm)

    assert refunded.remaining == (0 if algorithm == "leaky_bucket" else 2)
    assert peek("3/m", SUBJECT, 3, algorithm=algorithm).allowed is False


@both_ways
def test_a_reset_says_whether_there_was_something(ask: Callable[..., Any], is_async: bool) -> None:
    ask(check, acheck, is_async)

    assert [ask(reset, areset, is_async) for _ in range(2)] == [True, False]


@both_ways
def test_a_reset_gives_the_whole_limit_back(ask: Callable[..., Any], is_async: bool) -> None:
    ask(check, acheck, is_async, 3)

    ask(reset, areset, is_async)

    assert ask(peek, apeek, is_async).remaining == 3


@REDIS
@pytest.mark.parametrize("verb", [check, peek], ids=["a refused check", "a peek"])
def test_what_takes_nothing_writes_nothing_without_events(verb: Any, raw: redis.Redis, settings: Any) -> None:
    settings.QUOTA = {"EVENTS": 0}
    check("1/m", SUBJECT)
    before = {key: raw.dump(key) for key in raw.scan_iter()}

    allowed = [bool(verb("1/m", SUBJECT)) for _ in range(5)]

    assert not any(allowed)
    assert {key: raw.dump(key) for key in raw.scan_iter()} == before


@pytest.mark.usefixtures("memory_store")
@both_ways
def test_a_peek_calls_no_cost_function(is_async: bool) -> None:
    costly = Rule.make("costly", "9/m", cost=lambda request: pytest.fail("it was called"))

    assert called(is_async, peek, apeek, costly, SUBJECT).remaining == 9


@pytest.mark.usefixtures("memory_store")
def test_the_signal_of_a_refusal_names_the_entry_that_was_refused() -> None:
    heard: list[tuple[str, str]] = []

    def hear(rule: Rule, subject: str, **_: Any) -> None:
        heard.append((rule.name, subject))

    with received(refused, hear):
        check_all([("9/m", "user:1"), ("0/m", "user:2")])

    assert heard == [("0/m", "user:2")]


@pytest.mark.usefixtures("memory_store")
def test_a_rule_of_the_settings_goes_by_its_name(settings: Any) -> None:
    settings.QUOTA = {"STORE": "memory", "RULES": {"search": {"rate": "2/m", "algorithm": "token_bucket"}}}
    request = RequestFactory().get("/", REMOTE_ADDR="203.0.113.9")

    assert check("search", request).raise_if_refused().subject == SUBJECT


@pytest.mark.usefixtures("memory_store")
def test_a_user_is_one_subject_in_each_form() -> None:
    request = RequestFactory().get("/", REMOTE_ADDR="203.0.113.9")
    request.user = User(pk=42)

    assert check("2/m", request, key="user").remaining == 1
    assert check("2/m", User(pk=42)).remaining == 0
    assert not check("2/m", "user:42")


@pytest.mark.usefixtures("memory_store")
def test_a_rate_is_one_rule_in_each_form() -> None:
    assert check("2/m", "user:42").remaining == 1
    assert check("2 per minute", "user:42").remaining == 0


@pytest.mark.usefixtures("memory_store")
def test_the_error_of_a_refusal_says_which_limit_refused_whom() -> None:
    check("2/m", "user:42", 2)

    with pytest.raises(QuotaExceeded, match="admits 2 per minute") as caught:
        check("2/m", "user:42").raise_if_refused()

    assert caught.value.decision.subject == "user:42"


@pytest.mark.usefixtures("memory_store")
def test_a_rate_with_another_name_counts_by_itself() -> None:
    assert bools([check("1/m", SUBJECT, name=name) for name in ("a", "b", "b")]) == [True, True, False]


@pytest.mark.usefixtures("memory_store")
@both_ways
def test_a_request_is_free_if_the_cost_function_of_the_rule_says_so(is_async: bool) -> None:
    free = Rule.make("free", "2/m", key="ip", cost=lambda request: 0)
    request = RequestFactory().get("/", REMOTE_ADDR="203.0.113.9")

    found = [called(is_async, check, acheck, free, request) for _ in range(3)]

    assert [(each.allowed, each.remaining) for each in found] == [(True, 2)] * 3


@pytest.mark.usefixtures("memory_store")
def test_two_rules_that_share_one_count_are_an_error() -> None:
    """Else a shadow would swallow a rule that blocks."""
    rules = [Rule.make("x", "2/m", shadow=True), Rule.make("x", "2/m")]

    with pytest.raises(RuleError, match="share one count"):
        decide(RequestFactory().get("/"), rules)


def test_nothing_is_limited_where_quotas_are_switched_off(settings: Any) -> None:
    settings.QUOTA = {"ENABLED": False, "CACHE": "no such alias"}
    assert bools([check("1/m", SUBJECT) for _ in range(3)]) == [True] * 3


@both_ways
@pytest.mark.parametrize(
    ("verb", "averb", "lines"), [(peek, apeek, 0), (check, acheck, 1)], ids=["not by a peek", "by a check"]
)
def test_a_shadow_refusal_is_logged(
    verb: Any, averb: Any, lines: int, is_async: bool, memory_store: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_quota")

    decision = called(is_async, verb, averb, "0/m", SUBJECT, name="shade", shadow=True)

    assert not decision.outcomes[0].allowed
    line = "django_quota.rules", logging.INFO, f"Shadow rule 'shade' would have refused {SUBJECT!r}."
    assert caplog.record_tuples == [line] * lines


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("aside", [{"shadow": True}, {"block": False}], ids=["a shadow", "one that does not block"])
class TestRefusedHitsOf:
    """Of a rule that counts refused hits, and refuses no request."""

    @pytest.fixture
    def watched(self, aside: dict[str, Any]) -> Rule:
        return Rule.make("watched", "5/m", key="ip", count_refused=True, **aside)

    def test_they_do_not_count_where_another_rule_refused_them(self, watched: Rule) -> None:
        with freeze(START):
            assert not decide(RequestFactory().get("/"), [watched, Rule.make("closed", "0/m", key="ip")])
            assert peek(watched, "ip:127.0.0.1").remaining == 5

    def test_they_count_where_it_refused_them(self, watched: Rule) -> None:
        with freeze(START):
            check(watched, "ip:127.0.0.1", 4)
            check(watched, "ip:127.0.0.1", 4)  # which it refuses, and counts

            assert peek(watched, "ip:127.0.0.1").remaining == 0


def nobody(request: object) -> Any:
    return object()


def bad_rate(request: object) -> str:
    return "5/x"


def call(view: Any) -> Any:
    return view(RequestFactory().get("/"))


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: check("1/m", RequestFactory().get("/"), key=nobody), "identifies nobody"),
    (lambda: quota("1/m", distinct="hdr:X"), r"^distinct='hdr:X' is not a key"),
    (lambda: quota("10/mon"), "month, year"),
    (lambda: call(quota(bad_rate, name="x")(print)), r"It came from tests.*\.bad_rate, for rule 'x'"),
    (lambda: call(quota(nobody)), r"has no parentheses on tests\.api\.test_limiter\.nobody"),
    (lambda: check("2/m", "user:1", -1), "whole number"), (lambda: check("2/m", "user:1", 10**13), "whole number"),
    (lambda: check("serach", "user:1"), r"^'serach' is not a rate: .* Nor is it a rule.*\. Did you mean 'search'"),
    (lambda: check("search", "user:1", burst=3), "has its own options"),
    (lambda: cast("Any", check)("2/m", "user:1", exempt="10.0.0.0/8"), "exempt= chooses requests"),
    (lambda: cast("Any", check)("2/m", "user:1", settle=len), "settle= needs a response"),
    (lambda: cast("Any", check)("2/m", "user:1", count_when=bool), "count_when= needs a response"),
    (lambda: cast("Any", check)("2/m", "user:1", costs={"export": 5}), r"costs= needs a request.* Use cost= here"),
    (lambda: cast("Any", check)("2/m", "user:1", match="/"), "match"),
]  # fmt: skip


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(("mistake", "words"), MISTAKES, ids=[words for _, words in MISTAKES])
def test_a_mistake_is_an_error_that_says_what_to_write(mistake: Callable[[], Any], words: str, settings: Any) -> None:
    settings.QUOTA = {"STORE": "memory", "RULES": {"search": "2/m"}}
    with pytest.raises(RuleError, match=words):
        mistake()


SWAPPED: dict[str, Callable[[Any], Any]] = {
    "check": lambda subject: check(subject, "search"),
    "peek": lambda subject: peek(subject, "10/m"),
    "ban": lambda subject: ban(subject, "search", 60),
    "unban": lambda subject: unban(subject, "*"),
    "reset": lambda subject: reset(subject, "search"),
    "raise_limit": lambda subject: raise_limit(subject, "search", 5),
}


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("subject", ["user:1", User(pk=1, username="ann")], ids=["string", "user"])
@pytest.mark.parametrize("call", SWAPPED.values(), ids=SWAPPED)
def test_a_call_says_that_the_rule_comes_before_the_subject(
    call: Callable[[Any], Any], subject: Any, settings: Any
) -> None:
    settings.QUOTA = {"STORE": "memory", "RULES": {"search": "2/m"}}

    with pytest.raises(RuleError, match=r" is a subject, not a rule or a rate\. Calls take the rule first"):
        call(subject)


def test_a_call_that_blocks_an_event_loop_warns_once_a_place(settings: Any, memory_store: None) -> None:
    async def call() -> None:
        check("1/m", "user:1")  # without DEBUG
        settings.DEBUG = True
        for _ in range(2):
            check("1/m", "user:1")
        counter("clicks").incr("user:1")
        await acheck("1/m", "user:1")
        await sync_to_async(check)("1/m", "user:1")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        asyncio.run(call())

    lines = [Path(each.filename).read_text().splitlines()[each.lineno - 1].strip() for each in caught]
    assert {(each.category, str(each.message)) for each in caught} == {
        (
            RuntimeWarning,
            "This call blocks the event loop. Await its async form, whose name begins with a: acheck() for check().",
        )
    }
    assert lines == ['check("1/m", "user:1")', 'counter("clicks").incr("user:1")']


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("look", [peek_all, async_to_sync(apeek_all)], ids=["sync", "async"])
def test_a_look_at_several_rules_calls_no_function_of_a_cost(look: Any) -> None:
    rule = Rule.make("work", "5/m", cost=lambda request: pytest.fail("it was called"))

    assert look([(rule, "user:1"), ("9/m", "user:1")]).outcomes[0].remaining == 5


@pytest.mark.usefixtures("memory_store")
def test_a_cost_of_nothing_that_a_call_gives_is_not_that_of_the_function_of_its_rule() -> None:
    rule = Rule.make("work", "5/m", cost=lambda request: 2)

    assert check(rule, "user:1", 0).remaining == 5


def force(rule: str | Rule, cost: int = 1, is_async: bool = False, **options: Any) -> Decision:
    return called(is_async, check, acheck, rule, SUBJECT, cost, force=True, **options)  # type: ignore[no-any-return]


@pytest.mark.usefixtures("memory_store")
class TestForce:
    @both_ways
    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_used_goes_above_the_limit(self, algorithm: Any, is_async: bool) -> None:
        with freeze(START):
            found = [force("10/m", 4, is_async, algorithm=algorithm) for _ in range(4)]

        assert [(each.used, each.remaining) for each in found] == [(4, 6), (8, 2), (12, 0), (16, 0)]

    @both_ways
    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_allowed_says_whether_there_was_room(self, algorithm: Any, is_async: bool) -> None:
        with freeze(START):
            found = [force("10/m", 4, is_async, algorithm=algorithm) for _ in range(4)]

        assert bools(found) == [True, True, False, False]
        assert not any(each.enforced for each in found)

    @both_ways
    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_a_peek_says_how_far_over_the_limit_it_is(self, algorithm: Any, is_async: bool) -> None:
        with freeze(START):
            found = [force("10/m", 4, is_async, algorithm=algorithm) for _ in range(4)]
            seen = peek("10/m", SUBJECT, 4, algorithm=algorithm)

        assert (seen.allowed, seen.used, seen.outcomes[0].over) == (False, 16, 6)
        assert seen.retry_after == found[-1].retry_after is not None

    @both_ways
    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    @pytest.mark.parametrize("early", [1, 0], ids=["a microsecond early", "in time"])
    def test_retry_after_is_when_there_is_room_again(self, early: int, algorithm: Any, is_async: bool) -> None:
        with freeze(START):
            wait: Any = [force("10/m", 4, is_async, algorithm=algorithm) for _ in range(4)][-1].retry_after

        with freeze(START + int(wait * SECOND) - early):
            assert check("10/m", SUBJECT, 4, algorithm=algorithm).allowed is not bool(early)

    def export(self) -> Rule:
        """Return a rule of which four forced hits are made: all but the first one are too many."""
        rule = Rule.make("export", "10/m", warn_at=1.0, daily=True, ban={"after": "1/m", "for": "1h"})
        for _ in range(4):
            force(rule, 6)
        return rule

    def test_the_share_of_the_limit_is_reported_once(self) -> None:
        with received(near_limit, reported := Mock()):
            self.export()

        assert [call.kwargs["share"] for call in reported.call_args_list] == [1.0]

    def test_it_sends_no_signal_of_a_refusal(self) -> None:
        with received(refused, refusals := Mock()):
            self.export()

        assert not refusals.called

    @pytest.mark.usefixtures("at_one_time")
    def test_the_counts_of_the_day_have_it_as_allowed(self) -> None:
        self.export()

        flusher.flush()

        assert [day["export"] for day in recent_usage(SUBJECT).values()] == [Count(allowed=4, refused=0, units=24)]

    @pytest.mark.usefixtures("at_one_time")
    def test_the_metrics_say_whether_there_was_room(self) -> None:
        self.export()

        assert checks_of_today()["export"] == (1, 3, 0)

    def test_it_never_bans(self) -> None:
        rule = self.export()

        assert peek(rule, SUBJECT).outcomes[0].why == ""

    def test_its_answer_says_how_long_a_ban_lasts(self) -> None:
        rule = Rule.make("export", "10/m", ban={"after": "9/m", "for": "30s"})

        with freeze(START):
            ban(rule, SUBJECT, "30s")
            decision = force(rule, 4)

        assert (decision.allowed, decision.outcomes[0].why, decision.retry_after) == (False, "banned", 30.0)

    def test_it_counts_while_a_ban_lasts(self) -> None:
        rule = Rule.make("export", "10/m", ban={"after": "9/m", "for": "30s"})

        with freeze(START):
            ban(rule, SUBJECT, "30s")
            force(rule, 4)
        with freeze(START + 31 * SECOND):
            assert peek(rule, SUBJECT).used == 4

    @pytest.mark.parametrize(
        ("how", "allowed", "used"), [("b", False, 4), ("x", True, 0)], ids=["blocked: counted", "exempt: not counted"]
    )
    def test_an_override_says_whether_it_counts(self, how: str, allowed: bool, used: int) -> None:
        rule = Rule.make("export", "10/m")

        with freeze(START):
            override(f"{how} 0 0 ", "export", SUBJECT)
            assert force(rule, 4).allowed is allowed
            override("", "export", SUBJECT)

            assert peek(rule, SUBJECT).used == used

    def test_a_rule_of_distinct_values_cannot_be_forced(self) -> None:
        with pytest.raises(RuleError, match="it cannot be forced"):
            force(Rule.make("devices", "3/d", distinct="post:device"), value="a")

    def test_a_hit_that_takes_nothing_cannot_be_forced(self) -> None:
        with pytest.raises(RuleError, match="takes nothing"):
            force("3/m", 0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_look_at_a_closed_limit_without_a_cost_has_no_wait(either_store: Any, algorithm: Any) -> None:
    decision = peek("0/m", SUBJECT, 0, algorithm=algorithm)

    assert (decision.allowed, decision.retry_after) == (False, None)


def test_refused_hits_count_under_each_limit_of_their_rule(either_store: Any) -> None:
    rule = Rule.make("strict", "1/m", "5/h", count_refused=True)
    with freeze(START):
        for _ in range(3):
            check(rule, SUBJECT)

        assert [outcome.remaining for outcome in peek(rule, SUBJECT).outcomes] == [0, 2]


class Units(int, Enum):
    """Costs as a site may name them; `str()` of one is its name."""

    EXPORT = 4


def test_a_member_of_an_enum_costs_its_number(either_store: Any) -> None:
    with freeze(START):
        assert check("10/m", SUBJECT, Units.EXPORT).remaining == 6
