"""`at_once` in `RULES`: a slot for all requests that a `match` fits, held until the response is finished."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from django.core.checks import run_checks
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient
from django.urls import path

from django_quota import check, peek, slot
from django_quota.exceptions import RuleError
from tests.support.calls import both, fetch
from tests.support.slots import calls, is_asked_for_by

SITE_SLOT = {"at_once": 1, "match": "/export/"}

answer: list[Callable[[], HttpResponse]] = []
"""What the views below do, if not to tell who holds the slot."""


def held(name: str = "exports", subject: str | None = None) -> int:
    return len(slot(name, 1, subject=subject).holders())


def export(request: HttpRequest, **_: str) -> HttpResponse:
    return answer[-1]() if answer else HttpResponse(str(held()))


async def aexport(request: HttpRequest) -> HttpResponse:
    return export(request)


def stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse([b"a", b"b"])


async def astream(request: HttpRequest) -> StreamingHttpResponse:
    async def parts() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    return StreamingHttpResponse(parts())


urlpatterns = [
    path("export/", export),
    path("export/async/", aexport),
    path("export/stream/", stream),
    path("export/astream/", astream),
    path("other/", export),
]


@pytest.fixture(autouse=True)
def site(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.ROOT_URLCONF = __name__
    settings.QUOTA = {**settings.QUOTA, "RULES": {"exports": SITE_SLOT}}
    monkeypatch.setattr(f"{__name__}.answer", [])


def with_rules(settings: Any, **rules: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "STORE": "memory", "RULES": rules}


def statuses(url: str, kind: str = "sync", times: int = 1) -> list[int]:
    return [response.status_code for response in fetch(kind, url, times)]


@both
@pytest.mark.parametrize("url", ["/export/", "/export/async/"])
@pytest.mark.usefixtures("either_store")
def test_requests_that_fit_share_a_slot_until_they_are_answered(kind: str, url: str) -> None:
    with slot("exports", 1):
        (refused,) = fetch(kind, url)
        assert (refused.status_code, refused.headers["RateLimit"]) == (429, '"exports";r=0;t=30')
        assert statuses("/other/", kind) == [200]
    assert [response.content for response in fetch(kind, url, 2)] == [b"1", b"1"]
    assert held() == 0


@pytest.mark.parametrize("url", ["/export/stream/", "/export/astream/"])
def test_a_streaming_response_keeps_the_slot_until_its_end(url: str, memory_store: None) -> None:
    async def go() -> None:
        client = AsyncClient()
        response: Any = await client.get(url)
        content = response.streaming_content
        assert (await anext(content) if url == "/export/astream/" else next(content)) == b"a"
        assert (await client.get("/export/")).status_code == 429
        response.close()  # as the server does when the client goes away
        assert held() == 0

    asyncio.run(go())


def test_a_task_that_is_cancelled_gives_every_slot_back(memory_store: None, settings: Any) -> None:
    with_rules(settings, exports=SITE_SLOT, all={"at_once": 5, "match": "/", "key": "ip"})

    async def go() -> None:
        inside, parts = asyncio.Event(), []

        async def wait(*_: object) -> HttpResponse:
            parts.append((held(), held("all", "ip:127.0.0.1")))
            inside.set()
            await asyncio.Event().wait()
            raise AssertionError

        settings.ROOT_URLCONF = type("URLs", (), {"urlpatterns": [path("export/", wait)]})
        request = asyncio.create_task(AsyncClient().get("/export/"))
        await inside.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert (parts, held(), held("all", "ip:127.0.0.1")) == ([(1, 1)], 0, 0)

    asyncio.run(go())


@both
def test_a_refusal_gives_back_what_the_rules_and_the_other_slots_took(
    kind: str, memory_store: None, settings: Any
) -> None:
    rate = {"rate": "9/m", "match": "/", "cost": 3}
    with_rules(settings, rate=rate, first={"at_once": 1, "match": "/"}, exports=SITE_SLOT)
    with slot("exports", 1):
        assert statuses("/export/", kind, 5) == [429] * 5
    assert held("first") == 0
    assert peek("rate", "ip:127.0.0.1").remaining == 9
    assert statuses("/export/", kind, 4) == [200, 200, 200, 429]
    assert held("first") == held() == 0


def test_a_request_that_a_rule_refuses_asks_for_no_slot(memory_store: None, settings: Any) -> None:
    with_rules(settings, none={"rate": "0/m", "match": "/"}, exports=SITE_SLOT)
    asked: list[Any] = []
    with calls(before=lambda operation: asked.append(is_asked_for_by(operation))):
        assert statuses("/export/") == [429]
    assert not any(asked)


def test_it_follows_the_options_of_concurrency(memory_store: None, settings: Any) -> None:
    with_rules(
        settings,
        exports={**SITE_SLOT, "key": ["ip", "path"], "exclude": "/export/async/", "lease": "2m"},
        shown={**SITE_SLOT, "block": False},
    )
    with slot("exports", 1, subject="ip:127.0.0.1+path:/export/", lease=120), slot("shown", 1):
        (refused,) = fetch("sync", "/export/")
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "120")
        (allowed,) = fetch("sync", "/export/async/")
        assert (allowed.status_code, allowed.wsgi_request.quota.allowed) == (200, False)


@pytest.mark.parametrize(("how", "status"), [("allow", 200), ("deny", 503), ("local", 200)])
def test_without_a_store_on_unavailable_says_what_happens(how: str, status: int, settings: Any) -> None:
    settings.CACHES = {
        "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"},
    }
    settings.QUOTA = {"RULES": {"exports": {**SITE_SLOT, "on_unavailable": how}}}
    answer.append(HttpResponse)
    assert statuses("/export/") == [status]


@pytest.mark.parametrize(
    ("given", "words", "hint"),
    [
        ({"at_once": 3, "rate": "9/m"}, "'rate' does not go with 'at_once'", "Write two rules"),
        ({"at_once": 3, "cost": 2}, "'cost' does not go with 'at_once'", "Write two rules"),
        ({"at_once": 3, "leese": 5}, "'leese' is not an option of a slot", "Did you mean 'lease'?"),
        ({"at_once": 3, "name": "x"}, "'name' is not an option of a slot", ""),
        ({"at_once": "3"}, "at_once='3' is not a whole number from 1 to 1,000,000", "Use, for example, 3."),
        ({"at_once": 0}, "at_once=0", ""), ({"at_once": True}, "at_once=True", ""),
        ({"at_once": 3, "match": None}, "it has no 'match', so it limits nothing", "'match': '/export/'"),
        ({"at_once": 3, "match": "/export?"}, "match='/export?'", ""),
        ({"at_once": 3, "exclude": "a b"}, "exclude='a b'", ""), ({"at_once": 3, "key": "usr"}, "key='usr'", "'user'"),
        ({"at_once": 3, "wait": "soon"}, "wait='soon'", ""), ({"at_once": 3, "block": 1}, "block=1", ""),
        ({"at_once": 3, "on_unavailable": "open"}, "on_unavailable='open'", ""),
        ({"at_once": 3, "renew": 1}, "renew=1", ""),
        ({"atonce": 3}, "'atonce' is not an option of a rule", "'at_once'"),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_an_error_at_start(given: Any, words: str, hint: str, settings: Any) -> None:
    with_rules(settings, exports={"match": "/export/", **given})
    (found,) = run_checks(tags=["django_quota"])
    assert found.id == ("django_quota.E009" if "key" in given else "django_quota.E006")
    assert f"QUOTA[\"RULES\"]['exports']: {words}" in found.msg
    assert hint in str(found.hint)
    with pytest.raises(RuleError, match="exports"):
        fetch("sync", "/export/")


def test_a_slot_is_no_rule(memory_store: None) -> None:
    with pytest.raises(RuleError, match=r"\['exports'\] has no rate: it limits how many run at once"):
        check("exports", "user:1")


@pytest.mark.parametrize(
    ("given", "middleware", "code"),
    [
        ({}, True, None), ({}, False, "W003"), ({"match": "nowhere"}, True, "W006"),
        ({"key": "user"}, True, "W005"), ({"key": ("ip", "user")}, False, "W003"),
    ],
)  # fmt: skip
def test_the_checks_look_at_slots_as_at_rules(given: Any, middleware: bool, code: str | None, settings: Any) -> None:
    settings.MIDDLEWARE = ["django_quota.middleware.QuotaMiddleware"] if middleware else []
    with_rules(settings, exports={**SITE_SLOT, **given})
    found = run_checks(tags=["django_quota"])
    assert [str(each.id).removeprefix("django_quota.") for each in found][:1] == ([code] if code else [])
    assert all("'exports'" in each.msg for each in found)
