"""Limits on the operations of Django Ninja, with the real package: sync and async, and its throttles."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Optional

import pytest
from django.contrib.auth.models import User
from django.core.checks import run_checks
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from ninja import NinjaAPI, Router
from ninja.decorators import decorate_view
from ninja.security import APIKeyHeader, HttpBearer, django_auth

from django_quota import check, peek
from django_quota.adapters import limits_view
from django_quota.contrib import ninja as contrib
from django_quota.contrib.ninja import OperationRefused, install, limits
from django_quota.exceptions import QuotaExceeded, RuleError, StoreUnavailable
from django_quota.limiting.known_rules import known_rules
from tests.support.calls import calls_of, fetch

pytestmark = pytest.mark.usefixtures("memory_store")

# Ninja allows one API of a name in a process.
api, own, throttled = (NinjaAPI(urls_namespace=f"quota-tests-{name}") for name in ("api", "own", "throttles"))


class Token(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> str | None:
        return token if token != "wrong" else None


class AccountKey(APIKeyHeader):
    param_name = "X-Account"

    def authenticate(self, request: HttpRequest, key: str | None) -> Any:
        return SimpleNamespace(pk=int(key)) if key else None


def named(name: str) -> Any:
    """Return a new operation of this name, which is async if the name ends so."""

    def operation(request: HttpRequest, number: int = 1) -> float:
        return 1 / number

    async def in_the_loop(request: HttpRequest, number: int = 1) -> float:
        return 1 / number

    made: Any = in_the_loop if name.endswith("async") else operation
    made.__name__ = made.__qualname__ = name
    return made


PAID: Any = {"key": "ip", "cost": 100, "settle": lambda request, response: response.status_code}
api.get("/above", auth=Token())(limits("2/m", name="above")(named("above")))
limits("2/m", name="below")(api.get("/below", auth=Token())(named("below")))
api.get("/async", auth=Token())(limits("2/m", name="async")(named("async")))
api.get("/paid")(limits("1000/h", name="paid", **PAID)(named("paid")))
api.get("/paid-async")(limits("1000/h", name="paid", **PAID)(named("paid-async")))
api.get("/stacked")(limits("5/m", key="ip", name="wide")(limits("2/m", "9/h", key="global", name="narrow")(named("s"))))
api.get("/accounts", auth=AccountKey())(limits("1/m", name="accounts")(named("accounts")))
api.get("/users", auth=django_auth)(limits("1/m", name="users")(named("users")))
api.get("/planned", auth=Token())(limits(rule="search")(named("planned")))
api.get("/limits", auth=Token())(limits_view)
own.get("/refused")(limits("1/m", key="ip", name="refused")(named("refused")))


@own.get("/inside")
def inside(request: HttpRequest, away: bool = False) -> str:
    if away:
        raise StoreUnavailable("away")
    check("0/m", request, key="ip", name="inside").raise_if_refused()
    raise AssertionError


install(own)


class ByTenant(contrib.SimpleRateThrottle):
    """A throttle as a site has it: a rate without a scope, and a key of its own."""

    def get_cache_key(self, request: HttpRequest) -> str | None:
        return request.headers.get("X-Tenant")


by_auth, of_two, of_three = (contrib.AuthRateThrottle(rate) for rate in ("2/m", "9/h", "3/m"))
throttled.get("/both", auth=Token(), throttle=[by_auth, of_two])(named("both"))
throttled.get("/again", auth=Token(), throttle=[contrib.AuthRateThrottle("2/m"), of_three])(named("again"))
throttled.get("/anonymous", throttle=contrib.AnonRateThrottle("1/m"))(named("anonymous"))
throttled.get("/visitors", throttle=contrib.UserRateThrottle("1/m"))(named("visitors"))
throttled.get("/tenants", throttle=ByTenant("1/m"))(named("tenants"))
throttled.get("/handled")(limits("0/m", key="ip", name="handled")(named("handled")))


@throttled.exception_handler(OperationRefused)
def answer(request: HttpRequest, error: OperationRefused) -> HttpResponse:
    assert isinstance(error, QuotaExceeded)
    return HttpResponse(error.decision.rule, status=error.status_code)


def seen(response: Any) -> Any:
    response["X-Seen"] = "yes"
    return response


def unwrapped(run: Any) -> Any:
    """A decorator of a site that forgets `functools.wraps`."""
    return lambda request, **values: seen(run(request, **values))


router = Router()


decorated: Any = decorate_view(unwrapped)(named("sync"))
router.get("/sync")(limits("2/m", key="ip", name="unwrapped")(decorated))
api.add_router("/one", router)
own.add_router("/two", router)
urlpatterns = [path("api/", api.urls), path("own/", own.urls), path("throttled/", throttled.urls)]


@pytest.fixture(autouse=True)
def these_urls(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.QUOTA = {**settings.QUOTA, "RULES": {"search": {"rate": "1/m", "key": "ip"}}}


def get(url: str, token: str | None = None, **headers: str) -> Any:
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return fetch("async" if "async" in url else "sync", url, 1, **headers)[0]


def statuses(url: str, *tokens: str) -> list[int]:
    return [get(url, token).status_code for token in tokens]


# --- @limits ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["middleware", "no middleware"])
def with_middleware(request: pytest.FixtureRequest, settings: Any) -> None:
    """Have each test run with our middleware and without."""
    if not request.param:
        settings.MIDDLEWARE = [each for each in settings.MIDDLEWARE if "django_quota" not in each]


@pytest.mark.usefixtures("with_middleware")
@pytest.mark.parametrize("url", ["/api/paid", "/api/paid-async"])
def test_what_an_operation_took_is_settled_by_its_response(url: str) -> None:
    assert get(f"{url}?number=none").status_code == 422
    assert peek("1000/h", "ip:127.0.0.1", name="paid").remaining == 1_000 - 422
    with pytest.raises(ZeroDivisionError):
        get(f"{url}?number=0")
    assert peek("1000/h", "ip:127.0.0.1", name="paid").remaining == 1_000 - 422 - 500


@pytest.mark.usefixtures("with_middleware")
@pytest.mark.parametrize("name", ["above", "below", "async"])
def test_an_operation_is_limited_by_who_has_authenticated(name: str) -> None:
    url = f"/api/{name}"
    replies = [get(url, token) for token in ("ann", "ann", "ann", "bob")]
    assert [reply.status_code for reply in replies] == [200, 200, 429, 200]
    assert [reply["RateLimit"].partition(";t")[0] for reply in replies] == [
        f'"{name}";r={left}' for left in (1, 0, 0, 1)
    ]
    assert 0 < int(replies[2]["Retry-After"]) <= 60
    assert replies[2].json()["detail"].startswith("The limit is 2 per minute. Please try again in ")
    # An invalid request counts, and one without authentication does not.
    asked = [(url, "wrong"), (url, None), (f"{url}?number=x", "eve"), (url, "eve"), (f"{url}?number=x", "eve")]
    assert [get(*each).status_code for each in asked] == [401, 401, 422, 200, 429]


def test_the_limits_of_a_caller_are_those_of_its_token(settings: Any) -> None:
    plan = {"rate": "9000/h", "key": "django_quota.contrib.ninja.auth", "match": "api-of-the-plan"}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"search": plan}}
    assert get("/api/planned", "ann").status_code == 200
    found = [get("/api/limits", name).json()["limits"] for name in ("ann", "bob")]
    assert [(each["rule"], each["used"]) for (each,) in found] == [("search", 1), ("search", 0)]


def test_several_limits_of_an_operation_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = calls_of(monkeypatch)
    replies = [get("/api/stacked") for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert len(calls) == 3
    assert replies[0]["RateLimit-Policy"] == '"wide";q=5;w=60, "narrow-m";q=2;w=60, "narrow-h";q=9;w=3600'


@pytest.mark.django_db
def test_the_key_auth_takes_a_user_an_object_by_its_primary_key_or_a_digest(client: Client) -> None:
    assert [get("/api/accounts", **{"X-Account": pk}).status_code for pk in ("1", "1", "2")] == [200, 429, 200]
    client.force_login(User.objects.create_user("ann"))
    assert [client.get("/api/users").status_code for _ in range(2)] == [200, 429]
    assert check("1/m", User.objects.get(), name="users").remaining == 0
    request: Any = HttpRequest()
    request.auth = "secret-token"
    assert "secret" not in contrib.auth(request)
    request.auth = object()
    with pytest.raises(RuleError, match="identifies nobody"):
        contrib.auth(request)


def test_a_router_mounted_twice_is_limited_at_both_places_above_its_decorators() -> None:
    replies = [get(f"/{place}/sync") for place in ("api/one", "own/two", "api/one")]
    assert [(reply.status_code, reply["X-Seen"]) for reply in replies] == [(code, "yes") for code in (200, 200, 429)]


# --- the API's own answers --------------------------------------------------------------------------------------------


def test_install_or_an_exception_handler_answers_in_the_form_of_the_api() -> None:
    get("/own/refused")
    for url, status in (("/own/refused", 429), ("/own/inside", 429), ("/own/inside?away=1", 503)):
        reply = get(url)
        assert (reply.status_code, reply["Content-Type"].partition(";")[0]) == (status, "application/json")
        assert reply.json().keys() == ({"detail"} if url == "/own/inside" else {"detail", "retry_after"})
        if status == 429:
            assert (reply["Cache-Control"], "RateLimit" in reply) == ("no-store", True)
    handled = get("/throttled/handled")
    assert (handled.status_code, handled.content) == (429, b"handled")


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


def test_throttles_of_one_rate_share_what_they_count_and_say_when_to_try_again() -> None:
    """With Ninja's own, two rates of one class count each request twice."""
    assert statuses("/throttled/both", "ann", "ann", "ann", "bob") == [200, 200, 429, 200]
    assert statuses("/throttled/again", "ann", "bob", "bob") == [429, 200, 429]
    _, refused = [get("/throttled/anonymous") for _ in range(2)]
    assert (refused.status_code, refused.json()) == (429, {"detail": "Too many requests."})
    assert 0 < int(refused["Retry-After"]) <= 60


def test_a_throttle_with_a_key_of_its_own_counts_in_the_store() -> None:
    found = [get("/throttled/tenants", **{"X-Tenant": name}).status_code for name in ("a", "a", "b")]
    assert found == [200, 429, 200]
    assert [get("/throttled/tenants").status_code for _ in range(2)] == [200, 200]
    assert get("/throttled/tenants", **{"X-Tenant": "c"}).wsgi_request.quota.rule == f"ninja.{__name__}.ByTenant.1-60"


# --- checks -----------------------------------------------------------------------------------------------------------


def findings(settings: Any, code: str, site_api: NinjaAPI) -> list[Any]:
    settings.ROOT_URLCONF = type("URLs", (), {"urlpatterns": [path("api/", site_api.urls)]})
    return [each for each in run_checks(tags=["django_quota"]) if each.id == f"django_quota.{code}"]


def test_w027_an_api_that_answers_no_refusal(settings: Any) -> None:
    middleware, settings.MIDDLEWARE = settings.MIDDLEWARE, []
    bare, installed = (NinjaAPI(urls_namespace=f"quota-tests-{name}", title="Shop") for name in ("bare", "installed"))
    for each in (bare, installed):
        each.get("/one")(limits("2/m", name="one")(named("one")))
    install(installed)
    (found,) = findings(settings, "W027", bare)
    assert "The API Shop (quota-tests-bare" in found.msg
    assert findings(settings, "W027", installed) == []
    settings.MIDDLEWARE = middleware
    assert findings(settings, "W027", bare) == []


@pytest.mark.parametrize(
    ("throttle", "number", "trusted", "warns"),
    [
        pytest.param(contrib.AnonRateThrottle, None, [], True, id="by address"),
        pytest.param(contrib.UserRateThrottle, None, [], True, id="by user or address"),
        pytest.param(contrib.AnonRateThrottle, 1, [], False, id="by address, one proxy"),
        pytest.param(contrib.UserRateThrottle, 0, [], False, id="by user or address, no proxy"),
        pytest.param(contrib.AnonRateThrottle, None, ["10.0.0.1"], False, id="by address, a proxy that we trust"),
        pytest.param(ByTenant, None, [], False, id="by something else"),
    ],
)
def test_w028_a_throttle_that_is_told_of_no_proxies(
    throttle: Any, number: int | None, trusted: list[str], warns: bool, settings: Any, request: Any
) -> None:
    proxied = NinjaAPI(urls_namespace=f"quota-tests-{request.node.callspec.id}")
    proxied.get("/search", throttle=throttle("1/m"))(named("search"))
    settings.NINJA_NUM_PROXIES = number
    settings.QUOTA = {**settings.QUOTA, "TRUSTED_PROXIES": trusted}

    found = findings(settings, "W028", proxied)

    assert ["NINJA_NUM_PROXIES" in each.hint for each in found] == [True] * warns


@dataclass
class Claims:
    sub: str


@dataclass
class Account:
    pk: int


@pytest.mark.parametrize(
    ("returned", "key", "finds"),
    [
        pytest.param(dict[str, Any], "auth", True, id="a dict"),
        pytest.param(Claims | None, "auth", True, id="a dataclass or None"),
        pytest.param(Optional[Claims], "auth", True, id="Optional"),  # noqa: UP045 — as older code writes it
        pytest.param(Account, "auth", False, id="a dataclass with a pk"),
        pytest.param(dict[str, Any], lambda request: request.auth["sub"], False, id="a key of its own"),
        pytest.param(str, "auth", False, id="a string"),
        pytest.param(Any, "auth", False, id="anything"),
        pytest.param(None, "auth", False, id="None"),
    ],
)
def test_e035_an_authentication_that_identifies_nobody(returned: Any, key: Any, finds: bool, settings: Any) -> None:
    def authenticate(request: Any) -> Any: ...

    authenticate.__annotations__["return"] = returned
    typed = NinjaAPI(urls_namespace=f"quota-tests-{returned}-{finds}")
    typed.get("/search", auth=authenticate)(limits("1/m", key=key)(named("search")))
    found = findings(settings, "E035", typed)
    assert ["which identifies nobody" in each.msg and 'request.auth["sub"]' in each.hint for each in found] == [
        True
    ] * finds


def test_the_rules_of_operations_are_known_and_e024_is_a_name_of_no_rule(settings: Any) -> None:
    assert {"above", "below", "unwrapped"} <= set(known_rules())
    misspelt = NinjaAPI(urls_namespace="quota-tests-misspelt")
    misspelt.get("/search")(limits(rule="serch")(limits(rule="search")(named("search"))))
    (found,) = findings(settings, "E024", misspelt)
    assert (found.msg.startswith("@limits(rule='serch') on "), "'search'?" in found.hint) == (True, True)
