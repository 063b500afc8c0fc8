"""`limits_of`: all limits of a request or a subject, in one trip, without a hit."""

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.test import RequestFactory
from django.urls import resolve

from django_quota import alimits_of, check, limits_of, peek, peek_all
from django_quota.exceptions import RuleError
from django_quota.features.usage.rollup import roll_up
from django_quota.limiting.registry import get_limiter
from django_quota.models import DailyCounter
from tests.support.calls import calls_of, get
from tests.support.overridden import override

pytestmark = [pytest.mark.usefixtures("memory_store"), pytest.mark.django_db]

FORBIDDEN = "tests.api.test_limits_of.forbidden"
RULES: dict[str, Any] = {
    "api": {"rate": "10/m", "key": "user", "match": "/api/", "cost": FORBIDDEN},
    "reads": {"rate": {"anonymous": "5/m", "authenticated": "50/m"}, "match": "/", "methods": ["GET"]},
    "writes": {"rate": "1/m", "match": "/", "methods": ["POST"]},
    "other": {"rate": "1/m", "match": "/other/", "key": "user"},
    "codes": {"rate": "1/m", "match": "/", "key": "post:phone"},
    "devices": {"rate": "3/d", "match": "/api/", "key": "user", "distinct": "header:X-Device"},
    "tokens": {"rate": {"free": "100/d", "team": "1000/d"}, "tier": FORBIDDEN},
}
ANN = "user:7"


class OtherUser(SimpleNamespace):
    """A user of a model of the site, with some of the fields of Django's."""

    is_authenticated = True


def forbidden(request: HttpRequest) -> Any:
    pytest.fail("a look calls no such function")


@pytest.fixture(autouse=True)
def rules(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": RULES}
    settings.ROOT_URLCONF = "tests.support.urls_of_rules"


def search(method: str = "get") -> HttpRequest:
    """A request of a view with a `@quota` of two rates."""
    request = getattr(RequestFactory(), method)("/api/search/", REMOTE_ADDR="192.0.2.1")
    request.user, request.resolver_match = User(pk=7), resolve("/api/search/")
    return request  # type: ignore[no-any-return]


def shown(decision: Any) -> list[tuple[str, str, str, int]]:
    return [(each.rule, str(each.rate), each.subject, each.used) for each in decision.outcomes]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
class TestOfARequest:
    def of_request(self, is_async: bool) -> Any:
        return asyncio.run(alimits_of(search())) if is_async else limits_of(search())

    def test_the_rules_that_match_come_before_those_of_its_view(self, is_async: bool) -> None:
        check("api", ANN, 4)

        assert shown(self.of_request(is_async)) == [
            ("api", "10/m", ANN, 4), ("reads", "50/m", "ip:192.0.2.1", 0),
            ("devices", "3/d", ANN, 0),
            *(("two", rate, "ip:192.0.2.1", 0) for rate in ("20/m", "200/h")),
        ]  # fmt: skip

    @pytest.mark.usefixtures("at_one_time")
    def test_a_limit_has_its_times(self, is_async: bool) -> None:
        check("api", ANN, 4)

        assert self.of_request(is_async).outcomes[0].reset_after == 60

    @pytest.mark.usefixtures("at_one_time")
    def test_a_look_takes_nothing(self, is_async: bool) -> None:
        first, second = (shown(self.of_request(is_async)) for _ in range(2))

        assert first == second

    def test_all_are_asked_for_in_one_call(self, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        check("api", ANN, 4)
        calls = calls_of(monkeypatch)

        self.of_request(is_async)

        assert len(calls) == 1


@pytest.mark.parametrize(
    ("exempt", "subject", "rules"),
    [
        pytest.param(["192.0.2.0/24"], "ip:192.0.2.1", [], id="an address in an exempt network"),
        pytest.param(["192.0.2.0/24"], "ip:198.51.100.1", ["office"], id="another address"),
        pytest.param(["192.0.2.0/24"], "ip:192.0.2.128/25", [], id="a part of an exempt network"),
        pytest.param(["192.0.2.128/25"], "ip:192.0.2.0/24", ["office"], id="a network that is exempt in part"),
        pytest.param(["2001:db8::/32"], "ip:2001:db8::/64", [], id="a network of IPv6"),
        pytest.param(
            ["192.0.2.0/24"], "ip:2001:db8::/64", ["office"], id="an address of IPv6 beside a network of IPv4"
        ),
        pytest.param(["192.0.2.0/24"], ANN, ["office"], id="a user, whose address is not known"),
        pytest.param(["192.0.2.0/24"], User(pk=7, is_staff=True), ["office"], id="staff, whose address is not known"),
        pytest.param("staff", User(pk=7, is_staff=True), [], id="a user who is staff"),
        pytest.param("staff", User(pk=7, is_staff=True, is_active=False), ["office"], id="a user who left the staff"),
        pytest.param("staff", User(pk=7), ["office"], id="another user"),
        pytest.param("staff", OtherUser(pk=7, is_staff=True), ["office"], id="a user who may have left"),
        pytest.param("staff", OtherUser(pk=7, is_active=True), ["office"], id="a user of a site without staff"),
        pytest.param(["192.0.2.0/24"], "org:192.0.2.1", ["office"], id="a name that is written as an address"),
    ],
)
def test_of_a_subject_rules_that_exempt_it_are_left_out(exempt: Any, subject: Any, rules: Any, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"office": {"rate": "1/m", "key": FORBIDDEN, "exempt": exempt}}}
    settings.ROOT_URLCONF = "tests.support.urls"

    assert [rule for rule, *_ in shown(limits_of(subject)) if rule == "office"] == rules


def test_of_a_subject_rules_that_exempt_others_are_left_out_too_if_the_site_exempts_it(settings: Any) -> None:
    rules = {"office": {"rate": "1/m", "exempt": ["198.51.100.0/24"]}, "other": {"rate": "1/m"}}
    settings.QUOTA = {**settings.QUOTA, "EXEMPT": ["192.0.2.0/24"], "RULES": rules}

    assert shown(limits_of("ip:192.0.2.1")) == []


def test_of_a_subject_without_requests_a_function_of_tiers_gives_no_default_tier(settings: Any) -> None:
    tiers = {"anonymous": "1/m", "authenticated": "2/m", "default": "3/m"}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"plan": {"rate": tiers, "tier": FORBIDDEN, "key": "ip"}}}

    assert [rule for rule, *_ in shown(limits_of("ip:192.0.2.1")) if rule == "plan"] == []


def test_an_address_beside_a_user_is_not_exempt_as_an_address(settings: Any) -> None:
    rule = {"rate": "1/m", "key": ("ip", "user"), "exempt": ["192.0.2.0/24"]}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"office": rule}}
    settings.ROOT_URLCONF = "tests.support.urls"

    assert [rule for rule, *_ in shown(limits_of("ip:192.0.2.1+user:7")) if rule == "office"] == ["office"]


def test_rules_of_other_methods_are_left_out() -> None:
    assert [rule for rule, *_ in shown(limits_of(search("post")))] == ["api", "writes", "devices", "two", "two"]


def test_a_request_without_a_view_has_the_rules_that_match() -> None:
    assert shown(limits_of(get())) == [("reads", "5/m", "ip:192.0.2.1", 0)], "no view, no user"


def test_a_peek_calls_no_function_for_the_cost() -> None:
    assert peek("api", search()).remaining == peek("api", ANN).remaining == 10
    assert (peek_all([("api", search())]).cost, peek("api", search(), 11).allowed) == (1, False)
    with pytest.raises(pytest.fail.Exception):
        check("api", search())


def test_there_are_no_limits_while_the_app_is_off(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "ENABLED": False}

    assert limits_of(ANN).outcomes == ()


def test_a_subject_has_the_known_rules_whose_key_can_give_it() -> None:
    known = [("api", "10/m", ANN, 0), ("other", "1/m", ANN, 0), ("devices", "3/d", ANN, 0)]
    assert shown(limits_of(ANN)) == shown(limits_of(User(pk=7))) == known, "without a tier no rates of tokens"
    assert shown(limits_of(ANN, tier="team")) == [*known, ("tokens", "1000/d", ANN, 0)]
    assert shown(limits_of("org:1", tier="free")) == [("tokens", "100/d", "org:1", 0)]


@pytest.mark.parametrize(
    ("tier", "rate"),
    [
        pytest.param("authenticated", "50/m", id="the named tier"),
        pytest.param("free", "5/m", id="the default tier where there is no such tier"),
    ],
)
def test_a_rule_without_a_function_of_tiers_has(tier: str, rate: str) -> None:
    limits = shown(limits_of("ip:192.0.2.1", tier=tier))

    assert [rate for rule, rate, *_ in limits if rule == "reads"] == [rate]


def test_the_limits_of_an_unknown_tier_are_an_error() -> None:
    with pytest.raises(RuleError) as refused:
        limits_of(ANN, tier="taem")

    assert str(refused.value) == "No rule has a tier 'taem'. Name one of the tiers of a rule, or leave out tier=."


def test_the_limits_of_what_is_not_a_subject_are_an_error() -> None:
    with pytest.raises(RuleError, match=r"^7 is not a subject of limits_of\(\)\. "):
        limits_of(7)


@pytest.mark.usefixtures("at_one_time")
class TestTheTierOfASubject:
    @pytest.fixture
    def last_in_team(self, memory_store: None, rules: None, at_one_time: None) -> None:
        for tier in ("free", "team"):
            check("tokens", ANN, 40, tier=tier)

    @pytest.mark.parametrize(("tier", "rate"), [("free", "100/d"), ("team", "1000/d")])
    @pytest.mark.usefixtures("last_in_team")
    def test_is_that_of_its_last_request(self, tier: str, rate: str) -> None:
        check("tokens", ANN, 40, tier=tier)

        assert [each[1] for each in shown(limits_of(ANN)) if each[0] == "tokens"] == [rate]

    @pytest.mark.usefixtures("last_in_team")
    def test_outlives_the_move_of_the_counts_of_the_day(self) -> None:
        assert sum(done.rows for done in roll_up(get_limiter().store)) == 1

        assert DailyCounter.objects.get().tier == "team"
        assert ("tokens", "1000/d", ANN, 80) in shown(limits_of(ANN))

    def test_is_unknown_where_checks_are_not_counted_by_day(self) -> None:
        check("tokens", "org:1", tier="free")

        assert shown(limits_of("org:1")) == []


def test_no_more_rules_are_read_than_a_call_may_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_quota.http.limits.ENTRIES_AT_ONCE", 2)

    assert [rule for rule, *_ in shown(limits_of(ANN))] == ["api", "other"]


def test_limits_beside_an_override_that_blocks_are_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check("other", ANN)
    override("b 0 0 -", "api", ANN)
    override("x 0 0 -", "devices", ANN)
    calls = calls_of(monkeypatch)
    decision = limits_of(ANN)
    assert sorted((each.rule, each.why, each.allowed) for each in decision.outcomes) == [
        ("api", "blocked", False), ("devices", "exempt", True), ("other", "", False)
    ]  # fmt: skip
    assert (decision.rule, len(calls)) == ("api", 2), "one for the last tiers"


def test_the_views_of_a_site_are_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    walk = Mock(return_value=[])
    monkeypatch.setattr("django_quota.limiting.known_rules.rule_finders", [walk])
    assert limits_of(ANN) == limits_of(ANN)
    walk.assert_called_once()
