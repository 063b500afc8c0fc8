"""`ban`, `unban` and `reset_subject`: what your code sets is like what the limiter sets, and is lifted like that."""

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.urls import path

from django_quota import Decision, Rule, aban, aunban, ban, check, peek, quota, reset, reset_subject, unban
from django_quota.exceptions import RuleError, StoreUnavailable
from django_quota.signals import banned
from django_quota.testing import freeze
from tests.support.calls import always
from tests.support.commands import json_of
from tests.support.counts import bans_of
from tests.support.outages import no_answer
from tests.support.steps import MINUTE, START

SUBJECT = "ip:203.0.113.9"
BAN = {"after": "1000/m", "for": "10m"}  # never reached
RULES: dict[str, Any] = {
    "search": {"rate": "3/m", "ban": BAN},
    "without": "3/m",
    "login": {"rate": "1/m", "ban": {"after": "2/m", "for": ["10m", "1h"]}},
    "by-header": {"rate": "3/m", "key": "header:X-Key", "ban": BAN},
    "tiers": {"rate": {"anonymous": "3/m", "pro": "9/m"}, "tier": always("pro"), "ban": BAN},
    "dynamic": {"rate": always("3/m"), "cost": always(2), "ban": BAN},
    "values": {"rate": "3/m", "distinct": "header:X-Device", "ban": BAN},
    "shadow": {"rate": "3/m", "shadow": True},
    "unlimited": {"rate": None, "ban": BAN},
}

in_memory = pytest.mark.usefixtures("memory_store", "rules")
on_redis = pytest.mark.usefixtures("redis_cache", "rules")


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


urlpatterns = [path("", quota("5/h", name="of-the-view", ban=BAN)(view))]


@pytest.fixture(params=["sync", "async"])
def do(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Call a verb or its async twin: `do(ban, aban, SUBJECT, ...)`."""
    if request.param == "sync":
        return lambda verb, averb, *given: verb(*given)
    return lambda verb, averb, *given: asyncio.run(averb(*given))


def get(**meta: Any) -> HttpRequest:
    made = RequestFactory().get("/", REMOTE_ADDR="203.0.113.9", **meta)
    made.user = AnonymousUser()
    return made


@pytest.fixture
def rules(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.QUOTA = {**settings.QUOTA, "RULES": RULES}


@pytest.fixture
def signalled() -> Iterator[Mock]:
    found = Mock()
    banned.connect(found)
    yield found
    banned.disconnect(found)


@pytest.mark.usefixtures("either_store", "rules")
def test_a_ban_refuses_until_its_end_and_says_so(do: Callable[..., Any], signalled: Mock) -> None:
    with freeze(START):
        decision: Decision = do(ban, aban, SUBJECT, "search", 600)
        assert (decision.allowed, decision.enforced, decision.retry_after) == (False, True, 600.0)
        assert decision.explain() == f"Rule 'search' refuses {SUBJECT}, which is banned; try again in 10 minutes."
        assert bans_of(SUBJECT) == [("search", 600.0, 1)]
        assert check("login", SUBJECT).allowed
        do(ban, aban, SUBJECT, "search", 60)  # changes nothing: it is shorter
    with freeze(START + 10 * MINUTE - 1):
        refused = check("search", SUBJECT)
        assert (refused.allowed, refused.remaining) == (False, 3)
    with freeze(START + 10 * MINUTE):
        assert check("search", SUBJECT).remaining == 2
    signalled.assert_called_once()
    given = signalled.call_args.kwargs
    assert (given["rule"].name, given["subject"], given["decision"].retry_after) == ("search", SUBJECT, 600.0)


@pytest.mark.usefixtures("either_store", "rules")
def test_unban_lifts_one_or_all_and_counts_them(do: Callable[..., Any]) -> None:
    with freeze(START):
        check("search", SUBJECT)
        for rule in ("search", "login", Rule.make("5/d", "5/d", ban=BAN)):
            ban(SUBJECT, rule, 600)
        assert [do(unban, aunban, SUBJECT, "search") for _ in range(2)] == [1, 0]
        assert check("search", SUBJECT).remaining == 1
        assert [do(unban, aunban, SUBJECT) for _ in range(2)] == [2, 0]
        assert bans_of(SUBJECT) == []
        assert [ban(SUBJECT, "search", seconds).retry_after for seconds in (600, 900)] == [600.0, 900.0]
        assert reset("search", SUBJECT)
        assert check("search", SUBJECT).allowed


@in_memory
class TestBan:
    def test_it_is_one_in_the_row_of_the_bans_of_its_rule(self) -> None:
        with freeze(START):
            ban(SUBJECT, "login", 60)
        with freeze(START + 2 * MINUTE):
            for _ in range(3):
                check("login", SUBJECT)
            assert bans_of(SUBJECT) == [("login", 3_600.0, 2)]

    def test_subjects_may_be_users_and_requests_and_rules_those_of_views_and_objects(self) -> None:
        ban(User(pk=42), "search", 600)
        assert not check("search", "user:42")
        asked = get(HTTP_X_KEY="secret")
        assert ban(asked, "by-header", 600).subject == check("by-header", asked).subject
        assert not check("by-header", asked)
        assert check("by-header", get(HTTP_X_KEY="other")).allowed
        assert unban(asked, "by-header") == 1
        assert ban(SimpleNamespace(_request=asked), "search", 600).subject == SUBJECT  # as frameworks wrap it
        for rule in ("of-the-view", Rule.make("own", "2/m", ban=BAN), "tiers", "dynamic", "values"):
            assert not ban(SUBJECT, rule, 600)
        assert [rule for rule, _, _ in bans_of(SUBJECT)][:3] == ["dynamic", "of-the-view", "own"]
        for rule in ("tiers", "dynamic", "values"):  # whose rate only a request knows
            assert check(rule, get(HTTP_X_DEVICE="d")).outcomes[0].why == "banned"

    def test_if_limiting_is_off_it_does_nothing(self, settings: Any, signalled: Mock) -> None:
        before = settings.QUOTA
        settings.QUOTA = {**before, "ENABLED": False}
        assert ban(SUBJECT, "search", 600).allowed
        settings.QUOTA = before
        assert (bans_of(SUBJECT), signalled.called) == ([], False)

    @pytest.mark.parametrize(
        ("rule", "problem"),
        [
            ("shadow", "Rule 'shadow' is a shadow, which never refuses"), ("10/mm", "'mm' is not a unit"),
            ("unlimited", "Rule 'unlimited' has no rate, so it never asks the store"),
            ("without", "Rule 'without' has no ban=, so its checks look for no ban. .* quota_override set"),
            ("serach", "no rule of the settings or the views. Did you mean 'search'"),
        ],
    )  # fmt: skip
    def test_a_ban_without_effect_is_an_error(self, rule: str, problem: str) -> None:
        with pytest.raises(RuleError, match=problem):
            ban(SUBJECT, rule, 600)


@on_redis
def test_events_show_it_and_without_events_it_bans_and_tells_nobody(settings: Any, raw: Any, signalled: Mock) -> None:
    with freeze(START):
        ban(SUBJECT, "search", 600)
    (event,) = json_of("quota_events", last=9)
    shown = [event[name] for name in ("kind", "rule", "subject", "until", "level", "capacity", "remaining")]
    assert shown == ["banned", "search", SUBJECT, "2025-11-21T04:50:00+00:00", 1, 3, 3]
    raw.flushdb()
    signalled.reset_mock()
    settings.QUOTA = {**settings.QUOTA, "EVENTS": 0}
    assert not ban(SUBJECT, "search", 600)
    assert not [key for key in raw.scan_iter() if b"events" in key or key.endswith(b":bans")]
    assert not signalled.called


@in_memory
def test_what_is_no_subject_is_an_error_and_so_is_no_answer() -> None:
    for subject in ("", "ip:nothing", 5, None, User()):
        for verb, given in ((ban, ("search", 600)), (unban, ()), (reset_subject, ())):
            with pytest.raises(RuleError):
                verb(cast("Any", subject), *given)
    with no_answer(), pytest.raises(StoreUnavailable):
        reset_subject(SUBJECT)


@pytest.mark.usefixtures("either_store", "rules")
def test_a_subject_is_reset_under_all_its_rules() -> None:
    with freeze(START):
        user = User(pk=7)
        check("search", user)
        check("5/h", user, name="of-the-view")
        ban(user, "login", 600)
        check("search", "user:8")
        report = reset_subject(user)
        assert report.dropped == 3
        assert {"search", "login", "of-the-view"} <= set(report.rules)
        assert (peek("search", user).remaining, peek("search", "user:8").remaining) == (3, 2)
        assert check("login", user).allowed


@on_redis
@pytest.mark.parametrize(
    ("rate", "options", "times"),
    [("1/m", {"ban": {"after": "1/m", "for": "1m"}}, 2), ("1/m", {}, 2), ("5/m", {"warn_at": 0.8}, 4), ("5/m", {}, 0)],
    ids=["a short ban after refusals", "a refusal", "a limit that is nearly used up", "a short ban in code"],
)
def test_no_later_event_forgets_a_longer_ban(raw: Any, rate: str, options: dict[str, Any], times: int) -> None:
    with freeze(START):
        ban(SUBJECT, "search", 2 * 86_400)
        for _ in range(times):
            check(rate, SUBJECT, name="other", **options)
        ban(SUBJECT, "login", 60)
    for key in (f"quota:1:{{{SUBJECT}}}:s", "quota:1:{!}:bans"):
        assert raw.ttl(key) > 86_400
