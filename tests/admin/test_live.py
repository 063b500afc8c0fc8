"""Live events, polled or streamed: none is lost or doubled, and all viewers share one connection."""

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
from django_quota.services.broadcast import SHOWN, EventBroadcaster, News, broadcaster_of, is_entry_id
from django_quota.services.event_stream import BEGINNING, Event
from django_quota.testing import RedisServer
from tests.admin.operators import operator
from tests.support.commands import PATIENCE, wait_until
from tests.support.steps import SECOND
from tests.support.stores import caches, redis_store

EVENTS = "/admin/django_quota/overview/events/"
STREAM = "/admin/django_quota/overview/stream/"


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
    def test_polling_returns_the_events_after_the_last_one(self, client: Client) -> None:
        refuse(1, 2)
        first = client.get(EVENTS, {"after": BEGINNING}).json()
        assert first["html"].count("<li") == 2
        assert client.get(EVENTS, {"after": first["last"]}).json() == {"last": first["last"], "html": ""}
        refuse(3)
        more = client.get(EVENTS, {"after": first["last"]}).json()
        assert more["html"].count("<li") == 1
        assert 'href="/admin/django_quota/subject/?subject=user%3A3"' in more["html"]

    def test_of_many_events_polling_returns_the_newest_in_order(self, client: Client) -> None:
        refuse(*range(SHOWN + 5))
        html = client.get(EVENTS).json()["html"]
        assert html.count("<li") == SHOWN
        assert "user:4<" not in html
        assert html.index("user:5<") < html.index(f"user:{SHOWN + 4}<")

    @pytest.mark.parametrize(
        "given", ["", "x", "1", "-", "1-", "1-2-3", "-1-2", "+", "(1-0", "1-0 COUNT", "²-0", "9" * 50]
    )
    def test_a_malformed_id_is_refused(self, client: Client, given: str) -> None:
        assert client.get(EVENTS, {"after": given}).status_code == 400

    def test_foreign_entries_are_skipped(self, client: Client, raw: redis.Redis) -> None:
        raw.xadd("quota:1:{!}:events", {"foreign": "entry"})
        answer = client.get(EVENTS, {"after": BEGINNING}).json()
        assert answer["html"] == ""
        assert answer["last"] != BEGINNING

    def test_a_wsgi_server_answers_406_to_a_stream(self, client: Client) -> None:
        assert client.get(STREAM).status_code == 406


@pytest.mark.usefixtures("memory_store")
def test_the_memory_store_has_no_events(client: Client) -> None:
    assert client.get(EVENTS).json() == {"last": BEGINNING, "html": ""}
    assert client.get(STREAM).status_code == 406


def test_only_stream_ids_count_as_ids() -> None:
    assert is_entry_id("1763700000000-0")
    assert not is_entry_id("1763700000000")


async def until(holds: Callable[[], Any]) -> None:
    """Wait for a condition without holding up the event loop."""
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 — what is waited for tells nobody
            await asyncio.sleep(0.005)


async def first(broadcaster: EventBroadcaster, after: str | None, count: int) -> list[str | None]:
    """Follow a broadcaster until `count` events have come; return their subjects."""
    found: list[str | None] = []
    async with asyncio.timeout(PATIENCE), aclosing(broadcaster.follow(after, 30)) as news:
        async for each in news:
            found += subjects(each.events)
            if len(found) >= count:
                break
    return found


@pytest.mark.usefixtures("redis_cache")
class TestBroadcaster:
    def test_it_starts_after_the_last_event_seen(self) -> None:
        refuse(1, 2)
        seen = live.newest(BEGINNING)[0].id

        async def follow() -> list[str | None]:
            return await first(broadcaster_of(redis_store(), "quota"), seen, 1)

        assert asyncio.run(follow()) == ["user:2"]

    def test_events_during_the_start_are_neither_lost_nor_doubled(self) -> None:
        async def follow() -> list[list[str | None]]:
            broadcaster = broadcaster_of(redis_store(), "quota")
            writing = asyncio.create_task(asyncio.to_thread(refuse, *range(30)))
            viewers = []
            for _ in range(5):
                viewers.append(asyncio.create_task(first(broadcaster, BEGINNING, 30)))
                await asyncio.sleep(0)
            found = await asyncio.gather(*viewers)
            await writing
            return found

        expected = [f"user:{number}" for number in range(30)]
        assert asyncio.run(follow()) == [expected] * 5

    def test_fifty_viewers_share_one_connection(self, raw: redis.Redis) -> None:
        async def follow() -> tuple[int, list[list[str | None]], int, bool]:
            broadcaster = broadcaster_of(redis_store(), "quota")
            viewers = [asyncio.create_task(first(broadcaster, None, 1)) for _ in range(50)]
            seen: list[int] = []  # between two reads none is blocked for a moment

            def is_blocked() -> bool:
                if broadcaster.viewers == 50:
                    seen.append(blocked(raw))
                return len(seen) > 20 and seen[-1] > 0

            await until(is_blocked)
            await asyncio.to_thread(refuse, 7)
            found = await asyncio.gather(*viewers)
            return max(seen), found, broadcaster.viewers, broadcaster._reader is None

        waiting, found, viewers, is_over = asyncio.run(follow())
        assert waiting == 1
        assert found == [["user:7"]] * 50
        assert (viewers, is_over) == (0, True)
        wait_until(lambda: blocked(raw) == 0)

    def test_without_events_it_sends_a_heartbeat(self) -> None:
        async def follow() -> News:
            async with aclosing(broadcaster_of(redis_store(), "quota").follow(None, 0.01)) as news:
                return await anext(news)

        assert asyncio.run(follow()).events == []

    def test_a_slow_viewer_gets_the_newest_events(self) -> None:
        async def follow() -> list[str | None]:
            async with aclosing(broadcaster_of(redis_store(), "quota").follow(None, 30)) as news:
                waiting = asyncio.ensure_future(anext(news))
                broadcaster = broadcaster_of(redis_store(), "quota")
                await until(lambda: broadcaster._reader)
                await asyncio.to_thread(refuse, 1)
                found = subjects((await waiting).events)
                await asyncio.to_thread(refuse, *range(2, SHOWN + 20))
                last = live.newest(BEGINNING)[-1].id
                await until(lambda: broadcaster._last == last)
                return found + subjects((await anext(news)).events)

        found = asyncio.run(follow())
        assert found == ["user:1", *(f"user:{number}" for number in range(20, SHOWN + 20))]

    def test_language_and_links_are_those_of_the_viewer(self) -> None:
        refuse(1)
        events = [entry.event for entry in live.newest(BEGINNING) if entry.event is not None]
        with translation.override("de"):
            with_links = live._rendering("/there/")
        assert 'href="/there/?subject=user%3A1"' in with_links(events)
        assert translation.get_language() != "de"
        assert "href" not in live._rendering("")(events)


def blocked(raw: redis.Redis) -> int:
    return int(raw.info("clients")["blocked_clients"])


def test_a_broadcaster_survives_a_broken_connection(settings: Any, redis_server: RedisServer) -> None:
    async def follow() -> list[str | None]:
        broadcaster = broadcaster_of(redis_store(), "quota")
        viewer = asyncio.create_task(first(broadcaster, None, 2))
        await until(lambda: broadcaster._reader)
        await asyncio.to_thread(refuse, 1)
        await until(lambda: broadcaster._recent)
        with redis.Redis.from_url(redis_server.url) as client:
            await asyncio.to_thread(client.client_kill_filter, _type="normal", skipme=True)
        await asyncio.to_thread(refuse, 2)
        return await viewer

    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    settings.CACHES = caches(redis_server)
    assert asyncio.run(follow()) == ["user:1", "user:2"]


def test_a_stream_ends_where_the_store_does_not_answer(settings: Any) -> None:
    settings.CACHES = {
        "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nowhere/redis.sock"}
    }

    async def read() -> list[bytes]:
        return [part async for part in live._messages(redis_store(), "quota", None, lambda _: "", "")]

    assert asyncio.run(read()) == [b"retry: 2000\n\n", b": the store does not answer\n\n"]


@pytest.mark.usefixtures("redis_cache")
def test_a_stream_ends_with_the_id_to_resume_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "STREAM_LIFETIME", 0.0)
    refuse(1)

    async def read() -> list[bytes]:
        return [
            part
            async for part in live._messages(redis_store(), "quota", BEGINNING, lambda found: f"<{len(found)}>", "")
        ]

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
def test_a_viewer_above_the_cap_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_VIEWERS", 2)

    async def read() -> tuple[list[bytes], int, bytes]:
        def streamed() -> Any:
            return live._messages(redis_store(), "quota", BEGINNING, lambda found: f"<{len(found)}>", "Too many.")

        watching = [streamed() for _ in range(2)]
        for each in watching:
            assert await anext(each) == b"retry: 2000\n\n"
        sent = [part async for part in streamed()]  # nobody follows yet, and both are counted
        for each in watching:
            await anext(each)
        viewers = broadcaster_of(redis_store(), "quota").viewers
        await watching[0].aclose()  # one leaves, and there is room again
        later = await anext(streamed())
        await watching[1].aclose()
        return sent, viewers, later

    refuse(1)
    sent, viewers, later = asyncio.run(read())
    assert sent == [b"event: full\ndata: Too many.\n\n"]
    assert viewers == 2
    assert later == b"retry: 2000\n\n"


# --- a real server ----------------------------------------------------------------------------------------------------

SITE = """
from tests.support.settings import *
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


class TestUvicorn:
    @pytest.fixture
    def port(self, redis_server: RedisServer, raw: redis.Redis, settings: Any, database: Any, tmp_path: Path) -> Any:
        settings.CACHES = caches(redis_server)
        with serving(tmp_path, redis_server, database) as port:
            yield port

    def test_a_stream_starts_at_once_and_resumes(self, port: int, client: Client, raw: redis.Redis) -> None:
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

    def test_many_viewers_share_one_blocked_connection(self, port: int, client: Client, raw: redis.Redis) -> None:
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

    def test_a_stream_needs_the_permission(self, port: int, client: Client) -> None:
        connection, answer = opened(port, operator("view_subject", name="other"))
        assert answer.status == 403
        connection.close()

    def test_the_page_names_the_url_of_the_stream(self, port: int, client: Client) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        cookie = f"sessionid={client.cookies['sessionid'].value}"
        connection.request("GET", "/admin/django_quota/overview/", headers={"Cookie": cookie})
        assert f'data-stream-url="{STREAM}"' in connection.getresponse().read().decode()
        connection.close()


@pytest.mark.parametrize("use_tz", [True, False])
def test_times_are_in_the_time_zone_of_the_site(settings: Any, use_tz: bool) -> None:
    settings.USE_TZ, settings.TIME_ZONE = use_tz, "Asia/Tokyo"
    noon_in_tokyo = int(datetime(2026, 11, 21, 3, tzinfo=UTC).timestamp())
    event = Event(f"{noon_in_tokyo}000-0", "refused", "search", "user:1", (noon_in_tokyo + 90) * SECOND, 0, 10, 0)
    shown = live._rendering("")([event])
    assert ">12:00:00</time>" in shown
    assert "until 12:01:30" in shown
