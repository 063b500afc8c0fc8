"""An override that one process saves binds in another, at once and without SQL, and comes back by itself when lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.db import connection
from django.http import HttpResponse
from django.test.utils import CaptureQueriesContext

from django_quota import acheck, background, check, overrides, plans, publishing, quota, republishing
from django_quota.limiter import get_limiter
from django_quota.models import QuotaOverride
from django_quota.signals import store_back
from django_quota.stores.redis import RedisStore
from django_quota.testing import RedisServer
from tests.calls import get, run
from tests.commands import Manage, managing, wait_until
from tests.conftest import caches

SUBJECT = "ip:192.0.2.1"


@pytest.fixture
def manage(redis_cache: RedisServer, database: dict[str, Any], tmp_path: Path) -> Iterator[Manage]:
    """Commands in processes of their own, on the same Redis and the same database."""
    plans._known.clear()
    with managing(tmp_path, caches(redis_cache), {"default": database}) as manage:
        yield manage


def test_it_binds_with_the_next_request_and_no_query_is_made(manage: Manage) -> None:
    @quota("5/m", "50/h", key="ip", name="view")
    @quota("500/d", key="ip", name="other")
    def view(request: Any) -> HttpResponse:
        return HttpResponse(str(request.quota.outcomes[0].limit))

    def visit() -> tuple[int, str]:
        response: Any = run(view, get())
        return response.status_code, response.content.decode()

    with CaptureQueriesContext(connection) as queries:
        assert visit() == (200, "5")
    assert manage.start("quota_override", "set", SUBJECT, "70/m", "--rule", "view").wait() == 0
    with CaptureQueriesContext(connection) as more:
        assert visit() == (200, "70")
    assert manage.start("quota_override", "set", SUBJECT, "blocked").wait() == 0
    with CaptureQueriesContext(connection) as most:
        assert visit()[0] == 429  # by the other rule: that of `view` has one of its own
    assert manage.start("quota_override", "clear", SUBJECT, "--rule", "*").wait() == 0
    assert visit() == (200, "70")
    assert [len(queries), len(more), len(most)] == [0, 0, 0]


def test_a_redis_that_comes_back_empty_is_told_again_by_whoever_asks_next(
    manage: Manage, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overrides, "on_lost", republishing.republish_if_lost)
    monkeypatch.setattr(republishing._Looking, "again", 0.0)
    QuotaOverride.objects.create(subject=SUBJECT, rule="*", mode="blocked")
    publishing.publish_pending("default")
    store = get_limiter().store
    assert isinstance(store, RedisStore)
    assert not check("5/m", SUBJECT)
    background.join(republishing.REPUBLISHING)
    raw.flushall()  # scripts stay: the missing marker alone tells
    monkeypatch.setattr(republishing._Looking, "again", 0.0)
    store._errands.hurry()  # a second later
    assert check("5/m", SUBJECT)
    wait_until(lambda: not check("5/m", SUBJECT))
    background.join(republishing.REPUBLISHING)
    assert raw.exists(overrides.marker_key("quota"))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_block_that_was_saved_while_redis_took_no_changes_binds_once_a_web_process_notices_that_it_does(
    kind: str, manage: Manage, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """`quota_override` has ended long since: the process that decides has nothing of it but the row."""

    def ask() -> Any:
        return check("1000000/m", SUBJECT) if kind == "sync" else asyncio.run(acheck("1000000/m", SUBJECT))

    store_back.connect(republishing.publish_when_back, dispatch_uid=republishing.DISPATCH_UID)
    assert not ask().degraded
    raw.config_set("maxmemory", 1)
    try:
        assert manage.start("quota_override", "set", SUBJECT, "blocked").wait() == 1
        assert ask().degraded
    finally:
        raw.config_set("maxmemory", 0)
    with CaptureQueriesContext(connection) as queries:
        wait_until(lambda: not ask())
    assert queries.captured_queries == []
    background.join(republishing.RETRIES)
    assert "published late, 1 of them" in caplog.text
