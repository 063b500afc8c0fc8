"""Limits on the operations of Django Ninja, with the real package: sync and async, and its throttles."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from types import SimpleNamespace
from typing import Any, Optional

import pytest
from django.contrib.auth.models import User
from django.core.checks import run_checks
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from ninja import NinjaAPI
from ninja.security import HttpBearer

from django_quota import Subject, check, peek
from django_quota.contrib import ninja as contrib
from django_quota.contrib.ninja import install, limits
from django_quota.exceptions import QuotaExceeded, RuleError
from django_quota.limiting.known_rules import known_rules
from django_quota.testing import freeze
from tests.contrib import ninja_site
from tests.contrib.ninja_site import ByTenant
from tests.support.calls import calls_of, fetch
from tests.support.outages import no_answer

pytestmark = pytest.mark.usefixtures("memory_store")

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
ANN = User(pk=1)


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = ninja_site.__name__
    settings.QUOTA = {**settings.QUOTA, "RULES": {"search": {"rate": "1/m", "key": "ip"}}}


def get(url: str, token: str | None = None, **headers: str) -> Any:
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return fetch("async" if "async" in url else "sync", url, 1, **headers)[0]


def statuses(url: str, *tokens: str | None) -> list[int]:
    return [get(url, token).status_code for token in tokens]


# --- @limits ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["middleware", "no middleware"])
def with_middleware(request: pytest.FixtureRequest, settings: Any) -> None:
    """Have each test run with our middleware and without."""
    if not request.param:
        settings.MIDDLEWARE = [each for each in settings.MIDDLEWARE if "django_quota" not in each]


def paid_left() -> int | None:
    return peek("1000/h", "ip:127.0.0.1", name="paid").remaining


@pytest.mark.usefixtures("with_middleware")
@pytest.mark.parametrize("url", ["/api/paid", "/api/paid-async"])
class TestSettling:
    def test_an_operation_is_settled_by_its_response(self, url: str) -> None:
        reply = get(f"{url}?number=none")

        assert reply.status_code == 422
        assert paid_left() == 1_000 - 422

    def test_an_operation_that_raises_is_settled_as_an_error_500(self, url: str) -> None:
        with pytest.raises(ZeroDivisionError):
            get(f"{url}?number=0")

        assert paid_left() == 1_000 - 500

    def test_each_response_is_settled_for_itself(self, url: str) -> None:
        get(f"{url}?number=none")
        get(url)

        assert paid_left() == 1_000 - 422 - 200


@pytest.mark.usefixtures("with_middleware")
@pytest.mark.parametrize("name", ["above", "below", "async"])
class TestCallers:
    """`@limits` is above the operation, below it, or on an async one."""

    def test_an_operation_is_limited_by_who_has_authenticated(self, name: str) -> None:
        found = statuses(f"/api/{name}", "ann", "ann", "ann", "bob")

        assert found == [200, 200, 429, 200]

    def test_each_response_says_what_its_caller_has_left(self, name: str) -> None:
        replies = [get(f"/api/{name}", token) for token in ("ann", "ann", "ann", "bob")]

        left = [reply["RateLimit"].partition(";t")[0] for reply in replies]
        assert left == [f'"{name}";r=1', f'"{name}";r=0', f'"{name}";r=0', f'"{name}";r=1']

    def test_a_refusal_says_when_to_try_again(self, name: str) -> None:
        *_, refused = [get(f"/api/{name}", "ann") for _ in range(3)]

        assert 0 < int(refused["Retry-After"]) <= 60
        assert refused.json()["detail"].startswith("The limit is 2 per minute. Please try again in ")

    def test_an_invalid_request_counts(self, name: str) -> None:
        urls = [f"/api/{name}?number=x", f"/api/{name}", f"/api/{name}?number=x"]

        found = [get(url, "eve").status_code for url in urls]

        assert found == [422, 200, 429]

    @pytest.mark.parametrize("token", ["wrong", None], ids=["a wrong token", "no token"])
    def test_a_request_that_fails_authentication_does_not_count(self, name: str, token: str | None) -> None:
        assert statuses(f"/api/{name}", token, token, token) == [401, 401, 401]


@pytest.mark.usefixtures("with_middleware")
@pytest.mark.parametrize("name", ["above", "below", "async"])
@pytest.mark.parametrize(("on_unavailable", "status"), [("deny", 503), ("allow", 200)])
def test_without_the_store_the_setting_says_whether_an_operation_answers(
    on_unavailable: str, status: int, name: str, settings: Any
) -> None:
    settings.QUOTA = {**settings.QUOTA, "ON_UNAVAILABLE": on_unavailable}

    with no_answer():
        reply = get(f"/api/{name}", "ann")

    assert (reply.status_code, reply.get("Retry-After")) == (status, "1" if status == 503 else None)


@pytest.mark.parametrize(("on_unavailable", "status"), [("deny", 429), ("allow", 200)])
def test_without_the_store_the_setting_says_whether_a_throttle_refuses(
    on_unavailable: str, status: int, settings: Any
) -> None:
    settings.QUOTA = {**settings.QUOTA, "ON_UNAVAILABLE": on_unavailable}

    with no_answer():
        reply = get("/throttled/anonymous")

    assert (reply.status_code, reply.get("Retry-After")) == (status, "1" if status == 429 else None)


def test_the_view_of_limits_shows_each_caller_their_own(settings: Any) -> None:
    plan = {"rate": "9000/h", "key": "django_quota.contrib.ninja.auth", "match": "api-of-the-plan"}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"search": plan}}
    assert get("/api/planned", "ann").status_code == 200

    found = [get("/api/limits", name).json()["limits"] for name in ("ann", "bob")]

    assert [(each["rule"], each["used"]) for (each,) in found] == [("search", 1), ("search", 0)]


class TestStackedLimits:
    def test_stacked_limits_refuse_by_the_tightest(self) -> None:
        assert statuses("/api/stacked", None, None, None) == [200, 200, 429]

    def test_stacked_limits_ask_the_store_once_a_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = calls_of(monkeypatch)

        statuses("/api/stacked", None, None, None)

        assert len(calls) == 3

    def test_the_header_lists_stacked_limits_from_the_outermost(self) -> None:
        reply = get("/api/stacked")

        assert reply["RateLimit-Policy"] == '"wide";q=5;w=60, "narrow-m";q=2;w=60, "narrow-h";q=9;w=3600'


IDENTIFY = (
    "Return a string, a user or an object with a `pk`, or give @limits a key= of your own, for example "
    'key=lambda request: request.auth["sub"].'
)


class TestKeyAuth:
    """Who is limited, by what Ninja's authentication returned."""

    def test_an_object_is_one_subject_by_its_primary_key(self) -> None:
        found = [get("/api/accounts", **{"X-Account": pk}).status_code for pk in ("1", "1", "2")]

        assert found == [200, 429, 200]

    @pytest.mark.django_db
    def test_a_user_of_django_is_limited(self, client: Client) -> None:
        client.force_login(User.objects.create_user("ann"))

        found = [client.get("/api/users").status_code for _ in range(2)]

        assert found == [200, 429]

    @pytest.mark.django_db
    def test_a_user_of_django_is_the_subject_of_other_checks(self, client: Client) -> None:
        user = User.objects.create_user("ann")
        client.force_login(user)
        client.get("/api/users")

        assert not check("1/m", user, name="users").allowed

    def test_a_token_is_kept_as_a_digest(self) -> None:
        request: Any = HttpRequest()
        request.auth = "secret-token"

        assert "secret" not in contrib.auth(request)

    def test_an_object_without_a_primary_key_is_an_error(self) -> None:
        request: Any = HttpRequest()
        request.auth = object()

        with pytest.raises(RuleError) as raised:
            contrib.auth(request)

        assert str(raised.value) == f"The authentication returned object, which identifies nobody. {IDENTIFY}"

    @pytest.mark.parametrize(
        ("returned", "subject"),
        [
            pytest.param(None, None, id="nobody"),
            pytest.param(Subject("org", 7), "org:7", id="a subject"),
            pytest.param(SimpleNamespace(pk=0), "SimpleNamespace.0", id="the primary key 0"),
            pytest.param(ANN, ANN, id="a user"),
        ],
    )
    def test_what_identifies_somebody_by_itself_stays(self, returned: Any, subject: Any) -> None:
        request: Any = HttpRequest()
        request.auth = returned

        assert contrib.auth(request) == subject

    def test_an_object_that_is_not_saved_yet_is_an_error(self) -> None:
        request: Any = HttpRequest()
        request.auth = SimpleNamespace(pk=None)

        with pytest.raises(RuleError, match="The authentication returned SimpleNamespace, which identifies nobody"):
            contrib.auth(request)

    def test_a_request_that_nobody_has_authenticated_is_limited_by_its_address(self) -> None:
        request: Any = HttpRequest()
        request.META["REMOTE_ADDR"] = "192.0.2.1"

        assert check("1/m", request, key=contrib.auth, name="any").subject == "ip:192.0.2.1"


@pytest.mark.parametrize(
    ("rates", "options"),
    [
        pytest.param(["2/m"], {}, id="a rate"),
        pytest.param([], {"key": "ip"}, id="an option"),
        pytest.param([], {"name": "own"}, id="a name"),
    ],
)
def test_an_argument_beside_a_rule_is_an_error(rates: list[str], options: Any) -> None:
    with pytest.raises(RuleError) as raised:
        limits(*rates, rule="search", **options)

    assert str(raised.value) == ("@limits(rule=...) takes everything from the rule, so it accepts no other arguments.")


class TestRouterMountedTwice:
    URLS = ("/api/one/sync", "/own/two/sync", "/api/one/sync")

    def test_both_places_share_one_limit(self) -> None:
        assert [get(url).status_code for url in self.URLS] == [200, 200, 429]

    def test_its_own_decorator_sees_each_response_also_a_refusal(self) -> None:
        assert [get(url)["X-Seen"] for url in self.URLS] == ["yes", "yes", "yes"]


# --- the API's own answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "status", "body"),
    [
        pytest.param(
            "/own/refused",
            429,
            {"detail": "The limit is 1 per minute. Please try again in 60 seconds.", "retry_after": 60},
            id="refused by @limits",
        ),
        pytest.param(
            "/own/inside",
            429,
            {"detail": "This is closed until further notice."},
            id="refused by a limit that admits nobody",
        ),
        pytest.param(
            "/own/away",
            503,
            {"detail": "This cannot be served right now. Please try again shortly.", "retry_after": 1},
            id="the store is unavailable",
        ),
    ],
)
def test_install_answers_in_the_form_of_the_api(url: str, status: int, body: dict[str, Any]) -> None:
    with freeze(NOON):
        get(url)

        reply = get(url)

    assert reply.status_code == status
    assert reply["Content-Type"].partition(";")[0] == "application/json"
    assert reply.json() == body


def test_a_503_of_install_is_not_logged_as_an_error_of_the_site(caplog: pytest.LogCaptureFixture) -> None:
    get("/own/away")

    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("url", ["/own/refused", "/own/inside"])
class TestRefusalsOfInstall:
    def test_a_refusal_is_never_cached(self, url: str) -> None:
        _, refused = [get(url) for _ in range(2)]

        assert refused["Cache-Control"] == "no-store"

    def test_a_refusal_has_the_header_of_limits(self, url: str) -> None:
        _, refused = [get(url) for _ in range(2)]

        assert "RateLimit" in refused


def test_an_exception_handler_of_the_site_answers_a_refusal() -> None:
    reply = get("/throttled/handled")

    assert reply.status_code == 429
    assert reply.content == b"handled: This is closed until further notice. None"


# --- throttles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "trusted", "came", "answered"),
    [
        pytest.param(1, [], ["203.0.113.1", "203.0.113.2"], [200, 200], id="one proxy, two clients"),
        pytest.param(
            1, [], ["203.0.113.1", "198.51.100.1, 203.0.113.1"], [200, 429], id="one proxy, a client that wrote more"
        ),
        pytest.param(
            2, [], ["203.0.113.1, 10.0.0.9", "203.0.113.2, 10.0.0.9"], [200, 200], id="two proxies, two clients"
        ),
        pytest.param(1, [], ["2001:db8::1", "2001:db8::2"], [200, 429], id="two addresses of one IPv6 network"),
        pytest.param(1, [], ["2001:db8::1", "2001:db8:1::1"], [200, 200], id="two IPv6 networks"),
        pytest.param(1, [], ["a", "b", "a"], [200, 200, 429], id="what is no address"),
        pytest.param(1, [], ["203.0.113.1:4711", "203.0.113.1:4712"], [200, 429], id="two ports of one client"),
        pytest.param(0, [], ["198.51.100.1", "198.51.100.2"], [200, 429], id="no proxy"),
        pytest.param(0, ["127.0.0.1"], ["198.51.100.1", "198.51.100.2"], [200, 429], id="no proxy, one that we trust"),
        pytest.param(None, [], ["198.51.100.1", "198.51.100.2"], [200, 429], id="not set"),
        pytest.param(
            None, ["127.0.0.1"], ["198.51.100.1", "198.51.100.2"], [200, 200], id="not set, a proxy that we trust"
        ),
    ],
)
def test_a_throttle_finds_clients_by_ninja_num_proxies(
    number: int | None, trusted: list[str], came: list[str], answered: list[int], settings: Any
) -> None:
    settings.NINJA_NUM_PROXIES = number
    settings.QUOTA = {**settings.QUOTA, "TRUSTED_PROXIES": trusted}

    found = [get("/throttled/visitors", **{"X-Forwarded-For": address}).status_code for address in came]

    assert found == answered


class TestThrottles:
    def test_two_rates_of_one_class_count_a_request_once(self) -> None:
        """With Ninja's own, two rates of one class count each request twice."""
        assert statuses("/throttled/both", "ann", "ann", "ann", "bob") == [200, 200, 429, 200]

    def test_each_rate_has_its_own_window(self) -> None:
        reply = get("/throttled/both", "ann")

        assert reply["RateLimit-Policy"] == '"2-60";q=2;w=60, "9-3600";q=9;w=3600'

    def test_throttles_of_one_rate_share_what_they_count(self) -> None:
        statuses("/throttled/both", "ann", "ann", "bob")

        assert statuses("/throttled/again", "ann", "bob", "bob") == [429, 200, 429]

    def test_a_refusal_has_the_body_that_ninja_gives_it(self) -> None:
        _, refused = [get("/throttled/anonymous") for _ in range(2)]

        assert refused.status_code == 429
        assert refused.json() == {"detail": "Too many requests."}

    def test_a_refusal_says_when_to_try_again(self) -> None:
        _, refused = [get("/throttled/anonymous") for _ in range(2)]

        assert 0 < int(refused["Retry-After"]) <= 60

    def test_a_refusal_waits_for_the_oldest_hit_alone(self) -> None:
        replies = []
        for seconds in (0, 50, 55):
            with freeze(NOON + timedelta(seconds=seconds)):
                replies.append(get("/throttled/again", "ann"))

        assert [reply.status_code for reply in replies] == [200, 200, 429]
        assert replies[2]["Retry-After"] == "5"

    @pytest.mark.usefixtures("with_middleware")
    def test_a_refusal_by_limits_shows_the_throttle_before_them(self) -> None:
        _, refused = [get("/throttled/mixed") for _ in range(2)]

        assert refused.status_code == 429
        assert refused["RateLimit-Policy"] == '"9-60";q=9;w=60, "mixed";q=1;w=60'

    def test_a_key_of_its_own_tells_who_is_limited(self) -> None:
        found = [get("/throttled/tenants", **{"X-Tenant": name}).status_code for name in ("a", "a", "b")]

        assert found == [200, 429, 200]

    def test_what_a_key_returns_is_stored_as_a_digest(self) -> None:
        reply = get("/throttled/tenants", **{"X-Tenant": "secret"})

        assert re.fullmatch("throttle:[0-9a-f]{32}", reply.wsgi_request.quota.outcomes[0].subject)

    def test_a_key_of_none_limits_nobody(self) -> None:
        assert statuses("/throttled/tenants", None, None) == [200, 200]

    def test_a_throttle_of_the_site_is_a_rule_named_by_its_class(self) -> None:
        reply = get("/throttled/tenants", **{"X-Tenant": "c"})

        assert reply.wsgi_request.quota.rule == f"ninja.{ninja_site.__name__}.ByTenant.1-60"

    def test_a_throttle_with_a_scope_is_a_rule_named_by_it(self) -> None:
        reply = get("/throttled/anonymous")

        assert reply.wsgi_request.quota.rule == "ninja.anon.1-60"

    def test_a_throttle_without_a_rate_limits_nobody(self) -> None:
        unlimited = type("Unlimited", (ByTenant,), {"scope": "free", "THROTTLE_RATES": {"free": None}})()
        request = RequestFactory().get("/", headers={"X-Tenant": "d"})

        assert [unlimited.allow_request(request) for _ in range(2)] == [True, True]


# --- checks -----------------------------------------------------------------------------------------------------------


def api_with(limit: Any, name: str, **options: Any) -> NinjaAPI:
    """Return a new API with one operation; its name must be new in this process."""

    def search(request: HttpRequest) -> str:
        return "ok"

    made = NinjaAPI(urls_namespace=f"quota-tests-{name}", title="Shop")
    made.get("/search", **options)(limit(search) if limit else search)
    return made


def serve(settings: Any, api: NinjaAPI) -> None:
    settings.ROOT_URLCONF = type("URLs", (), {"urlpatterns": [path("api/", api.urls)]})


def test_an_operation_may_count_by_the_network_of_the_address(settings: Any, client: Any) -> None:
    serve(settings, api_with(limits("1/m", key="ip/24", name="network"), "networks"))

    replies = [client.get("/api/search", REMOTE_ADDR=f"203.0.{each}") for each in ("113.9", "113.77", "114.1")]

    assert [reply.status_code for reply in replies] == [200, 429, 200]


def test_a_throttle_that_admits_nothing_names_no_wait(settings: Any) -> None:
    serve(settings, api_with(None, "closed", throttle=contrib.AnonRateThrottle("0/m")))

    refused = get("/api/search")

    assert (refused.status_code, "Retry-After" in refused) == (429, False)


def test_an_operation_may_answer_what_its_limit_refuses(settings: Any) -> None:
    api = NinjaAPI(urls_namespace="quota-tests-own-answers")

    @api.get("/search")
    @limits("1/m", key="ip", block=False)
    def search(request: Any) -> bool:
        return bool(request.quota.allowed)

    serve(settings, api)

    replies = [get("/api/search") for _ in range(2)]

    assert [(reply.status_code, reply.json()) for reply in replies] == [(200, True), (200, False)]


def test_an_operation_may_use_the_name_quota_on_its_request_for_something_else(settings: Any) -> None:
    api = NinjaAPI(urls_namespace="quota-tests-own-quota")

    @api.get("/search")
    @limits("1/m", key="ip")
    def search(request: Any) -> str:
        request.quota = {"left": 3}
        return "ok"

    settings.MIDDLEWARE = []
    serve(settings, api)

    assert get("/api/search").json() == "ok"


def test_an_exception_handler_sees_what_throttles_have_decided_too(settings: Any) -> None:
    seen: list[str] = []
    api = api_with(limits("0/m", key="ip", name="closed"), "seen", throttle=contrib.AnonRateThrottle("9/m"))

    @api.exception_handler(contrib.OperationRefused)
    def answer(request: HttpRequest, error: Any) -> HttpResponse:
        seen.extend(outcome.rule for outcome in error.decision.outcomes)
        return HttpResponse(status=418)

    serve(settings, api)

    assert get("/api/search").status_code == 418
    assert seen == ["ninja.anon.9-60", "closed"]


def findings(settings: Any, code: str, api: NinjaAPI) -> list[Any]:
    serve(settings, api)
    return [each for each in run_checks(tags=["django_quota"]) if each.id == f"django_quota.{code}"]


class TestW027AnApiThatAnswersNoRefusal:
    def test_it_is_found_by_its_name(self, settings: Any) -> None:
        settings.MIDDLEWARE = []

        (found,) = findings(settings, "W027", api_with(limits("2/m", name="one"), "bare"))

        assert found.msg == (
            "The API Shop (quota-tests-bare) does not answer what the limiter raises: a QuotaExceeded or "
            "StoreUnavailable in an operation becomes a 500."
        )
        assert found.hint == "Call install(api) of django_quota.contrib.ninja."

    def test_an_api_without_limits_needs_no_answers(self, settings: Any) -> None:
        settings.MIDDLEWARE = []

        assert findings(settings, "W027", api_with(None, "without-limits")) == []

    def test_install_answers_for_it(self, settings: Any) -> None:
        settings.MIDDLEWARE = []
        installed = api_with(limits("2/m", name="one"), "installed")
        install(installed)

        assert findings(settings, "W027", installed) == []

    def test_an_exception_handler_of_its_own_answers_for_it(self, settings: Any) -> None:
        settings.MIDDLEWARE = []
        handled = api_with(limits("2/m", name="one"), "handled")
        handled.add_exception_handler(QuotaExceeded, lambda request, error: HttpResponse(status=429))

        assert findings(settings, "W027", handled) == []

    def test_the_middleware_answers_for_it(self, settings: Any) -> None:
        assert findings(settings, "W027", api_with(limits("2/m", name="one"), "below-middleware")) == []


class OwnAddress(contrib.AnonRateThrottle):
    """A throttle that finds the address in a way of its own."""

    def get_ident(self, request: HttpRequest) -> str:
        return "192.0.2.1"


@pytest.mark.parametrize(
    ("throttles", "number", "proxies", "warns"),
    [
        pytest.param([contrib.AnonRateThrottle], None, {}, True, id="by address"),
        pytest.param([contrib.UserRateThrottle], None, {}, True, id="by user or address"),
        pytest.param([ByTenant, contrib.AuthRateThrottle], None, {}, True, id="the second of two by address"),
        pytest.param([contrib.AnonRateThrottle], 1, {}, False, id="by address, one proxy"),
        pytest.param([contrib.UserRateThrottle], 0, {}, False, id="by user or address, no proxy"),
        pytest.param(
            [contrib.AnonRateThrottle],
            None,
            {"TRUSTED_PROXIES": ["10.0.0.1"]},
            False,
            id="by address, a proxy that we trust",
        ),
        pytest.param(
            [contrib.AnonRateThrottle], None, {"TRUSTED_PROXY_COUNT": 1}, False, id="by address, a number of proxies"
        ),
        pytest.param([ByTenant], None, {}, False, id="by something else"),
        pytest.param([OwnAddress], None, {}, False, id="by an address that it finds itself"),
    ],
)
def test_w028_a_throttle_by_address_without_a_word_on_proxies(
    throttles: Any, number: int | None, proxies: dict[str, Any], warns: bool, settings: Any, request: Any
) -> None:
    proxied = api_with(None, request.node.callspec.id, throttle=[throttle("1/m") for throttle in throttles])
    settings.NINJA_NUM_PROXIES = number
    settings.QUOTA = {**settings.QUOTA, **proxies}

    found = findings(settings, "W028", proxied)

    text = (
        "A throttle of Ninja counts anonymous clients by the address that connects: behind a proxy all of them share "
        "one limit."
    )
    hint = 'Set NINJA_NUM_PROXIES: the number of your proxies, 0 for none. Or set QUOTA["TRUSTED_PROXIES"].'
    assert [(each.msg, each.hint) for each in found] == [(text, hint)] * warns


@dataclass
class Claims:
    sub: str


@dataclass
class Account:
    pk: int


@dataclass
class Member:
    number: int

    @property
    def pk(self) -> int:
        return self.number


@dataclass
class Named:
    name: str

    def __str__(self) -> str:
        return self.name


@pytest.mark.parametrize(
    ("returned", "key", "finds"),
    [
        pytest.param(dict[str, Any], "auth", True, id="a dict"),
        pytest.param(Claims | None, "auth", True, id="a dataclass or None"),
        pytest.param(Optional[Claims], "auth", True, id="Optional"),  # noqa: UP045 — as older code writes it
        pytest.param(str | dict[str, Any], "auth", True, id="a string or a dict"),
        pytest.param(Account, "auth", False, id="a dataclass with a pk"),
        pytest.param(Member, "auth", False, id="a dataclass with a property pk"),
        pytest.param(Named, "auth", False, id="a dataclass with a string of its own"),
        pytest.param("OnlyForTypeCheckers", "auth", False, id="a name that only type checkers know"),
        pytest.param(dict[str, Any], lambda request: request.auth["sub"], False, id="a key of its own"),
        pytest.param(str, "auth", False, id="a string"),
        pytest.param(Any, "auth", False, id="anything"),
        pytest.param(None, "auth", False, id="None"),
    ],
)
def test_e035_an_authentication_that_identifies_nobody(returned: Any, key: Any, finds: bool, settings: Any) -> None:
    def authenticate(request: Any) -> Any: ...

    authenticate.__annotations__["return"] = returned
    typed = api_with(limits("1/m", key=key), f"{returned}-{finds}", auth=authenticate)

    found = findings(settings, "E035", typed)

    assert [each.hint for each in found] == [IDENTIFY] * finds


def test_e035_is_found_of_the_method_of_a_class(settings: Any) -> None:
    class ByClaims(HttpBearer):
        def authenticate(self, request: HttpRequest, token: str) -> Claims | None:
            return Claims(token)

    (found,) = findings(settings, "E035", api_with(limits("1/m"), "claims", auth=ByClaims()))

    place = f"{__name__}.test_e035_is_found_of_the_method_of_a_class.<locals>.ByClaims.authenticate"
    assert found.msg == (
        f"{place} returns Claims, which identifies nobody. @limits on {__name__}.api_with.<locals>.search counts by "
        "it: each request will be a 500."
    )


@pytest.mark.parametrize("is_partial", [False, True], ids=["a name that only type checkers know", "no function"])
def test_e035_an_authentication_that_cannot_be_read_hides_no_other_one(is_partial: bool, settings: Any) -> None:
    def by_name(request: Any) -> Any: ...

    def by_claims(request: Any) -> Claims:
        return Claims("ann")

    by_name.__annotations__["return"] = "OnlyForTypeCheckers"
    unreadable = partial(by_name) if is_partial else by_name
    both = api_with(limits("1/m"), f"unreadable-{is_partial}", auth=[unreadable, by_claims])

    (found,) = findings(settings, "E035", both)

    assert ".by_claims returns Claims, which identifies nobody." in found.msg


def test_e035_is_found_for_one_of_two_limits(settings: Any) -> None:
    def authenticate(request: HttpRequest) -> dict[str, Any]:
        return {}

    def by_both(search: Any) -> Any:
        return limits("9/m", key="ip")(limits("1/m")(search))

    assert len(findings(settings, "E035", api_with(by_both, "two-limits", auth=authenticate))) == 1


class TestNamesOfRules:
    @pytest.mark.parametrize("name", ["above", "below", "unwrapped", "wide", "narrow", "posted"])
    def test_the_rules_of_operations_are_known(self, name: str) -> None:
        assert name in known_rules()

    def test_e024_a_name_that_no_rule_has(self, settings: Any) -> None:
        names = ("serch", "search", "searhc")
        misspelt = api_with(
            lambda search: reduce(lambda limited, name: limits(rule=name)(limited), reversed(names), search), "misspelt"
        )

        found = findings(settings, "E024", misspelt)

        assert [each.msg for each in found] == [
            f"@limits(rule={name!r}) on {__name__}.api_with.<locals>.search names an unknown rule."
            for name in ("serch", "searhc")
        ]
        assert all("'search'?" in each.hint for each in found)

    def test_e024_is_found_on_the_second_of_two_operations(self, settings: Any) -> None:
        two = api_with(limits(rule="search"), "second")
        two.get("/other")(limits(rule="serch")(lambda request: "ok"))

        (found,) = findings(settings, "E024", two)

        assert found.msg.startswith("@limits(rule='serch') on ")
