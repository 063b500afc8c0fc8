"""Rules by an argument of the URL, and by the session."""

import asyncio
from http.cookies import SimpleCookie
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.sessions.backends import cache, db, signed_cookies
from django.contrib.sessions.models import Session
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import ResolverMatch, path, re_path

from django_quota import quota
from django_quota.adapters import digest
from django_quota.exceptions import RuleError
from django_quota.types import QuotaRequest
from tests.support.calls import asubject_of, both, fetch, subject_of

IP = "ip:192.0.2.1"
UNKNOWN = "a" * 32


def request(**meta: Any) -> HttpRequest:
    return RequestFactory().get("/", **{"REMOTE_ADDR": "192.0.2.1", **meta})


def with_arguments(**kwargs: Any) -> HttpRequest:
    made = request()
    made.resolver_match = ResolverMatch(request, (), kwargs)
    return made


def test_the_argument_names_the_subject_and_without_it_the_ip() -> None:
    given: list[tuple[dict[str, Any], str]] = [
        ({"pk": 0}, "kwarg.pk:0"), ({"pk": "a+ip:1%\n"}, "kwarg.pk:a%2Bip:1%25%0A"), ({}, IP), ({"pk": None}, IP),
        ({"pk": ""}, IP), ({"pk": SimpleNamespace(a=1)}, "kwarg.pk:namespace(a=1)"),
    ]  # fmt: skip
    for kwargs, found in given:
        assert subject_of("kwarg:pk", with_arguments(**kwargs)) == found
    assert subject_of("kwarg:pk", request()) == IP
    with pytest.raises(RuleError, match=r"The URL argument 'pk' is a object.*__str__"):
        subject_of("kwarg:pk", with_arguments(pk=object()))


def shown(request: QuotaRequest, **_: Any) -> HttpResponse:
    return HttpResponse(request.quota.subject)


async def ashown(request: QuotaRequest, **_: Any) -> HttpResponse:
    return shown(request)


urlpatterns = [
    path("function/<int:pk>/", quota("2/m", key="kwarg:pk", name="function")(shown)),
    path("function-async/<int:pk>/", quota("2/m", key="kwarg:pk", name="function-async")(ashown)),
    path("settings/<int:pk>/", shown),
    re_path(r"^settings/(?:opt-(?P<pk>\w+)/)?$", shown),
    path("settings/fixed/", shown, {"pk": "fixed"}),
    path("who/", quota("9/m", key="session", name="who")(shown)),
    path("who-async/", quota("9/m", key="session", name="who-async")(ashown)),
]


@both
@pytest.mark.usefixtures("memory_store")
def test_decorators_and_rules_of_the_settings_limit_by_the_argument(kind: str, settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    rule = {"rate": "2/m", "key": "kwarg:pk", "match": "/settings/"}
    settings.QUOTA = {"STORE": "memory", "RULES": {"by-pk": rule}}
    settings.MIDDLEWARE = []
    for number, name in enumerate(("function", "function-async")):
        assert [ask(kind, f"/{name}/{pk}/")[0] for pk in (1, "01", 2, 1)] == [200, 200, 200, 429]
        assert ask(kind, f"/{name}/2/")[1] == "kwarg.pk:2"
        settings.MIDDLEWARE = ["django_quota.middleware.QuotaMiddleware"]
        assert ask(kind, f"/{name}/{number + 3}/")[1] == f"kwarg.pk:{number + 3}"
    for url, found in (("1", "1"), ("opt-ab", "ab"), ("fixed", "fixed")):
        assert ask(kind, f"/settings/{url}/") == (200, f"kwarg.pk:{found}")
    # without the argument or a view, by IP
    assert [ask(kind, f"/settings/{url}")[0] for url in ("", "", "404/no-view/")] == [200, 200, 429]


def ask(kind: str, url: str) -> tuple[int, str]:
    (answer,) = fetch(kind, url)
    return answer.status_code, answer.content.decode()


def with_session(session: Any) -> HttpRequest:
    made = request()
    made.session = session
    return made


def saved(of: Any = db) -> str:
    store = of.SessionStore()
    store["a"] = 1
    store.save()
    return str(store.session_key)


@pytest.mark.django_db
class TestSessions:
    def test_a_visitor_without_a_session_falls_back_to_the_ip_and_gets_none(self) -> None:
        flushed, over = db.SessionStore(saved()), db.SessionStore()
        flushed.flush()
        over.set_expiry(-1)
        over.save()
        unknown = [db.SessionStore(key) for key in ("short", UNKNOWN, over.session_key)]
        cookies = signed_cookies.SessionStore(saved(signed_cookies))
        Session.objects.exclude(pk=over.session_key).delete()
        sessions: list[Any] = [flushed, db.SessionStore(), *unknown, cookies, {}, None]
        for session in sessions:
            assert subject_of("session", with_session(session)) == IP
            assert session is flushed or not getattr(session, "modified", False)
        assert subject_of("session", request()) == IP
        assert Session.objects.get().pk == over.session_key

    def test_sessions_in_the_cache_count_too(self, settings: Any) -> None:
        settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
        key = saved(cache)
        assert subject_of("session", with_session(cache.SessionStore(UNKNOWN))) == IP
        assert subject_of("session", with_session(cache.SessionStore(key))) == f"session:{digest(key)}"
        asked = asubject_of("session", with_session(cache.SessionStore(key)))
        assert asyncio.run(asked) == f"session:{digest(key)}"

    @pytest.mark.usefixtures("memory_store")
    @pytest.mark.parametrize("order", [[0], [0, 1], [1, 0]])
    def test_a_site_limits_by_the_session(self, order: list[int], settings: Any) -> None:
        known = ("django.contrib.sessions.middleware.SessionMiddleware", "django_quota.middleware.QuotaMiddleware")
        settings.ROOT_URLCONF = __name__
        settings.MIDDLEWARE = [known[each] for each in order]
        name, key = settings.SESSION_COOKIE_NAME, saved()

        async def aget(cookie: str) -> Any:
            client = AsyncClient()
            client.cookies = SimpleCookie({name: cookie})
            return await client.get("/who-async/")

        def get(cookie: str) -> Any:
            client = Client()
            client.cookies = SimpleCookie({name: cookie})
            return client.get("/who/")

        for ask in (get, async_to_sync(aget)):
            assert ask(key).content.decode() == f"session:{digest(key)}"
            answer = ask(UNKNOWN)
            assert answer.content.decode() == "ip:127.0.0.1"
            assert Session.objects.count() == 1
            assert not answer.cookies.get(name, SimpleNamespace(value="")).value
