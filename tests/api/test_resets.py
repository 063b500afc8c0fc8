"""`reset`: it forgets what one rule or all rules have counted for a subject, and lifts the bans."""

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.dispatch import Signal
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import path

from django_quota import Rule, areset, ban, check, check_all, peek, quota, reset, unban
from django_quota.core.flow import run_sync
from django_quota.engine.events import AppendEvents, EventLog
from django_quota.engine.operations import DictStates, Operation
from django_quota.engine.scatter import scatter
from django_quota.exceptions import RuleError
from django_quota.features.bans import LiftBans
from django_quota.features.resets import Reset, RuleState
from django_quota.limiting.overrides import overrides
from django_quota.models import QuotaOverride
from django_quota.signals import near_limit, refused
from django_quota.testing import freeze
from tests.support.calls import always
from tests.support.counts import bans_of
from tests.support.overridden import override
from tests.support.signals import received
from tests.support.steps import START
from tests.support.stores import spy

SUBJECT = "user:42"
BAN = {"after": "1000/m", "for": "10m"}  # never reached
RULES: dict[str, Any] = {
    "search": {"rate": "3/m", "ban": BAN},
    "login": {"rate": "1/m", "ban": BAN},
    "tiers": {"rate": {"anonymous": "3/m", "pro": "9/h"}, "tier": always("pro"), "ban": BAN},
    "dynamic": {"rate": always("3/m"), "key": "ip", "ban": BAN},
    "by-header": {"rate": "3/m", "key": "header:X-Key"},
}


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


urlpatterns = [path("", quota("5/h", name="of-the-view", ban=BAN)(view))]


@pytest.fixture(autouse=True)
def rules(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.QUOTA = {**settings.QUOTA, "RULES": RULES}


@pytest.fixture(params=[reset, async_to_sync(areset)], ids=["sync", "async"])
def do(request: pytest.FixtureRequest) -> Any:
    """Call `reset`, or its async twin."""
    return request.param


@pytest.mark.usefixtures("either_store")
def test_a_reset_of_a_rule_forgets_its_count_of_the_subject(do: Callable[..., int]) -> None:
    with freeze(START):
        check("search", SUBJECT)
        check("search", "user:8")
        check("login", SUBJECT)

        deleted = do("search", SUBJECT)

        assert deleted == 1
        assert peek("search", SUBJECT).remaining == 3
        assert [peek("search", "user:8").remaining, peek("login", SUBJECT).remaining] == [2, 0]


@pytest.mark.usefixtures("either_store")
def test_a_reset_of_a_rule_lifts_its_ban(do: Callable[..., int]) -> None:
    with freeze(START):
        ban("search", SUBJECT, 600)
        ban("login", SUBJECT, 600)

        deleted = do("search", SUBJECT)

        assert deleted == 1
        assert [rule for rule, _, _ in bans_of(SUBJECT)] == ["login"]


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("lift", [reset, unban], ids=["a reset", "the end of a ban"])
def test_the_list_of_bans_has_none_that_was_lifted(lift: Callable[..., object], raw: redis.Redis) -> None:
    for rule, subject in (("search", SUBJECT), ("login", SUBJECT), ("search", "user:8")):
        ban(rule, subject, 600)

    lift("search", SUBJECT)

    assert set(raw.zrange("quota:1:{!}:bans", 0, -1)) == {b"user:42 login", b"user:8 search"}


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("lift", [reset, unban], ids=["a reset", "the end of its bans"])
def test_the_list_of_bans_has_none_of_a_subject_of_which_all_were_lifted(
    lift: Callable[..., object], raw: redis.Redis
) -> None:
    for rule, subject in (("search", SUBJECT), ("login", SUBJECT), ("search", "user:8")):
        ban(rule, subject, 600)

    lift("*", SUBJECT)

    assert raw.zrange("quota:1:{!}:bans", 0, -1) == [b"user:8 search"]


@pytest.mark.usefixtures("redis_cache")
def test_the_end_of_a_ban_that_the_store_has_lost_takes_it_off_the_list(raw: redis.Redis) -> None:
    ban("search", SUBJECT, 600)
    raw.delete("quota:1:{user:42}:s")

    unban("search", SUBJECT)

    assert raw.zcard("quota:1:{!}:bans") == 0


@pytest.mark.usefixtures("either_store")
def test_a_star_stands_for_all_rules_of_the_subject(do: Callable[..., int]) -> None:
    with freeze(START):
        user = User(pk=7)
        check("search", user)
        check("5/h", user, name="of-the-view")
        check("5/30m", user, algorithm="token_bucket")  # known by the counts of the user's day
        ban("login", user, 600)
        check("search", "user:8")

        deleted = do("*", user)

        assert deleted == 4
        assert peek("search", user).remaining == 3
        assert check("login", user).allowed
        assert peek("5/30m", user, algorithm="token_bucket").remaining == 5
        assert peek("search", "user:8").remaining == 2


@pytest.mark.usefixtures("memory_store")
def test_a_star_also_lifts_the_ban_of_a_rule_whose_rates_are_functions(do: Callable[..., int]) -> None:
    with freeze(START):
        ban("dynamic", SUBJECT, 600)

        assert do("*", SUBJECT) == 1

        assert bans_of(SUBJECT) == []


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("rule", "options", "left"),
    [
        ("5/m", {}, [5, 5]),
        ("5/m", {"algorithm": "token_bucket"}, [4, 5]),
        ("5/m", {"algorithm": "sliding_window"}, [5, 4]),
    ],
    ids=["of every algorithm", "of the bucket", "of the window"],
)
def test_a_rate_stands_for_the_rules_of_all_algorithms_unless_one_is_given(
    do: Callable[..., int], rule: str, options: Any, left: list[int]
) -> None:
    with freeze(START):
        check("5/m", SUBJECT)
        check("5/m", SUBJECT, algorithm="token_bucket")

        do(rule, SUBJECT, **options)

        found = [peek("5/m", SUBJECT), peek("5/m", SUBJECT, algorithm="token_bucket")]
        assert [decision.remaining for decision in found] == left


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("options", "left"), [({}, [3, 9]), ({"tier": "pro"}, [2, 9])], ids=["all tiers", "the named tier"]
)
def test_all_tiers_of_a_rule_are_reset_unless_one_is_named(
    do: Callable[..., int], options: Any, left: list[int]
) -> None:
    with freeze(START):
        check("tiers", SUBJECT, tier="anonymous")
        check("tiers", SUBJECT, tier="pro")

        do("tiers", SUBJECT, **options)

        assert [peek("tiers", SUBJECT, tier=tier).remaining for tier in ("anonymous", "pro")] == left


@pytest.mark.usefixtures("memory_store")
class TestUnderOverrides:
    """What was counted under the rate of an override is deleted, too."""

    def test_a_reset_forgets_the_counts_under_each_of_several_overrides(self, do: Callable[..., int]) -> None:
        override("r 0 0 7/2h", "search", "user:*")
        check("search", SUBJECT)
        override("r 0 0 8/h", "search", SUBJECT)
        check("search", SUBJECT)

        assert do("search", SUBJECT) == 2

    def test_a_reset_forgets_the_count_of_each_tier(self, do: Callable[..., int]) -> None:
        override("r 0 0 +1", "tiers", SUBJECT)
        for tier in ("anonymous", "pro"):
            check("tiers", SUBJECT, tier=tier)

        assert do("tiers", SUBJECT) == 2


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("rule", ["by-header", "dynamic"])
def test_the_key_of_the_rule_takes_the_subject_from_a_request(do: Callable[..., int], rule: str) -> None:
    request = RequestFactory().get("/", HTTP_X_KEY="secret")
    with freeze(START):
        check(rule, request)

        assert do(rule, request) == 1

        assert peek(rule, request).remaining == 3


@pytest.mark.usefixtures("either_store")
def test_the_refusals_that_count_towards_a_ban_are_forgotten_without_its_option(do: Callable[..., int]) -> None:
    guarded = Rule.make("1/m", "1/m", ban={"after": "2/h", "for": "1h"})
    with freeze(START):
        check(guarded, SUBJECT)
        check(guarded, SUBJECT)

        do("1/m", SUBJECT)

        assert [check(guarded, SUBJECT).allowed for _ in range(2)] == [True, False]
        assert bans_of(SUBJECT) == []


@pytest.mark.usefixtures("memory_store", "database")
def test_a_process_that_has_read_no_overrides_yet_forgets_what_was_counted_under_one(do: Callable[..., int]) -> None:
    QuotaOverride.objects.create(subject=SUBJECT, rule="search", mode="rate", rate="9/h")
    with freeze(START):
        check("search", SUBJECT)
        overrides.clear()

        assert do("search", SUBJECT) == 1

        assert peek("search", SUBJECT).remaining == 9


@pytest.mark.usefixtures("either_store")
@pytest.mark.parametrize(
    ("signal", "hits"), [(near_limit, 8), (refused, 11)], ids=["that the limit is near", "of a refusal"]
)
def test_the_event_comes_again_at_once_after_a_reset(signal: Signal, hits: int) -> None:
    rule, number = Rule.make("ten", "10/h"), []
    with received(signal, heard := Mock()), freeze(START):
        for _ in range(2):
            for _ in range(hits):
                check(rule, SUBJECT)
            number.append(heard.call_count)
            reset(rule, SUBJECT)

    assert number == [1, 2]


@pytest.mark.usefixtures("memory_store")
def test_a_call_to_the_store_resets_a_hundred_rules_at_most(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.ROOT_URLCONF = ()
    settings.QUOTA = {**settings.QUOTA, "RULES": {f"rule-{number}": "3/m" for number in range(101)}}
    check_all([(f"rule-{number}", SUBJECT) for number in range(101)])
    numbers: list[int] = []
    spy(monkeypatch, lambda each: numbers.append(len(each.rule_states)) if isinstance(each, Reset) else None)

    assert reset("*", SUBJECT) == 101

    assert numbers == [100, 1]


def test_rules_of_subjects_in_several_slots_are_reset_in_each_of_them() -> None:
    """On a Redis Cluster one script reaches one slot."""

    def slot_of(key: str) -> str:
        return "second" if "user:2" in key else "first"

    rules = [RuleState("api", f"q:{{user:{n}}}:s", [f"q:{{user:{n}}}:r"]) for n in (1, 2, 3)]
    states = {"first": DictStates(), "second": DictStates()}
    for key in ("q:{user:1}:r", "q:{user:2}:r", "q:{user:3}:r"):
        states[slot_of(key)].put(key, 5, START)
    events: list[AppendEvents] = []

    def run(operations: Sequence[Operation]) -> list[Any]:
        events.extend(each for each in operations if isinstance(each, AppendEvents))
        return [each.run(states[slot_of(each.keys[0])], START) for each in operations if isinstance(each, Reset)]

    assert run_sync(scatter(Reset(rules, EventLog(("events", "bans"))), slot_of), run) == 3

    assert [each.kept for each in states.values()] == [{}, {}]
    assert [len(each.events) for each in events] == [3]


def test_the_end_of_bans_is_written_to_the_log_in_another_slot() -> None:
    """On a Redis Cluster one script reaches one slot."""
    events: list[AppendEvents] = []

    def run(operations: Sequence[Operation]) -> list[Any]:
        events.extend(each for each in operations if isinstance(each, AppendEvents))
        return [each.run(DictStates(), START) for each in operations if isinstance(each, LiftBans)]

    lifting = LiftBans("q:{user:1}:s", ["api", "web"], EventLog(("events", "bans")))
    run_sync(scatter(lifting, lambda key: "first"), run)

    assert [len(each.events) for each in events] == [2]


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("rule", ["search", "*"])
def test_a_reset_while_limiting_is_off_deletes_nothing(do: Callable[..., int], rule: str, settings: Any) -> None:
    with freeze(START):
        check("search", SUBJECT)
        before = settings.QUOTA
        settings.QUOTA = {**before, "ENABLED": False}

        assert do(rule, SUBJECT) == 0

        settings.QUOTA = before
        assert peek("search", SUBJECT).remaining == 2


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("given", "options", "problem"),
    [
        (("serach", SUBJECT), {}, "Did you mean 'search'"),
        (("search", 5), {}, "5 is not a subject"),
        (("*", RequestFactory().get("/")), {}, "is not a subject"),
        (("*", SUBJECT), {"tier": "pro"}, "tier= is for one rule"),
        (("dynamic", SUBJECT), {}, "pass the request as subject"),
        (("tiers", SUBJECT), {"tier": "gold"}, "has no tier 'gold'"),
        (("search", SUBJECT), {"burst": 3}, "has its own options"),
        (("5/m", SUBJECT), {"exempt": "staff"}, "exempt= chooses requests"),
    ],
)
def test_wrong_arguments_are_named(do: Callable[..., int], given: Any, options: Any, problem: str) -> None:
    with pytest.raises(RuleError, match=problem):
        do(*given, **options)
