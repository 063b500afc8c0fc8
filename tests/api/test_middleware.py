"""The edge around a view: the middleware, what a rule's options do to a request, and Redis being gone."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.template import Context, Template
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import path
from django.utils.functional import SimpleLazyObject

from django_quota import Decision, acheck, check, concurrency, peek, quota
from django_quota.adapters import attach_decision, decide
from django_quota.exceptions import ConfigurationError, RuleError, StoreUnavailable
from django_quota.limiting.registry import get_limiter
from django_quota.middleware import QuotaMiddleware
from tests.support.calls import both, fetch, get, run
from tests.support.outages import no_answer

MEMORY = {"STORE": "memory"}


def made(kind: str, seen: list[Decision] | None = None) -> Callable[..., Any]:
    def plain(request: Any) -> HttpResponse:
        (seen if seen is not None else []).append(request.quota)
        return HttpResponse("ok")

    async def plain_async(request: Any) -> HttpResponse:
        return plain(request)

    return plain if kind == "sync" else plain_async


@both
@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("view", ["by-hand", "by-hand-async", "limited", "limited-async"])
def test_a_quota_exceeded_in_any_view_is_a_429_over_either_server(kind: str, view: str) -> None:
    replies = fetch(kind, f"/{view}/", 4)
    allowed = 3 if "limited" in view else 2
    assert [reply.status_code for reply in replies] == [200] * allowed + [429] * (4 - allowed)
    assert f'"{view}";r=0;t=' in replies[-1].headers["RateLimit"]
    assert 1 <= int(replies[-1].headers["Retry-After"]) <= 60


def refused_inside(request: HttpRequest) -> HttpResponse:
    check("0/m", request, name="inside").raise_if_refused()
    raise AssertionError


def test_a_refusal_by_hand_shows_beside_the_limits_of_the_decorator(memory_store: None) -> None:
    response = run(quota("9/m", name="outer")(refused_inside))
    assert response.status_code == 429
    assert response.headers["RateLimit-Policy"] == '"outer";q=9;w=60, "inside";q=0;w=60'
    request = get()
    request.quota = SimpleNamespace(outcomes="x")  # what another app calls so is left alone
    plain: Any = QuotaMiddleware(lambda r: HttpResponse())(request)
    assert "RateLimit" not in plain.headers


@both
@pytest.mark.usefixtures("memory_store")
class TestOptions:
    @pytest.fixture
    def of(self, kind: str) -> Callable[[str, Any], Any]:
        """Make a function of the request, sync or async: it reads a value of META."""

        def made(name: str, kind_of: Any) -> Any:
            def value(request: HttpRequest) -> Any:
                return kind_of(request.META.get(name, ""))

            async def avalue(request: HttpRequest) -> Any:
                return value(request)

            return avalue if kind == "async" else value

        return made

    def test_each_may_be_a_function_of_the_request(self, kind: str, of: Callable[[str, Any], Any]) -> None:
        view = quota(of("RATE", str), skip=of("SKIP", bool), cost=of("COST", int), key=of("KEY", str))(made(kind))
        given = {"RATE": "5/m", "COST": "3", "KEY": "a"}
        changes = [{}, {}, {"SKIP": "1"}, {"KEY": "b"}, {"COST": "2"}, {}, {"RATE": "50/m"}]

        found = [run(view, get(**{**given, **change})).status_code for change in changes]

        assert found == [200, 429, 200, 200, 200, 429, 200]

    @pytest.mark.parametrize("cost", ["1", None, -1, True], ids=repr)
    def test_a_cost_that_is_not_a_whole_number_is_an_error(
        self, kind: str, cost: Any, of: Callable[[str, Any], Any]
    ) -> None:
        view = quota("1/m", name="uploads", cost=of("PATH_INFO", lambda _: cost))(made(kind))

        with pytest.raises(RuleError, match=r"uploads.* is not a whole number"):
            run(view)

    def test_block_false_refuses_nothing(self, kind: str) -> None:
        seen: list[Decision] = []
        view = quota("1/m", name="soft", block=False)(quota("3/m", name="hard")(made(kind, seen)))

        assert [run(view).status_code for _ in range(4)] == [200, 200, 200, 429]
        assert [decision.allowed for decision in seen] == [True, False, False]
        assert (seen[1].rule, seen[1].outcomes[1].remaining) == ("soft", 1)
        assert '"soft";r=0' in run(view).headers["RateLimit"]

    def test_a_shadow_refuses_nothing(self, kind: str) -> None:
        view = quota("1/m", name="shade", shadow=True)(quota("2/m", name="other")(made(kind)))

        replies = [run(view) for _ in range(3)]

        assert [reply.status_code for reply in replies] == [200, 200, 429]
        assert [reply.headers["RateLimit-Policy"] for reply in replies] == ['"other";q=2;w=60'] * 3

    def test_a_shadow_logs_what_it_would_have_refused(self, kind: str, caplog: pytest.LogCaptureFixture) -> None:
        view = quota("1/m", name="shade", shadow=True)(made(kind))

        with caplog.at_level(logging.INFO, "django_quota"):
            for _ in range(2):
                run(view)

        assert "Shadow rule 'shade' would have refused 'ip:192.0.2.1'." in caplog.messages

    def test_the_settings_are_read_at_each_request(self, kind: str) -> None:
        view = quota(rule="search")(made(kind))
        rates: list[Any] = ["1/m", "0/s", None, {"rate": "0/m", "shadow": True}]
        statuses = []

        for rate in rates:
            with override_settings(QUOTA={**MEMORY, "RULES": {"search": rate}}):
                statuses.append(run(view).status_code)

        assert statuses == [200, 429, 200, 200]

    def test_the_settings_are_read_at_each_request_beside_a_limit_of_the_view(self, kind: str) -> None:
        view = quota("9/m", name="own")(quota(rule="search")(made(kind)))
        statuses = []

        for rate in ("1/m", "0/s"):
            with override_settings(QUOTA={**MEMORY, "RULES": {"search": rate}}):
                statuses.append(run(view).status_code)

        assert statuses == [200, 429]

    def test_a_rule_that_is_gone_from_the_settings_is_an_error(self, kind: str) -> None:
        view = quota(rule="search")(made(kind))

        with override_settings(QUOTA={**MEMORY, "RULES": {"serach": "1/m"}}), pytest.raises(RuleError, match="serach"):
            run(view)

    def test_a_request_without_an_address_is_an_error(self, kind: str) -> None:
        with pytest.raises(ConfigurationError, match="TRUSTED_PROXIES"):
            run(quota("1/m")(made(kind)), get(REMOTE_ADDR=""))


@pytest.mark.parametrize(
    ("quota", "error"),
    [
        pytest.param(5, ConfigurationError, id="settings"),
        pytest.param({"RULES": {"a": {"rate": "5/mx", "match": "/"}}}, RuleError, id="a rule"),
        pytest.param({"RULES": {"a": {"at_once": 0, "match": "/"}}}, RuleError, id="a slot"),
    ],
)
def test_what_is_wrong_in_the_settings_is_an_error_of_the_request_alone(
    quota: Any, error: type[Exception], settings: Any
) -> None:
    """A site starts, so that `check` can say what is wrong."""
    settings.QUOTA = quota

    middleware = QuotaMiddleware(lambda request: HttpResponse())

    with pytest.raises(error):
        middleware(get())


@pytest.fixture
def dead_redis(settings: Any) -> None:
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "unix:///nonexistent/closed.sock"}}


def no_rate(request: HttpRequest) -> None:
    """Return a rate that limits nothing."""


SOFT = quota("9/m", name="s", on_unavailable="deny", block=False)


@both
@pytest.mark.usefixtures("dead_redis")
class TestRedisIsGone:
    @pytest.mark.parametrize(
        ("default", "limits", "status"),
        [
            ("allow", [quota("1/m", on_unavailable="deny")], 503),
            ("deny", [quota("1/m")], 503),
            ("allow", [quota("1/m", on_unavailable="deny", block=False)], 200),
            # A denial that does not block hides no rule that does.
            ("allow", [quota("0/m", name="h", on_unavailable="deny"), SOFT], 503),
            ("allow", [quota("0/m", name="h", on_unavailable="local"), SOFT], 429),
            # A rule that is unlimited for this request, and a shadow, deny nobody.
            ("allow", [quota("9/m", name="a"), quota(no_rate, name="u", on_unavailable="deny")], 200),
            ("allow", [quota("1/m", shadow=True, on_unavailable="deny")], 200),
        ],
    )
    def test_a_rule_denies_as_it_says_or_the_setting(
        self, kind: str, default: str, limits: list[Any], status: int, settings: Any
    ) -> None:
        settings.QUOTA = {"ON_UNAVAILABLE": default}
        seen: list[Decision] = []
        view = made(kind, seen)
        for limit in limits:
            view = limit(view)
        response = run(view)
        assert (response.status_code, response.headers.get("Retry-After")) == (status, "1" if status == 503 else None)
        assert all(decision.degraded for decision in seen)

    @pytest.mark.parametrize("accept", ["application/json", "text/html"])
    @pytest.mark.parametrize("view", ["asks", "asks-async"])
    def test_what_a_view_lets_through_is_answered_as_a_rule_that_denies(
        self, kind: str, view: str, accept: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        def shown(path: str) -> tuple[Any, ...]:
            (reply,) = fetch(kind, path, Accept=accept)
            headers = {name: value for name, value in reply.headers.items() if name != "Content-Length"}
            return reply.status_code, headers, reply.content.decode().replace(path, "/here/")

        wanted = shown("/denies/")
        assert (wanted[0], wanted[1]["Retry-After"]) == (503, "1")
        assert [shown(f"/{view}/?what={what}") for what in ("counter", "once", "slot", "reset")] == [wanted] * 4
        assert fetch(kind, f"/{view}/?what=by-hand")[0].status_code == 503
        # Django logs no request: it mails each of these errors to ADMINS.
        logged = [record for record in caplog.records if record.name in ("django_quota.store", "django.request")]
        assert [record.levelname for record in logged] == ["ERROR"]


@pytest.mark.usefixtures("memory_store")
def test_the_503_of_a_view_has_the_limits_that_were_decided_before_it() -> None:
    request = get()
    middleware = QuotaMiddleware(lambda r: HttpResponse())
    run(quota("9/m", name="search")(made("sync")), request)

    response = middleware.process_exception(request, StoreUnavailable("it is gone"))

    assert response is not None
    assert (response.status_code, response.headers["RateLimit-Policy"]) == (503, '"search";q=9;w=60')


@pytest.mark.usefixtures("memory_store")
def test_a_refusal_of_an_outage_in_a_view_that_its_limit_allowed_is_a_503() -> None:
    @quota("9/m", name="outer")
    def asks_in_an_outage(request: Any) -> HttpResponse:
        with no_answer():
            check("5/m", request, name="inner", on_unavailable="deny").raise_if_refused()
        return HttpResponse()

    assert run(asks_in_an_outage).status_code == 503


@pytest.mark.usefixtures("memory_store")
def test_a_view_that_raises_the_decision_on_its_request_has_it_once() -> None:
    @quota("0/m", name="shown", block=False)
    def raises(request: Any) -> HttpResponse:
        request.quota.raise_if_refused()
        return HttpResponse()

    request = get()

    assert raises(request).status_code == 429
    assert [outcome.rule for outcome in request.quota.outcomes] == ["shown"]


@pytest.mark.usefixtures("memory_store")
def test_a_view_that_raises_a_part_of_the_decision_on_its_request_has_it_once() -> None:
    @quota("9/m", name="outer")
    def raises(request: Any) -> HttpResponse:
        own = decide(request, "0/m")
        attach_decision(request, own)
        own.raise_if_refused()
        return HttpResponse()

    request = get()

    assert raises(request).status_code == 429
    assert [outcome.rule for outcome in request.quota.outcomes] == ["outer", "0/m"]


@both
@pytest.mark.usefixtures("memory_store")
def test_a_view_that_is_called_twice_for_a_request_writes_its_headers_each_time(kind: str) -> None:
    view, request = quota("9/m", name="search")(made(kind)), get()
    run(view, request)

    again = run(view, request)

    assert "r=7" in again.headers["RateLimit"]


@both
@pytest.mark.usefixtures("memory_store")
def test_a_view_that_calls_itself_is_limited_at_each_call(kind: str, settings: Any) -> None:
    @quota("9/m", name="calls itself")
    def view(request: HttpRequest, times: int = 1) -> Any:
        return view(request, times - 1) if times else HttpResponse()

    settings.ROOT_URLCONF = type("URLs", (), {"urlpatterns": [path("itself/", view)]})

    fetch(kind, "/itself/")

    assert peek("9/m", "ip:127.0.0.1", name="calls itself").remaining == 7


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_subclass_may_decide_before_the_view_by_itself(kind: str) -> None:
    class Closed(QuotaMiddleware):
        def process_view(self, *given: Any) -> HttpResponse:
            return HttpResponse(status=418)

    response = Closed(made(kind)).process_view(get(), made(kind), (), {})

    assert response.status_code == 418


@pytest.mark.usefixtures("memory_store")
def test_an_error_of_the_store_that_leaves_a_view_is_an_outage() -> None:
    QuotaMiddleware(lambda r: HttpResponse()).process_exception(get(), StoreUnavailable("it is gone"))

    assert get_limiter().outages.is_on


# --- a refusal inside a view and the view's transaction, and what a site answers under ASGI ---------------------------

in_memory = pytest.mark.usefixtures("memory_store")


@in_memory
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("atomic", [True, False])
def test_a_refusal_in_a_view_rolls_its_transaction_back_where_there_is_one(
    atomic: bool, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", atomic)
    assert client.get("/writes/").status_code == 429
    assert User.objects.count() == (0 if atomic else 1)


@pytest.fixture
def other_database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A second database with a transaction around each request. It is never connected."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    monkeypatch.setitem(connections.settings, "other", dict(connection.settings_dict))
    other = connections["other"]
    other.in_atomic_block = True
    yield other
    del connections["other"]


@in_memory
@pytest.mark.django_db(transaction=True)
def test_a_refusal_in_a_view_rolls_its_transaction_back_in_each_database(other_database: Any) -> None:
    with transaction.atomic():
        quota("9/m", name="outside")(refused_inside)(get())

        assert (transaction.get_rollback(), other_database.needs_rollback) == (True, True)


@in_memory
@pytest.mark.django_db(transaction=True)
def test_a_refusal_in_a_view_without_a_transaction_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    User.objects.count()  # it is connected

    assert quota("9/m", name="outside")(refused_inside)(get()).status_code == 429


@in_memory
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("limit", [quota("9/m", name="outside"), concurrency(1, name="outside")], ids=["rate", "slot"])
def test_a_refusal_in_a_view_leaves_the_transaction_of_its_caller_alone(limit: Any) -> None:
    with transaction.atomic():
        User.objects.create_user("ann")
        assert limit(refused_inside)(get()).status_code == 429
        assert not transaction.get_rollback()


@in_memory
def test_a_template_shows_what_one_rule_has_left() -> None:
    page = Template("{% load quota %}{% with a=r.quota|of_rule:'api' %}{{ a.remaining }}{% endwith %}")

    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(page.render(Context({"r": request})))

    limited: Any = quota("5/m", name="api", key="ip")(quota("2/m", name="flood", key="ip")(view))
    assert limited(get()).content.decode() == "4"


@in_memory
@pytest.mark.parametrize("name", ["other", "api"], ids=["another rule", "a request that nothing limits"])
def test_a_template_shows_nothing_of_a_rule_that_did_not_limit_the_request(name: str) -> None:
    page = Template("{% load quota %}{% with a=r.quota|of_rule:name %}{{ a.remaining }}{% endwith %}")
    request = get()
    if name == "other":
        run(quota("5/m", name="api")(made("sync")), request)

    assert page.render(Context({"r": request, "name": name})) == ""


@pytest.mark.parametrize("value", [None, "", "9 left"], ids=["nothing", "an empty string", "a string"])
def test_a_template_shows_nothing_of_a_rule_where_there_is_no_decision(value: Any) -> None:
    page = Template("{% load quota %}{% with a=value|of_rule:'api' %}{{ a.remaining }}{% endwith %}")

    assert page.render(Context({"value": value})) == ""


def asks_the_database(request: HttpRequest, decision: Decision) -> HttpResponse:
    return HttpResponse(User.objects.get().username, status=429)


@quota("0/m")
async def refused_by_a_decorator(request: HttpRequest) -> HttpResponse:
    raise AssertionError


@quota("9/m")
async def refused_by_hand(request: HttpRequest) -> HttpResponse:
    (await acheck("0/m", request)).raise_if_refused()
    raise AssertionError


@concurrency(1, name="one")
async def in_a_slot(request: HttpRequest, depth: int = 1) -> HttpResponse:
    return await in_a_slot(request, depth - 1) if depth else HttpResponse()


@in_memory
@pytest.mark.parametrize("answer", ["function", "429.html", "mine.html"])
class TestAnswersUnderASGI:
    """What a site shows who is refused may ask the database, which must not happen in the event loop."""

    @pytest.fixture(autouse=True)
    def _answer(self, answer: str, settings: Any, transactional_db: None) -> None:
        User.objects.create(username="ann")
        if answer == "function":
            settings.QUOTA = {**settings.QUOTA, "RESPONSE": asks_the_database}
        else:
            loader = ("django.template.loaders.locmem.Loader", {answer: "{{ request.user.username }}"})
            options = {**settings.TEMPLATES[0]["OPTIONS"], "loaders": [loader]}
            settings.TEMPLATES = [{**settings.TEMPLATES[0], "APP_DIRS": False, "OPTIONS": options}]
            settings.QUOTA = {**settings.QUOTA, "TEMPLATE": answer}

    @pytest.mark.parametrize("view", [refused_by_a_decorator, refused_by_hand, in_a_slot], ids=lambda v: v.__name__)
    def test_of_a_view(self, view: Any) -> None:
        request = RequestFactory().get("/", headers={"Accept": "text/html"})
        request.user = SimpleLazyObject(User.objects.get)  # type: ignore[assignment]
        reply: Any = run(view, request)
        assert (reply.status_code, reply.text) == (429, "ann")

    def test_of_the_middleware(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"shut": {"rate": "0/m", "match": "/"}}}

        async def ask() -> list[Any]:
            client = AsyncClient()
            await client.aforce_login(await User.objects.aget())
            return [await client.get(path, headers={"Accept": "text/html"}) for path in ("/free/", "/nowhere/")]

        assert [(reply.status_code, reply.text) for reply in asyncio.run(ask())] == [(429, "ann")] * 2
