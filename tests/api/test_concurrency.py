"""`@concurrency` on views, and `at_once` in `RULES`: never more requests than the limit, and each slot is released."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_quota import check, concurrency, peek, quota, slot
from django_quota.adapters import SlotRule
from django_quota.core.errors import StoreBusy
from django_quota.exceptions import ConfigurationError, RuleError, StoreUnavailable
from django_quota.features.slots.renewal import renewer
from django_quota.testing import freeze
from tests.support.calls import both, fetch, get, run
from tests.support.commands import wait_until
from tests.support.counts import checks_of
from tests.support.outages import no_answer
from tests.support.processes import forks, in_child
from tests.support.slots import (
    calls,
    counting_held_up,
    forget,
    goes_away_after_an_answer,
    is_asked_for_by,
    is_count,
    nobody_renews,
)
from tests.support.steps import START

SITE_SLOT = {"at_once": 1, "match": "/export/"}
one = concurrency(1, name="view")


def held(name: str = "view", subject: str | None = None) -> int:
    return len(slot(name, 1, subject=subject).holders())


def plain(request: Any) -> HttpResponse:
    return HttpResponse(str(held() + held("exports")))


def plain_view(request: Any) -> HttpResponse:
    return HttpResponse("ok")


async def plain_async(request: Any) -> HttpResponse:
    return plain(request)


def says_async(request: Any) -> Any:
    return plain_async(request)


def of_class(view: Any) -> Any:
    async def aget(self: View, request: HttpRequest) -> HttpResponse:
        return await plain_async(request)

    return type("Own", (View,), {"get": aget if view is plain_async else lambda self, request: plain(request)})


def parts() -> Iterator[bytes]:
    yield b"a"
    yield b"%d" % (held() + held("exports"))


async def aparts() -> AsyncIterator[bytes]:
    for part in parts():
        yield part


def stream(request: HttpRequest) -> Any:
    return StreamingHttpResponse(parts())


async def astream(request: HttpRequest) -> Any:
    return StreamingHttpResponse(aparts())


def send_file(request: HttpRequest) -> Any:
    return FileResponse(Path(__file__).open("rb"))


urlpatterns = [
    path("export/", plain),
    path("export/async/", plain_async),
    path("export/stream/", stream),
    path("export/astream/", astream),
    path("other/", plain),
    path("stream/", one(stream)),
    path("astream/", one(astream)),
    path("twice/", concurrency(1, name="inner")(one(stream))),
]


@pytest.fixture(autouse=True)
def site(settings: Any, request: pytest.FixtureRequest) -> None:
    in_memory = {} if "either_store" in request.fixturenames else {"STORE": "memory"}
    settings.ROOT_URLCONF = __name__
    settings.QUOTA = {**settings.QUOTA, **in_memory, "RULES": {"exports": SITE_SLOT}}


def with_rules(settings: Any, **rules: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": rules}


def statuses(url: str, kind: str = "sync", times: int = 1) -> list[int]:
    return [response.status_code for response in fetch(kind, url, times)]


@pytest.mark.parametrize(
    "guarded",
    [
        one(plain), one(plain_async), one(says_async), one(of_class(plain).as_view()),
        one(of_class(plain_async)).as_view(), method_decorator(one, name="get")(of_class(plain_async)).as_view(),
    ],
)  # fmt: skip
def test_a_view_holds_a_slot_while_it_runs_and_who_finds_none_is_refused(guarded: Any) -> None:
    with freeze(START), slot("view", 1):
        refused = run(guarded)
    assert (refused.status_code, refused["Retry-After"], refused["RateLimit"]) == (429, "30", '"view";r=0;t=30')
    assert refused["RateLimit-Policy"] == '"view";q=1;qu="concurrent-requests"'
    assert "The limit is 1 at once. Please try again in 30 seconds." in refused.text
    assert [run(guarded).content for _ in range(2)] == [b"1", b"1"]
    assert held() == 0


@pytest.mark.parametrize(("kind", "url"), [("sync", "/export/"), ("async", "/export/async/"), ("async", "/export/")])
def test_requests_that_fit_share_a_slot_of_the_settings_until_they_are_answered(kind: str, url: str) -> None:
    with slot("exports", 1):
        (refused,) = fetch(kind, url)
        assert (refused.status_code, refused.headers["RateLimit"]) == (429, '"exports";r=0;t=30')
        assert statuses("/other/", kind) == [200]
    assert [response.content for response in fetch(kind, url, 2)] == [b"1", b"1"]
    assert held("exports") == 0


def test_slots_that_do_not_block_or_are_turned_off_let_everybody_in(settings: Any) -> None:
    request = get()
    with slot("view", 1):
        assert run(concurrency(1, name="view", block=False)(plain), request).content == b"1"
        assert (request.quota.allowed, request.quota.enforced) == (False, False)
        assert run(concurrency(1, "ip", name="view")(plain)).status_code == 200, "each address has its own"
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
        assert run(one(plain)).status_code == 200


def test_a_slot_of_the_settings_follows_the_options_of_concurrency(settings: Any) -> None:
    with_rules(
        settings,
        exports={**SITE_SLOT, "key": ["ip", "path"], "exclude": "/export/async/", "lease": "2m"},
        shown={**SITE_SLOT, "block": False},
        none={"rate": "0/m", "match": "/other/"},
    )
    with slot("exports", 1, subject="ip:127.0.0.1+path:/export/", lease=120), slot("shown", 1):
        (refused,) = fetch("sync", "/export/")
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "120")
        (allowed,) = fetch("sync", "/export/async/")
        assert (allowed.status_code, allowed.wsgi_request.quota.allowed) == (200, False)
    with pytest.raises(RuleError, match=r"\['exports'\] has no rate: it limits how many run at once"):
        check("exports", "user:1")


@pytest.mark.parametrize(("view", "is_outside"), [(plain, True), (plain_async, False)])
def test_it_stacks_with_quota_in_either_order(view: Any, is_outside: bool) -> None:
    limited = quota("2/m", name="rate")
    stacked = one(limited(view)) if is_outside else limited(one(view))
    first = run(stacked)
    assert first.content == b"1"
    policies = ['"rate";q=2;w=60', '"view";q=1;qu="concurrent-requests"']
    assert sorted(first.headers["RateLimit-Policy"].split(", ")) == policies
    with slot("view", 1):
        assert run(stacked).status_code == 429
    assert [run(stacked).status_code for _ in range(2)] == [200, 429]
    assert held() == 0


@pytest.mark.usefixtures("either_store")
@pytest.mark.parametrize("has_middleware", [True, False])
def test_a_refused_slot_gives_back_what_the_rules_of_the_request_took(settings: Any, has_middleware: bool) -> None:
    settings.MIDDLEWARE = ["django_quota.middleware.QuotaMiddleware"] if has_middleware else []

    @quota("1000/h", name="exports", cost=50, daily=True)
    @quota("1000/d", name="bytes", cost=50, settle=lambda request, response: 70)
    @concurrency(3, name="view")
    def export(request: HttpRequest) -> Any:
        return StreamingHttpResponse(iter([b"part"]))

    with freeze(START):
        responses = [export(get()) for _ in range(5)]
        assert [response.status_code for response in responses] == [200] * 3 + [429] * 2
        assert peek("1000/h", "ip:192.0.2.1", name="exports").remaining == 850
        assert '"exports";r=850' in responses[-1].headers["RateLimit"]
        assert checks_of("ip:192.0.2.1")["exports"] == (3, 0)
        for response in responses:
            response.close()


@both
def test_a_refused_slot_of_the_settings_gives_back_the_rules_and_the_other_slots(kind: str, settings: Any) -> None:
    rate = {"rate": "9/m", "match": "/", "cost": 3}
    with_rules(settings, rate=rate, first={"at_once": 1, "match": "/"}, exports=SITE_SLOT)
    with slot("exports", 1):
        assert statuses("/export/", kind, 5) == [429] * 5
    assert held("first") == 0
    assert peek("rate", "ip:127.0.0.1").remaining == 9
    asked: list[Any] = []
    with calls(before=lambda operation: asked.extend([operation] * bool(is_asked_for_by(operation)))):
        assert statuses("/export/", kind, 4) == [200] * 3 + [429]
    assert len(asked) == 6, "a request that a rule refuses asks for no slot"
    assert held("first") == held("exports") == 0


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_gives_the_slot_back_and_an_exceeded_quota_is_a_429(is_async: bool) -> None:
    def view(request: Any) -> HttpResponse:
        if request.method == "GET":
            check("0/m", "global").raise_if_refused()
        raise ZeroDivisionError

    async def aview(request: Any) -> HttpResponse:
        return view(request)

    limited = one(aview if is_async else view)
    assert run(limited).status_code == 429
    with pytest.raises(ZeroDivisionError):
        run(limited, get("post"))
    assert held() == 0


def test_a_view_whose_lease_is_lost_is_answered_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def view(request: Any) -> HttpResponse:
        forget("view")
        if request.method == "POST":
            stack.enter_context(no_answer())
        return HttpResponse("ok")

    for method, words in (("get", "longer than its lease"), ("post", "stays taken until its lease ends")):
        with ExitStack() as stack:
            assert one(view)(get(method)).status_code == 200
        assert words in caplog.text


@pytest.mark.parametrize(
    ("said", "statuses"), [(None, [200, 429]), ("allow", [200, 429]), ("local", [200, 429]), ("deny", [503, 503])]
)
def test_a_busy_process_counts_who_is_in_a_view_by_itself(said: Any, statuses: list[int]) -> None:
    limited = concurrency(1, on_unavailable=said, name="view")

    def view(request: Any) -> HttpResponse:
        return HttpResponse(str(limited(plain_view)(get()).status_code))

    with no_answer(StoreBusy("all connections are in use")):
        for _ in range(2):  # the slot is given back
            response = limited(view)(get())
            inner = int(response.content) if response.status_code == 200 else limited(view)(get()).status_code
            assert [response.status_code, inner] == statuses


@pytest.mark.parametrize("url", ["/stream/", "/twice/", "/astream/", "/export/stream/", "/export/astream/"])
def test_a_streaming_response_keeps_its_slots_until_it_is_sent(url: str) -> None:
    async def send() -> None:
        client, is_async = AsyncClient(), "astream" in url
        content: Any = (await client.get(url)).streaming_content  # type: ignore[attr-defined]
        first = await anext(content) if is_async else next(content)
        assert (await client.get(url)).status_code == 429
        rest = [part async for part in content] if is_async else list(content)
        assert (first, rest) == (b"a", [b"1"])
        assert held() == held("inner") == held("exports") == 0

    asyncio.run(send())


@pytest.mark.parametrize("view", [stream, send_file, astream])
@pytest.mark.parametrize("has_begun", [False, True])
def test_a_response_that_is_closed_before_its_end_gives_its_slot_back(view: Any, has_begun: bool) -> None:
    async def begin() -> Any:
        response = one(view)(get())
        response = await response if view is astream else response
        assert held() == 1
        assert view is not send_file or response.file_to_stream is not None  # the server may send it itself
        if has_begun and view is astream:
            content = aiter(response)
            assert await anext(content)
            await content.aclose()
        elif has_begun:
            assert next(iter(response))
        response.close()
        assert held() == 0

    asyncio.run(begin())


@pytest.mark.parametrize(
    ("options", "status", "allowed"),
    [({}, 503, False), ({"on_unavailable": "local"}, 200, True), ({"block": False}, 200, False)],
)
def test_without_an_answer_the_option_or_the_setting_says_what_happens_after_a_wait(
    options: Any, status: int, allowed: bool, settings: Any
) -> None:
    settings.QUOTA = {**settings.QUOTA, "ON_UNAVAILABLE": "deny"}
    slot("view", 1).acquire()
    request = get()
    with goes_away_after_an_answer():
        response = run(concurrency(1, name="view", wait=0.1, **options)(lambda _: HttpResponse()), request)
    assert (response.status_code, response.headers.get("Retry-After")) == (status, "1" if status == 503 else None)
    assert (request.quota.degraded, request.quota.allowed) == (True, allowed)


def let_in(said: Any, kind: str = "sync") -> Any:
    """Enter a renewed slot of one; return what holds it."""
    holding = SlotRule.make("view", 1, renew=True, on_unavailable=said).hold(get())
    refused = holding.__enter__() if kind == "sync" else asyncio.run(holding.__aenter__())
    assert refused is None
    return holding


def leave(holding: Any, kind: str = "sync") -> None:
    if kind == "sync":
        holding.__exit__(None, None, None)
    else:
        asyncio.run(holding.__aexit__(None, None, None))


let_in_by = pytest.mark.parametrize("said", ["allow", "local"])


@pytest.mark.usefixtures("renewed_often")
class TestLetInDuringAnOutage:
    @pytest.mark.usefixtures("either_store")
    @let_in_by
    @both
    def test_it_counts_when_the_store_answers_again_and_nobody_is_thrown_out(
        self, said: Any, kind: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        before = let_in(said)
        with no_answer():
            inside = let_in(said, kind)
        wait_until(lambda: held() == 2)
        leave(before)
        assert one(plain_view)(get()).status_code == 429, "it is above the limit no more, and holds the slot"
        leave(inside, kind)
        assert one(plain_view)(get()).status_code == 200
        assert (held(), "lease" in caplog.text) == (0, False)

    @pytest.mark.usefixtures("either_store")
    @pytest.mark.parametrize("is_done", [False, True], ids=["calls are lost", "replies are lost"])
    @let_in_by
    @both
    def test_who_leaves_during_the_outage_holds_nothing_afterwards(
        self, said: Any, kind: str, is_done: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        with no_answer(done=is_done):
            leave(let_in(said, kind), kind)
        wait_until(lambda: not renewer)
        assert (held(), "lease" in caplog.text) == (0, False)

    @let_in_by
    @both
    def test_who_leaves_after_a_renewal_whose_reply_was_lost_has_lost_no_lease(
        self, said: Any, kind: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        def lose(operation: Any) -> None:
            if is_count(operation):
                done.append(operation)
                raise StoreUnavailable("it is gone")

        done: list[Any] = []
        with calls(after=lose):
            with no_answer():
                inside = let_in(said, kind)
            wait_until(lambda: done)
        leave(inside, kind)
        assert (held(), "lease" in caplog.text) == (0, False)

    @pytest.mark.usefixtures("either_store")
    @both
    def test_who_leaves_while_it_is_being_counted_holds_nothing_afterwards(
        self, kind: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with counting_held_up() as (under_way, goes_on):
            with no_answer():
                inside = let_in("allow")
            assert under_way.wait(60)
            leave(inside, kind)
            goes_on.set()
            wait_until(nobody_renews)
        assert (held(), "lease" in caplog.text) == (0, False)

    def test_a_slot_that_is_not_renewed_is_not_taken_later(self) -> None:
        with no_answer():
            SlotRule.make("view", 1, on_unavailable="allow").hold(get()).__enter__()
        assert not renewer

    def test_a_stream_counts_until_it_is_sent(self) -> None:
        with no_answer():
            response = concurrency(1, name="view", renew=True, on_unavailable="allow")(stream)(get())
        wait_until(lambda: held() == 1)
        assert list(response) == [b"a", b"1"]
        assert held() == 0

    @forks
    def test_a_forked_process_leaves_the_counting_to_its_parent(self) -> None:
        with no_answer():
            inside = let_in("allow")
            assert in_child(lambda: len(renewer)) == 0
        wait_until(lambda: held() == 1)
        leave(inside)


@pytest.mark.parametrize(
    ("given", "words", "hint"),
    [
        ({"rate": "9/m"}, "'rate' cannot be combined with 'at_once'", "Write two rules"),
        ({"leese": 5}, "'leese' is not an option of a slot", "Did you mean 'lease'?"),
        ({"name": "x"}, "'name' is not an option of a slot", ""),
        ({"at_once": "3"}, "at_once='3' is not a whole number from 1 to 1,000,000", "Use, for example, 3."),
        ({"match": None}, "it has no 'match', so it limits nothing", "'match': '/export/'"),
        ({"match": "/export?"}, "match='/export?'", ""), ({"key": "usr"}, "key='usr'", "'user'"),
        ({"wait": "soon"}, "wait='soon'", ""), ({"on_unavailable": "open"}, "on_unavailable='open'", ""),
        ({"share": {"batch": 0.5}}, "No tier= says who is in tier 'batch'", ""),
    ],
)  # fmt: skip
def test_a_wrong_option_is_an_error_at_start_or_import(given: Any, words: str, hint: str, settings: Any) -> None:
    with_rules(settings, exports={**SITE_SLOT, **given})
    (found,) = run_checks(tags=["django_quota"])
    assert found.id == ("django_quota.E009" if "key" in given else "django_quota.E006")
    assert f"QUOTA[\"RULES\"]['exports']: {words}" in found.msg
    assert hint in str(found.hint)
    with pytest.raises(RuleError, match="exports"):
        fetch("sync", "/export/")
    if not {"rate", "name", "at_once", "match"} & {*given}:
        with pytest.raises(RuleError) as caught:
            concurrency(1, **given)
        assert words in str(caught.value)


def test_it_stands_on_views_only() -> None:
    wrong: list[tuple[Any, str]] = [
        (lambda: concurrency(plain), "has no limit"), (lambda: concurrency(0), "limit="),  # type: ignore[arg-type]
        (lambda: one(7), "not on a view"),  # type: ignore[type-var]
        (lambda: one(type("No", (), {})), "@concurrency on No"), (one(lambda: None), "a function that got no request"),
    ]  # fmt: skip
    for misused, words in wrong:
        with pytest.raises((RuleError, ConfigurationError), match=words):
            misused()


@pytest.mark.parametrize(
    ("given", "middleware", "code"),
    [({}, True, ""), ({}, False, "W003"), ({"match": "nowhere"}, True, "W006"), ({"key": "user"}, True, "W005")],
)
def test_the_checks_look_at_slots_as_at_rules(given: Any, middleware: bool, code: str, settings: Any) -> None:
    settings.MIDDLEWARE = ["django_quota.middleware.QuotaMiddleware"] if middleware else []
    with_rules(settings, exports={**SITE_SLOT, **given})
    found = run_checks(tags=["django_quota"])
    assert [str(each.id).removeprefix("django_quota.") for each in found][:1] == [code] * bool(code)
    assert all("'exports'" in each.msg for each in found)
