"""What the request decides of a rule: the rates by its tier, unless the call names the tier, and who is exempt."""

import asyncio
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse

from django_quota import Rule, acheck, acquire, check, check_all, peek, quota, refund, reserve, reserve_all, reset
from django_quota.exceptions import RuleError
from tests.support.calls import always, calls_of, get, run
from tests.support.overridden import override

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


def counts(view: Any, request: Any) -> list[int]:
    """Return the counts of the limits that a request meets."""
    run(view, request)
    return [outcome.limit for outcome in request.quota.outcomes]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_view_has_the_rates_of_the_users_tier_or_of_that_which_a_function_returns(is_async: bool) -> None:
    view = quota(TWO, key="user")(made(is_async))
    statuses = [run(view, request).status_code for request in [*[asked_by()] * 2, *[asked_by(USER)] * 4, get()]]
    assert statuses == [200, 429, 200, 200, 200, 429, 429], "a request without a user is anonymous"
    view = quota(THREE, key="ip", tier=by_header_async if is_async else by_header)(made(is_async))
    requests = (asked_by(tier="pro"), asked_by(USER), asked_by(tier="staff"))
    assert [counts(view, request) for request in requests] == [[5, 100], [3], []]
    assert run(view, asked_by()).status_code == 429, "a change of tier keeps the count"


@pytest.mark.parametrize("is_async", [False, True])
def test_an_unknown_tier_is_the_default_one_and_logged_once_or_an_error(is_async: bool, caplog: Any) -> None:
    view = quota(THREE, key="ip", tier=by_header, name=f"logged {is_async}")(made(is_async))
    assert [counts(view, asked_by(somebody, tier="prp")) for somebody in (None, USER, USER)] == [[1], [3], [3]]
    assert caplog.text.count("has no tier 'prp'. It is treated as") == 2
    for tier in (["pro"], 5, b"pro"):  # no text
        assert counts(quota(THREE, key="ip", tier=always(tier))(made(is_async)), asked_by()) == [1]
    view = quota({"free": "1/m", "pro": "5/m"}, key="ip", tier=by_header)(made(is_async))
    with pytest.raises(RuleError, match=r"has no tier 'prp'\. Known: 'free', 'pro'"):
        run(view, asked_by(tier="prp"))


API = Rule.make("api", {"free": "2/m", "team": "5/m; 9/h", "staff": None}, tier=by_header)


def test_the_subject_tells_the_default_tier_and_a_function_needs_the_request(settings: Any) -> None:
    assert [peek(TWO, subject, name="api").limit for subject in ("user:7", USER, "ip:192.0.2.1")] == [3, 3, 1]
    rules = {"sync": {"rate": THREE, "tier": by_header}, "async": {"rate": THREE, "tier": by_header_async}}
    settings.QUOTA = {"STORE": "memory", "RULES": rules}
    assert check("sync", asked_by(tier="pro")).limit == 5
    assert asyncio.run(acheck("async", asked_by(tier="pro"))).limit == 5
    with pytest.raises(RuleError, match="pass the request"):
        check("sync", "user:7")
    with pytest.raises(RuleError, match=r"tier=.*by_header_async is async, but the view is not"):
        quota(THREE, key="ip", tier=by_header_async)(made(is_async=False))


def test_the_named_tier_decides_and_all_tiers_share_the_count() -> None:
    assert [check(API, "org:7", tier="free").allowed for _ in range(3)] == [True, True, False]
    assert check(API, "org:7", 2, tier="team").remaining == 1
    assert peek(API, "org:7", tier="team").used == 4
    assert refund(API, "org:7", 1, tier="team").remaining == 2
    assert acquire(API, "org:7", tier="team", timeout=0).remaining == 1
    with reserve(API, "org:7", 1, tier="team") as hold:
        assert hold.settle(0).remaining == 1
    assert peek(API, "org:7", tier="staff").limit is None
    assert reset(API, "org:7", tier="free")
    assert asyncio.run(acheck(API, "org:7", tier="team")).remaining == 4
    request = asked_by(tier="free")  # it takes precedence over the tier of a request
    assert [check(API, request, tier="team").limit, check(API, request).limit] == [5, 2]
    decision = check_all([(API, "org:9", None, "team"), (API, "org:8", 2, "free")])  # an entry names it after the cost
    assert [(each.cost, each.remaining) for each in decision.outcomes] == [(1, 4), (1, 8), (2, 0)]
    with reserve_all([(API, "org:7", 3, "team")]) as hold:
        assert hold.cost == 3


def test_an_unknown_tier_is_an_error_with_those_that_there_are() -> None:
    calls: list[Any] = [check, peek, reserve, refund, reset]
    for call in calls:
        with pytest.raises(RuleError, match=r"^Rule 'api' has no tier 'Team'\. Known: 'free', 'team', 'staff'\."):
            call(API, "org:7", tier="Team")
    with pytest.raises(RuleError, match=r"^Rule '1/m' has no tier 'team'\. It has no tiers\."):
        check("1/m", "org:7", tier="team")


def test_an_override_applies_to_every_tier_in_one_call(settings: Any, monkeypatch: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"api": {"rate": TWO, "key": "user"}}}
    override("r 0 0 9/m", "api", "user:7")
    calls = calls_of(monkeypatch)
    assert check("api", asked_by(USER)).limit == 9
    assert calls == [1]
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


@pytest.mark.parametrize(
    ("exempt", "meta", "proxies", "expected"),
    [
        ({"10.0.0.0/8", NETWORK}, {}, [], FREE), (NETWORK, {"REMOTE_ADDR": "198.51.100.1"}, [], LIMITED),
        ("2001:db8::1", {"REMOTE_ADDR": "2001:db8::1"}, [], FREE),
        ("2001:db8::1", {"REMOTE_ADDR": "2001:db8::2"}, [], LIMITED),
        (NETWORK, {"REMOTE_ADDR": "::ffff:192.0.2.1"}, [], FREE),
        # A forged header exempts nobody; behind a trusted proxy the client's address counts.
        ("10.0.0.0/8", FORGED, [], LIMITED), ("10.0.0.0/8", FORGED, ["192.0.2.1"], FREE),
    ],
)  # fmt: skip
def test_an_address_in_the_network_is_exempt(
    exempt: Any, meta: dict[str, str], proxies: list[str], expected: list[int], settings: Any
) -> None:
    settings.QUOTA = {**settings.QUOTA, "TRUSTED_PROXIES": proxies}
    assert statuses(exempt, get(**meta)) == expected


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("user", "expected"),
    [
        (User(pk=1, is_staff=True), FREE), (User(pk=1), LIMITED), (AnonymousUser(), LIMITED),
        (User(pk=1, is_staff=True, is_active=False), LIMITED), (None, LIMITED),
    ],
)  # fmt: skip
def test_active_staff_is_exempt(is_async: bool, user: Any, expected: list[int]) -> None:
    request = get()
    if user is not None:
        request.user = user
    assert statuses("staff", request, is_async) == expected


@pytest.mark.parametrize(("function", "is_async"), [(is_partner, False), (is_partner, True), (is_partner_async, True)])
def test_a_true_answer_of_a_function_exempts_without_a_call(
    function: Any, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = calls_of(monkeypatch)
    assert statuses(["10.0.0.0/8", function], get(**PARTNER), is_async) == FREE
    assert calls == []
    assert statuses(["10.0.0.0/8", function], get(), is_async) == LIMITED
    with pytest.raises(RuleError, match=r"exempt=.*is_partner_async is async"):
        statuses(is_partner_async, get())


def test_a_configured_rule_takes_the_dotted_path_of_a_function(settings: Any) -> None:
    exempt = {"10.0.0.0/8", "tests.core.test_tiers.is_partner"}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"api": {"rate": "1/m", "exempt": exempt}}}
    view = quota(rule="api")(lambda request: HttpResponse())
    requests = [get(**PARTNER), get(**PARTNER), get(), get()]
    assert [run(view, request).status_code for request in requests] == [*FREE, *LIMITED]
