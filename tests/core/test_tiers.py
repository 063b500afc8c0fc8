"""What the request decides of a rule: the rates by its tier, unless the call names the tier, and who is exempt."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse

from django_quota import (
    Decision,
    Entry,
    Rule,
    acheck,
    acquire,
    check,
    check_all,
    peek,
    quota,
    refund,
    reserve,
    reserve_all,
    reset,
)
from django_quota.exceptions import RuleError
from django_quota.testing import freeze
from tests.support.calls import always, both_ways, calls_of, get, run
from tests.support.outages import no_answer
from tests.support.overridden import override
from tests.support.steps import START

TWO: Any = {"anonymous": "1/m", "authenticated": "3/m"}
THREE: Any = {**TWO, "pro": ["5/m", "100/h"], "staff": None}
USER, OTHER = User(pk=7, username="ann"), User(pk=8, username="ben")


pytestmark = pytest.mark.usefixtures("memory_store")


def asked_by(somebody: Any = None, tier: str = "") -> Any:
    request = get(**({"HTTP_X_TIER": tier} if tier else {}))
    request.user = somebody or AnonymousUser()
    return request


def by_header(request: HttpRequest) -> str | None:
    return request.headers.get("X-Tier")


async def by_header_async(request: HttpRequest) -> str | None:
    return request.headers.get("X-Tier")


def made(is_async: bool) -> Any:
    async def view_async(request: Any) -> HttpResponse:
        return HttpResponse()

    return view_async if is_async else lambda request: HttpResponse()


def counts(view: Any, request: Any) -> list[int | None]:
    """Return the counts of the limits that a request meets; None for one that only counts."""
    run(view, request)
    return [outcome.limit for outcome in request.quota.outcomes]


SYNC = pytest.param(by_header, False, id="in a sync view")
IN_ASYNC = pytest.param(by_header, True, id="in an async view")
ASYNC = pytest.param(by_header_async, True, id="that is async")


class TestView:
    @both_ways
    @pytest.mark.parametrize(
        ("request_of", "limit"),
        [
            pytest.param(asked_by, 1, id="anonymous"),
            pytest.param(lambda: asked_by(USER), 3, id="a user"),
            pytest.param(get, 1, id="a request without a user"),
        ],
    )
    def test_it_has_the_rates_of(self, request_of: Callable[[], Any], limit: int, is_async: bool) -> None:
        assert counts(quota(TWO, key="user")(made(is_async)), request_of()) == [limit]

    @both_ways
    def test_its_tiers_refuse_each_by_its_rate(self, is_async: bool) -> None:
        view = quota(TWO, key="user")(made(is_async))

        anonymous = [run(view, asked_by()).status_code for _ in range(2)]
        user = [run(view, asked_by(USER)).status_code for _ in range(4)]

        assert (anonymous, user) == ([200, 429], [200, 200, 200, 429])

    @both_ways
    def test_a_request_without_a_user_shares_the_limit_of_anonymous_ones(self, is_async: bool) -> None:
        view = quota(TWO, key="user")(made(is_async))
        run(view, asked_by())

        assert run(view, get()).status_code == 429

    @pytest.mark.parametrize(("function", "is_async"), [SYNC, IN_ASYNC, ASYNC])
    @pytest.mark.parametrize(
        ("tier", "limits"),
        [
            pytest.param("pro", [5, 100], id="two rates"),
            pytest.param("staff", [None, None], id="no limit"),
            pytest.param("", [1], id="the default"),
        ],
    )
    def test_it_has_the_rates_of_the_tier_of_a_function(
        self, tier: str, limits: list[int], function: Any, is_async: bool
    ) -> None:
        view = quota(THREE, key="ip", tier=function)(made(is_async))

        assert counts(view, asked_by(tier=tier)) == limits

    @both_ways
    def test_a_function_that_knows_no_tier_leaves_that_of_the_user(self, is_async: bool) -> None:
        view = quota(THREE, key="ip", tier=by_header)(made(is_async))

        assert counts(view, asked_by(USER)) == [3]

    @both_ways
    def test_a_change_of_tier_keeps_the_count(self, is_async: bool) -> None:
        view = quota(THREE, key="ip", tier=by_header)(made(is_async))
        run(view, asked_by(tier="pro"))

        assert run(view, asked_by()).status_code == 429

    def test_a_sync_view_with_an_async_function_is_an_error(self) -> None:
        with pytest.raises(RuleError, match=r"tier=.*by_header_async is async, but the view is not"):
            quota(THREE, key="ip", tier=by_header_async)(made(is_async=False))


class TestUnknownTier:
    """Of a function, which returns a name that the rule does not have."""

    @both_ways
    @pytest.mark.parametrize(("somebody", "limit"), [(None, 1), (USER, 3)], ids=["anonymous", "a user"])
    def test_it_is_treated_as_the_default_tier(self, somebody: Any, limit: int, is_async: bool) -> None:
        view = quota(THREE, key="ip", tier=by_header)(made(is_async))

        assert counts(view, asked_by(somebody, tier="prp")) == [limit]

    @both_ways
    def test_it_is_logged_once_for_each_default_tier(self, is_async: bool, caplog: pytest.LogCaptureFixture) -> None:
        view = quota(THREE, key="ip", tier=by_header, name=f"logged {is_async}")(made(is_async))

        for somebody in (None, USER, USER):
            run(view, asked_by(somebody, tier="prp"))

        assert caplog.text.count("has no tier 'prp'. It is treated as") == 2

    @both_ways
    @pytest.mark.parametrize("tier", [["pro"], 5, b"pro"], ids=["a list", "a number", "bytes"])
    def test_what_is_not_a_string_is_treated_as_the_default_tier(self, tier: Any, is_async: bool) -> None:
        view = quota(THREE, key="ip", tier=always(tier))(made(is_async))

        assert counts(view, asked_by()) == [1]

    @both_ways
    @pytest.mark.parametrize("tier", ["prp", ""], ids=["unknown", "None"])
    def test_without_the_tier_of_the_user_it_has_the_tier_called_default(self, tier: str, is_async: bool) -> None:
        view = quota({"default": "2/m", "pro": "5/m"}, key="ip", tier=by_header)(made(is_async))

        assert counts(view, asked_by(tier=tier)) == [2]

    @both_ways
    @pytest.mark.parametrize(("somebody", "limit"), [(None, 1), (USER, 3)], ids=["anonymous", "a user"])
    def test_the_tier_of_the_user_comes_before_the_one_called_default(
        self, somebody: Any, limit: int, is_async: bool
    ) -> None:
        view = quota({"default": "2/m", **TWO}, key="ip", tier=by_header)(made(is_async))

        assert counts(view, asked_by(somebody)) == [limit]

    @both_ways
    @pytest.mark.parametrize("tier", ["prp", ""], ids=["unknown", "None"])
    def test_without_any_default_tier_the_request_is_refused(self, tier: str, is_async: bool) -> None:
        view = quota({"free": "1/m", "pro": "5/m"}, key="ip", tier=by_header)(made(is_async))

        assert run(view, asked_by(tier=tier)).status_code == 429

    def test_without_any_default_tier_it_is_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        view = quota({"free": "1/m"}, key="ip", tier=by_header, name="refused once")(made(is_async=False))

        for _ in range(2):
            run(view, asked_by(tier="prp"))

        assert caplog.text.count("Rule 'refused once' has no tier 'prp' and no tier 'default'.") == 1

    def test_without_a_share_for_it_the_request_has_the_smallest(self) -> None:
        shares = {"critical": 1.0, "batch": 0.5}
        view = quota("10/m", key="ip", tier=by_header, share=shares)(made(is_async=False))

        assert counts(view, asked_by(tier="prp")) == [5]


class TestCall:
    """A call without a view, which has a subject or a request."""

    @pytest.fixture
    def rules(self, memory_store: None, settings: Any) -> None:
        rules = {"sync": {"rate": THREE, "tier": by_header}, "async": {"rate": THREE, "tier": by_header_async}}
        settings.QUOTA = {**settings.QUOTA, "RULES": rules}

    @pytest.mark.parametrize(
        ("subject", "limit"),
        [("user:7", 3), (USER, 3), ("ip:192.0.2.1", 1)],
        ids=["the key of a user", "a user", "an address"],
    )
    def test_the_default_tier_comes_from_the_subject(self, subject: Any, limit: int) -> None:
        assert peek(TWO, subject, name="api").limit == limit

    @pytest.mark.usefixtures("rules")
    def test_a_function_gets_the_request(self) -> None:
        assert check("sync", asked_by(tier="pro")).limit == 5

    @pytest.mark.usefixtures("rules")
    def test_an_async_function_gets_the_request(self) -> None:
        assert asyncio.run(acheck("async", asked_by(tier="pro"))).limit == 5

    @pytest.mark.usefixtures("rules")
    def test_a_function_without_a_request_is_an_error(self) -> None:
        with pytest.raises(RuleError, match="pass the request"):
            check("sync", "user:7")


API = Rule.make("api", {"free": "2/m", "team": "5/m; 9/h", "staff": None}, tier=by_header)
ORG = "org:7"


class TestNamedTier:
    """`tier=` of a call. `API` has 5 a minute for teams, of which two are used."""

    @pytest.fixture(autouse=True)
    def two_used(self, memory_store: None) -> None:
        check(API, ORG, 2, tier="free")

    def test_its_rate_decides(self) -> None:
        assert not check(API, ORG, tier="free")

    def test_all_tiers_share_the_count(self) -> None:
        assert peek(API, ORG, tier="team").used == 2

    @pytest.mark.parametrize(
        ("call", "remaining"),
        [
            pytest.param(lambda: check(API, ORG, 2, tier="team"), 1, id="check"),
            pytest.param(lambda: asyncio.run(acheck(API, ORG, 2, tier="team")), 1, id="acheck"),
            pytest.param(lambda: refund(API, ORG, 1, tier="team"), 4, id="refund"),
            pytest.param(lambda: acquire(API, ORG, tier="team", timeout=0), 2, id="acquire"),
        ],
    )
    def test_a_verb_takes_it(self, call: Callable[[], Decision], remaining: int) -> None:
        assert call().remaining == remaining

    def test_a_reservation_takes_it(self) -> None:
        with reserve(API, ORG, 1, tier="team") as hold:
            assert hold.settle(0).remaining == 3

    def test_a_reservation_of_several_takes_it(self) -> None:
        with reserve_all([Entry(API, ORG, 3, "team")]) as hold:
            assert hold.cost == 3

    def test_a_tier_may_have_no_limit(self) -> None:
        assert peek(API, ORG, tier="staff").limit is None

    def test_a_reset_takes_it(self) -> None:
        assert reset(API, ORG, tier="free")
        assert peek(API, ORG, tier="team").used == 0

    def test_it_takes_precedence_over_the_tier_of_the_request(self) -> None:
        request = asked_by(tier="free")

        assert check(API, request, tier="team").limit == 5
        assert check(API, request).limit == 2

    def test_an_entry_of_several_names_it_after_the_cost(self) -> None:
        decision = check_all([Entry(API, "org:9", tier="team"), Entry(API, "org:8", 2, "free")])

        assert [(each.cost, each.remaining) for each in decision.outcomes] == [(1, 4), (1, 8), (2, 0)]

    @pytest.mark.parametrize("call", [check, peek, reserve, refund, reset])
    def test_an_unknown_one_is_an_error_that_lists_those_there_are(self, call: Any) -> None:
        with pytest.raises(RuleError, match=r"^Rule 'api' has no tier 'Team'\. Known: 'free', 'team', 'staff'\."):
            call(API, ORG, tier="Team")

    def test_none_where_only_a_request_knows_it_is_an_error(self) -> None:
        with pytest.raises(RuleError, match=r"pass the request as subject, or tier=\. Known: 'free', 'team', 'staff'"):
            check(API, ORG)

    def test_one_of_a_rule_without_tiers_is_an_error(self) -> None:
        with pytest.raises(RuleError, match=r"^Rule '1/m' has no tier 'team'\. It has no tiers\."):
            check("1/m", ORG, tier="team")


def api(rates: Any = None, **options: Any) -> Rule:
    """A rule with a plan without a limit."""
    rates = rates or {"anonymous": "100/month", "authenticated": "1000/month", "pro": None}
    return Rule.make("api", rates, **{"algorithm": "calendar", "tier": by_header, **options})


class TestTierWithoutALimit:
    """It counts in the windows of the other tiers, as every tier does."""

    @pytest.fixture(autouse=True)
    def stores(self, either_store: None) -> None:
        """Each promise holds on each store."""

    @pytest.mark.parametrize(
        ("rate", "algorithm"),
        [("100/month", "calendar"), ("100/30d", "fixed_window"), ("100/30d", "sliding_window")],
        ids=["calendar", "fixed window", "sliding window"],
    )
    def test_what_was_used_counts_after_a_downgrade(self, rate: str, algorithm: str) -> None:
        rule = api({"free": rate, "pro": None}, algorithm=algorithm)
        with freeze(START):  # else the month may end in between
            check(rule, USER, 500, tier="pro")

            free = check(rule, USER, tier="free")

        assert (free.allowed, free.remaining, free.used) == (False, 0, 500)

    def test_it_refuses_nothing(self) -> None:
        assert [check(api(), USER, 10**12, tier="pro").allowed for _ in range(3)] == [True] * 3

    def test_its_outcome_has_what_is_used_without_a_limit(self) -> None:
        decision = check(api({"free": "9/month", "pro": None}), USER, 500, tier="pro")

        (outcome,) = decision.outcomes
        assert (outcome.limit, outcome.remaining, outcome.used, decision.limit) == (None, None, 500, None)

    def test_the_decision_names_the_rule_that_limits_nothing(self) -> None:
        decision = check(api(), USER, tier="pro")

        assert (decision.rule, decision.subject, decision.explain()) == (
            "api",
            "user:7",
            "Allowed: nothing limits this.",
        )

    def test_of_two_rules_the_one_with_a_limit_binds(self) -> None:
        decision = check_all([Entry(api(), USER, 5, tier="pro"), Entry("10/m", USER, 2)])

        assert (decision.rule, decision.remaining) == ("10/m", 8)

    def test_a_reservation_counts_what_it_is_settled_with(self) -> None:
        with reserve(api(), USER, 400, tier="pro") as reservation:
            reservation.settle(30)

        assert peek(api(), USER, tier="authenticated").used == 30

    def test_a_refund_gives_back(self) -> None:
        check(api(), USER, 400, tier="pro")

        refund(api(), USER, 100, tier="pro")

        assert peek(api(), USER, tier="authenticated").used == 300

    def test_a_ban_under_another_tier_does_not_hold(self) -> None:
        banning = api(ban={"after": "1/m", "for": "1h"})
        banned = check(banning, USER, 1001, tier="authenticated")

        allowed = check(banning, USER, tier="pro")

        assert (banned.allowed, allowed.allowed) == (False, True)

    @pytest.mark.parametrize(
        ("options", "value"),
        [({"algorithm": "token_bucket"}, None), ({"algorithm": "sliding_window", "distinct": True}, "a")],
        ids=["bucket", "values"],
    )
    def test_what_has_no_count_to_keep_asks_no_store(self, options: dict[str, Any], value: Any) -> None:
        assert check(api({"free": "9/m", "pro": None}, **options), USER, value=value, tier="pro").outcomes == ()

    def test_it_has_no_headers(self) -> None:
        response = run(quota(THREE, key="ip", tier=by_header)(made(is_async=False)), asked_by(tier="staff"))

        assert not [name for name in response.headers if name.lower().startswith("ratelimit")]

    def test_without_an_answer_of_the_store_it_allows(self) -> None:
        with no_answer():
            assert check(api(on_unavailable="deny"), USER, tier="pro").allowed


class TestOverride:
    @pytest.fixture(autouse=True)
    def raised(self, memory_store: None, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"api": {"rate": TWO, "key": "user"}}}
        override("r 0 0 9/m", "api", "user:7")

    @pytest.mark.parametrize("tier", ["anonymous", "authenticated"])
    def test_it_applies_to_every_tier(self, tier: str) -> None:
        assert check("api", "user:7", tier=tier).limit == 9

    def test_it_applies_to_a_request(self) -> None:
        assert check("api", asked_by(USER)).limit == 9

    def test_it_takes_one_call_of_the_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = calls_of(monkeypatch)

        check("api", asked_by(USER))

        assert calls == [1]

    def test_it_leaves_other_subjects(self) -> None:
        assert check("api", asked_by(OTHER)).limit == 3


# --- exemptions: networks, staff, and functions of the request --------------------------------------------------------

LIMITED, FREE = [200, 429], [200, 200]
NETWORK, FORGED = "192.0.2.0/24", {"HTTP_X_FORWARDED_FOR": "10.0.0.1"}
PARTNER = {"HTTP_X_PARTNER": "yes"}


def is_partner(request: HttpRequest) -> bool:
    return request.headers.get("X-Partner") == "yes"


async def is_partner_async(request: HttpRequest) -> bool:
    return is_partner(request)


def statuses(exempt: Any, request: Any, is_async: bool = False) -> list[int]:
    limited = quota("1/m", key="ip", exempt=exempt)(made(is_async))
    return [run(limited, request).status_code for _ in range(2)]


class TestExemptNetworks:
    @pytest.mark.parametrize(
        ("exempt", "address", "expected"),
        [
            pytest.param(NETWORK, "192.0.2.1", FREE, id="an address in it"),
            pytest.param(NETWORK, "198.51.100.1", LIMITED, id="an address outside"),
            pytest.param({"10.0.0.0/8", NETWORK}, "192.0.2.1", FREE, id="an address in one of several"),
            pytest.param("192.0.2.1", "192.0.2.1", FREE, id="a single address"),
            pytest.param("192.0.2.1", "192.0.2.2", LIMITED, id="a neighbour of a single address"),
            pytest.param("2001:db8::1", "2001:db8::1", FREE, id="a single IPv6 address"),
            pytest.param("2001:db8::1", "2001:db8::2", LIMITED, id="a neighbour of a single IPv6 address"),
            pytest.param("2001:DB8:0:0::/64", "2001:db8::77", FREE, id="an IPv6 network in another spelling"),
            pytest.param(NETWORK, "::ffff:192.0.2.1", FREE, id="an IPv4 address mapped into IPv6"),
            pytest.param("::ffff:192.0.2.0/120", "192.0.2.1", FREE, id="an IPv4 network mapped into IPv6"),
        ],
    )
    def test_it_exempts_the_addresses_in_it_alone(self, exempt: Any, address: str, expected: list[int]) -> None:
        assert statuses(exempt, get(REMOTE_ADDR=address)) == expected

    def test_a_forged_forwarding_header_exempts_nobody(self) -> None:
        assert statuses("10.0.0.0/8", get(**FORGED)) == LIMITED

    def test_behind_a_trusted_proxy_the_address_of_the_client_counts(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "TRUSTED_PROXIES": ["192.0.2.1"]}

        assert statuses("10.0.0.0/8", get(**FORGED)) == FREE


@both_ways
@pytest.mark.parametrize(
    ("user", "expected"),
    [
        pytest.param(User(pk=1, is_staff=True), FREE, id="staff"),
        pytest.param(User(pk=1), LIMITED, id="no staff"),
        pytest.param(AnonymousUser(), LIMITED, id="nobody"),
        pytest.param(User(pk=1, is_staff=True, is_active=False), LIMITED, id="staff that has left"),
        pytest.param(None, LIMITED, id="a request without a user"),
    ],
)
def test_active_staff_is_exempt(is_async: bool, user: Any, expected: list[int]) -> None:
    request = get()
    if user is not None:
        request.user = user

    assert statuses("staff", request, is_async) == expected


class TestExemptFunction:
    each_kind = pytest.mark.parametrize(
        ("function", "is_async"),
        [
            pytest.param(is_partner, False, id="in a sync view"),
            pytest.param(is_partner, True, id="in an async view"),
            pytest.param(is_partner_async, True, id="that is async"),
        ],
    )

    @each_kind
    def test_it_exempts_whom_it_returns_true_for(self, function: Any, is_async: bool) -> None:
        assert statuses(["10.0.0.0/8", function], get(**PARTNER), is_async) == FREE

    @each_kind
    def test_it_limits_all_others(self, function: Any, is_async: bool) -> None:
        assert statuses(["10.0.0.0/8", function], get(), is_async) == LIMITED

    @each_kind
    def test_an_exempt_request_asks_no_store(
        self, function: Any, is_async: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = calls_of(monkeypatch)

        statuses(["10.0.0.0/8", function], get(**PARTNER), is_async)

        assert calls == []

    def test_an_async_function_of_a_sync_view_is_an_error(self) -> None:
        with pytest.raises(RuleError, match=r"exempt=.*is_partner_async is async"):
            statuses(is_partner_async, get())

    @pytest.mark.parametrize(("meta", "expected"), [(PARTNER, FREE), ({}, LIMITED)], ids=["exempts", "limits"])
    def test_a_rule_of_the_settings_takes_its_dotted_path(
        self, meta: dict[str, str], expected: list[int], settings: Any
    ) -> None:
        exempt = {"10.0.0.0/8", f"{__name__}.is_partner"}
        settings.QUOTA = {**settings.QUOTA, "RULES": {"api": {"rate": "1/m", "exempt": exempt}}}
        view = quota(rule="api")(lambda request: HttpResponse())

        assert [run(view, get(**meta)).status_code for _ in range(2)] == expected
