"""Live events: polled or streamed, nothing missed or shown twice, one connection for any number of viewers."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
import redis
from django.apps import apps
from django.contrib.auth.management import create_permissions
from django.template.loader import render_to_string
from django.test import Client
from django.utils import translation

from django_quota import check
from django_quota.admin import live
from django_quota.clock import SECOND
from django_quota.events import BEGINNING, Event
from django_quota.feeds import SHOWN, Feed, News, feed_of, is_entry_id
from django_quota.limiter import get_limiter
from django_quota.stores.redis import RedisStore
from django_quota.testing import RedisServer
from tests.admin.operators import operator
from tests.commands import PATIENCE, wait_until
from tests.conftest import caches

EVENTS = "/admin/django_quota/overview/events/"
STREAM = "/admin/django_quota/overview/stream/"


def store() -> RedisStore:
    found = get_limiter().store
    assert isinstance(found, RedisStore)
    return found


def refuse(*numbers: int) -> None:
    """Refuse a subject for each of these numbers: an event each."""
    for number in numbers:
        check("0/m", f"user:{number}", name="a")


def subjects(events: list[Any]) -> list[str | None]:
    return [event.subject for event in events]


@pytest.fixture
def client(database: dict[str, Any]) -> Client:
    create_permissions(apps.get_app_config("django_quota"), verbosity=0)
    return operator("view_overview", "view_subject")


@pytest.mark.usefixtures("redis_cache")
class TestPolling:
    def test_it_gives_what_came_behind_the_last_one(self, client: Client) -> None:
        refuse(1, 2)
        first = client.get(EVENTS, {"after": BEGINNING}).json()
        assert first["html"].count("<li") == 2
        assert client.get(EVENTS, {"after": first["last"]}).json() == {"last": first["last"], "html": ""}
        refuse(3)
        more = client.get(EVENTS, {"after": first["last"]}).json()
        assert more["html"].count("<li") == 1
        assert 'href="/admin/django_quota/subject/?subject=user%3A3"' in more["html"]

    def test_of_many_it_gives_the_newest_the_oldest_first(self, client: Client) -> None:
        refuse(*range(SHOWN + 5))
        html = client.get(EVENTS).json()["html"]
        assert html.count("<li") == SHOWN
        assert "user:4<" not in html
        assert html.index("user:5<") < html.index(f"user:{SHOWN + 4}<")

    @pytest.mark.parametrize(
        "given", ["", "x", "1", "-", "1-", "1-2-3", "-1-2", "+", "(1-0", "1-0 COUNT", "²-0", "9" * 50]
    )
    def test_what_is_no_id_is_refused(self, client: Client, given: str) -> None:
        assert client.get(EVENTS, {"after": given}).status_code == 400

    def test_an_entry_of_somebody_else_is_passed_over(self, client: Client, raw: redis.Redis) -> None:
        raw.xadd("quota:1:{!}:events", {"foreign": "entry"})
        answer = client.get(EVENTS, {"after": BEGINNING}).json()
        assert answer["html"] == ""
        assert answer["last"] != BEGINNING

    def test_a_server_that_sends_no_streams_says_so(self, client: Client) -> None:
        assert client.get(STREAM).status_code == 406


@pytest.mark.usefixtures("memory_store")
def test_the_memory_store_has_no_events(client: Client) -> None:
    assert client.get(EVENTS).json() == {"last": BEGINNING, "html": ""}
    assert client.get(STREAM).status_code == 406


def test_ids_are_told_from_what_is_none() -> None:
    assert is_entry_id("1763700000000-0")
    assert not is_entry_id("1763700000000")


async def until(holds: Callable[[], Any]) -> None:
    """Wait for a condition without holding up the event loop."""
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 — what is waited for tells nobody
            await asyncio.sleep(0.005)


async def first(feed: Feed, after: str | None, count: int) -> list[str | None]:
    """Follow a feed until so many events have come; return whom they are about."""
    found: list[str | None] = []
    async with asyncio.timeout(PATIENCE), aclosing(feed.follow(after, 30)) as news:
        async for each in news:
            found += subjects(each.events)
            if len(found) >= count:
                break
    return found


@pytest.mark.usefixtures("redis_cache")
class TestAFeed:
    def test_it_begins_behind_what_was_seen_last(self) -> None:
        refuse(1, 2)
        seen = live.newest(BEGINNING)[0].id

        async def follow() -> list[str | None]:
            return await first(feed_of(store(), "quota"), seen, 1)

        assert asyncio.run(follow()) == ["user:2"]

    def test_what_comes_while_it_begins_is_neither_missed_nor_given_twice(self) -> None:
        async def follow() -> list[list[str | None]]:
            feed = feed_of(store(), "quota")
            writing = asyncio.create_task(asyncio.to_thread(refuse, *range(30)))
            viewers = []
            for _ in range(5):
                viewers.append(asyncio.create_task(first(feed, BEGINNING, 30)))
                await asyncio.sleep(0)
            found = await asyncio.gather(*viewers)
            await writing
            return found

        expected = [f"user:{number}" for number in range(30)]
        assert asyncio.run(follow()) == [expected] * 5

    def test_fifty_viewers_take_one_connection_and_none_is_left_behind(self, raw: redis.Redis) -> None:
        async def follow() -> tuple[int, list[list[str | None]], int, bool]:
            feed = feed_of(store(), "quota")
            viewers = [asyncio.create_task(first(feed, None, 1)) for _ in range(50)]
            seen: list[int] = []  # between two reads none is blocked for a moment

            def is_blocked() -> bool:
                if feed.viewers == 50:
                    seen.append(blocked(raw))
                return len(seen) > 20 and seen[-1] > 0

            await until(is_blocked)
            await asyncio.to_thread(refuse, 7)
            found = await asyncio.gather(*viewers)
            return max(seen), found, feed.viewers, feed._reader is None

        waiting, found, viewers, is_over = asyncio.run(follow())
        assert waiting == 1
        assert found == [["user:7"]] * 50
        assert (viewers, is_over) == (0, True)
        wait_until(lambda: blocked(raw) == 0)

    def test_without_news_it_says_that_it_is_alive(self) -> None:
        async def follow() -> News:
            async with aclosing(feed_of(store(), "quota").follow(None, 0.01)) as news:
                return await anext(news)

        assert asyncio.run(follow()).events == []

    def test_who_is_too_slow_is_shown_the_newest(self) -> None:
        async def follow() -> list[str | None]:
            async with aclosing(feed_of(store(), "quota").follow(None, 30)) as news:
                waiting = asyncio.ensure_future(anext(news))
                feed = feed_of(store(), "quota")
                await until(lambda: feed._reader)
                await asyncio.to_thread(refuse, 1)
                found = subjects((await waiting).events)
                await asyncio.to_thread(refuse, *range(2, SHOWN + 20))
                last = live.newest(BEGINNING)[-1].id
                await until(lambda: feed._last == last)
                return found + subjects((await anext(news)).events)

        found = asyncio.run(follow())
        assert found == ["user:1", *(f"user:{number}" for number in range(20, SHOWN + 20))]

    def test_a_language_and_a_permission_are_the_viewers_own(self) -> None:
        refuse(1)
        events = [entry.event for entry in live.newest(BEGINNING) if entry.event is not None]
        with translation.override("de"):
            with_links = live._rendering("/there/")
        assert 'href="/there/?subject=user%3A1"' in with_links(events)
        assert translation.get_language() != "de"
        assert "href" not in live._rendering("")(events)


def blocked(raw: redis.Redis) -> int:
    return int(raw.info("clients")["blocked_clients"])


def test_a_feed_goes_on_when_its_connection_has_broken(settings: Any, redis_server: RedisServer) -> None:
    async def follow() -> list[str | None]:
        feed = feed_of(store(), "quota")
        viewer = asyncio.create_task(first(feed, None, 2))
        await until(lambda: feed._reader)
        await asyncio.to_thread(refuse, 1)
        await until(lambda: feed._recent)
        with redis.Redis.from_url(redis_server.url) as client:
            await asyncio.to_thread(client.client_kill_filter, _type="normal", skipme=True)
        await asyncio.to_thread(refuse, 2)
        return await viewer

    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    settings.CACHES = caches(redis_server)
    assert asyncio.run(follow()) == ["user:1", "user:2"]


def test_a_stream_on_a_store_that_does_not_answer_ends_and_its_viewer_comes_again(settings: Any) -> None:
    settings.CACHES = {
        "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/redis.sock"}
    }

    async def read() -> list[bytes]:
        return [part async for part in live._messages(store(), "quota", None, lambda _: "", "")]

    assert asyncio.run(read()) == [b"retry: 2000\n\n", b": the store does not answer\n\n"]


@pytest.mark.usefixtures("redis_cache")
def test_a_stream_ends_after_a_while_and_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LASTS", 0.0)
    refuse(1)

    async def read() -> list[bytes]:
        return [part async for part in live._messages(store(), "quota", BEGINNING, lambda found: f"<{len(found)}>", "")]

    _, message = asyncio.run(read())
    last = live.newest(BEGINNING)[-1].id
    assert message.decode() == f'id: {last}\ndata: {{"last": "{last}", "html": "<1>"}}\n\n'


@pytest.mark.usefixtures("redis_cache")
def test_a_line_is_rendered_once_for_all_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(1, 2, 3)
    events = [entry.event for entry in live.newest(BEGINNING) if entry.event is not None]
    times: list[object] = []

    def counted(name: str, context: Any) -> str:
        times.append(context)
        return render_to_string(name, context)

    monkeypatch.setattr(live, "render_to_string", counted)
    live._line.cache_clear()
    pages = [live._rendering("/there/")(events[first:]) for first in (0, 1, 0, 2) for _ in range(10)]
    assert len(times) == 3
    assert pages[0].count("<li") == 3
    assert pages[0].endswith(pages[-1])
    live._rendering("")(events)  # who may not open subjects sees no links
    assert len(times) == 6


@pytest.mark.usefixtures("redis_cache")
def test_above_the_cap_a_viewer_is_told_so_and_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_VIEWERS", 2)

    async def read() -> tuple[list[bytes], int, bytes]:
        def streamed() -> Any:
            return live._messages(store(), "quota", BEGINNING, lambda found: f"<{len(found)}>", "Too many.")

        watching = [streamed() for _ in range(2)]
        for each in watching:
            assert await anext(each) == b"retry: 2000\n\n"
        told = [part async for part in streamed()]  # nobody follows yet, and both are counted
        for each in watching:
            await anext(each)
        viewers = feed_of(store(), "quota").viewers
        await watching[0].aclose()  # one leaves, and there is room again
        later = await anext(streamed())
        await watching[1].aclose()
        return told, viewers, later

    refuse(1)
    told, viewers, later = asyncio.run(read())
    assert told == [b"event: full\ndata: Too many.\n\n"]
    assert viewers == 2
    assert later == b"retry: 2000\n\n"


# --- a real server ----------------------------------------------------------------------------------------------------

SITE = """
from tests.settings import *
CACHES = {caches!r}
DATABASES = {databases!r}
"""


@contextmanager
def serving(folder: Path, server: RedisServer, database: dict[str, Any]) -> Iterator[int]:
    """Run the site under uvicorn; yields its port."""
    (folder / "settings_of_the_site.py").write_text(
        SITE.format(caches=caches(server), databases={"default": {**database, "TEST": {}}})
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "--fd", str(listener.fileno()), "--lifespan", "off", "--log-level",
             "warning", "--factory", "django.core.asgi:get_asgi_application"],
            pass_fds=[listener.fileno()],
            env={
                **os.environ,
                "PYTHONPATH": f"{Path.cwd()}{os.pathsep}{folder}",
                "DJANGO_SETTINGS_MODULE": "settings_of_the_site",
            },
        )  # fmt: skip
    try:
        yield port
    finally:
        process.kill()
        process.wait()


def opened(port: int, client: Client, **headers: str) -> tuple[HTTPConnection, HTTPResponse]:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", STREAM, headers={"Cookie": f"sessionid={client.cookies['sessionid'].value}", **headers})
    return connection, connection.getresponse()


def message(answer: HTTPResponse) -> dict[str, str]:
    """Read up to the next message that is none to nobody."""
    fields: dict[str, str] = {}
    while True:
        line = answer.readline().decode().rstrip("\n")
        if not line and "data" in fields:
            return fields
        name, _, value = line.partition(": ")
        fields[name] = value


class TestARealServer:
    @pytest.fixture
    def port(self, redis_server: RedisServer, raw: redis.Redis, settings: Any, database: Any, tmp_path: Path) -> Any:
        settings.CACHES = caches(redis_server)
        with serving(tmp_path, redis_server, database) as port:
            yield port

    def test_it_streams_at_once_and_goes_on_where_it_was_left(
        self, port: int, client: Client, raw: redis.Redis
    ) -> None:
        refuse(1)
        connection, answer = opened(port, client, **{"Last-Event-ID": BEGINNING})
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert answer.headers["X-Accel-Buffering"] == "no"
        assert "no-cache" in answer.headers["Cache-Control"]
        early = message(answer)
        assert "user:1<" in json.loads(early["data"])["html"]
        refuse(2)
        later = message(answer)
        assert "user:2<" in json.loads(later["data"])["html"]
        connection.close()
        wait_until(lambda: blocked(raw) == 0)  # it ends with its viewer
        refuse(3)
        connection, answer = opened(port, client, **{"Last-Event-ID": later["id"]})
        html = json.loads(message(answer)["data"])["html"]
        assert ("user:3<" in html, "user:2<" in html) == (True, False)
        connection.close()

    def test_many_viewers_block_one_connection_and_no_thread(self, port: int, client: Client, raw: redis.Redis) -> None:
        refuse(0)  # each sees this one, and so has begun
        viewers = [opened(port, client, **{"Last-Event-ID": BEGINNING}) for _ in range(50)]
        for _, answer in viewers:
            message(answer)
        wait_until(lambda: blocked(raw) == 1)  # between two reads none is, for a moment
        assert blocked(raw) <= 1
        refuse(1)
        assert all("user:1<" in message(answer)["data"] for _, answer in viewers)
        for connection, _ in viewers:
            connection.close()

    def test_who_may_not_see_it_gets_no_stream(self, port: int, client: Client) -> None:
        connection, answer = opened(port, operator("view_subject", name="other"))
        assert answer.status == 403
        connection.close()

    def test_the_page_says_that_there_is_a_stream(self, port: int, client: Client) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        cookie = f"sessionid={client.cookies['sessionid'].value}"
        connection.request("GET", "/admin/django_quota/overview/", headers={"Cookie": cookie})
        assert f'data-stream-url="{STREAM}"' in connection.getresponse().read().decode()
        connection.close()


@pytest.mark.parametrize("use_tz", [True, False])
def test_moments_are_shown_in_the_zone_of_the_site(settings: Any, use_tz: bool) -> None:
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Tokyo"
    noon_in_tokyo = int(datetime(2026, 11, 21, 3, tzinfo=UTC).timestamp())
    event = Event(f"{noon_in_tokyo}000-0", "refused", "search", "user:1", (noon_in_tokyo + 90) * SECOND, 0, 10, 0)
    shown = live._rendering("")([event])
    assert ">12:00:00</time>" in shown
    assert "until 12:01:30" in shown
