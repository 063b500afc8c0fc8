"""An override that one process saves binds in another, at once and without SQL, and comes back by itself when lost.

The test's own process is one that serves requests. Others are real ones, and are killed in the middle of their work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.db import connection, transaction
from django.http import HttpResponse
from django.test.utils import CaptureQueriesContext

from django_quota import acheck, check, quota
from django_quota.models import QuotaOverride
from django_quota.testing import RedisServer
from tests.support.calls import get, run
from tests.support.clusters import Server
from tests.support.commands import Manage, managing, wait_until
from tests.support.counts import count_what_waits
from tests.support.ports import free_port
from tests.support.published import lock_key, look_as_a_new_process, look_to_the_end, marker_key
from tests.support.stores import caches, forget_forms, named, programs, redis_store

SUBJECT = "ip:192.0.2.1"


@pytest.fixture
def manage(redis_cache: RedisServer, database: dict[str, Any], tmp_path: Path) -> Iterator[Manage]:
    """Commands in processes of their own, on the same Redis and the same database."""
    forget_forms()
    with managing(tmp_path, caches(redis_cache), {"default": database}) as manage:
        yield manage


def test_it_applies_to_the_next_request_without_a_query(manage: Manage) -> None:
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


class Serving:
    """This process, as one that serves requests of the subject."""

    def __init__(self, kind: str = "sync") -> None:
        self.kind = kind

    def admits(self) -> bool:
        """Serve a request; say whether it was let in. It must make no query."""
        with CaptureQueriesContext(connection) as queries:
            ask = check("1000000/m", SUBJECT) if self.kind == "sync" else asyncio.run(acheck("1000000/m", SUBJECT))
        assert queries.captured_queries == []
        assert not ask.degraded
        return bool(ask)

    def admits_after_three_seconds(self) -> bool:
        """Let three seconds pass: the lock of the last look ends, and the flusher does a round."""
        with redis_store().commands() as client:
            ends_after = client.pttl(lock_key()) / 1_000
            client.delete(lock_key())
        assert ends_after + 1 < 3  # a process looks once a second
        count_what_waits()
        look_to_the_end()
        return self.admits()


@pytest.fixture
def serving(database: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Serving:
    """This process, on a database, looks whether Redis holds all overrides."""
    forget_forms()
    look_as_a_new_process()
    return Serving()


def block() -> QuotaOverride:
    return QuotaOverride.objects.create(subject=SUBJECT, rule="*", mode="blocked")


def killed(manage: Manage, where: str, work: str) -> None:
    """Run a process up to a step of publishing, and kill it there."""
    process = manage.start(
        "shell",
        "--verbosity=0",
        "-c",
        f"""
from django_quota.models import QuotaOverride
from tests.support.published import check_overrides, hang_at
hang_at({where!r})
{work}
""",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "It is there.\n"
    process.kill()
    process.wait()


@pytest.mark.usefixtures("redis_cache")
def test_a_redis_that_comes_back_empty_gets_its_overrides_again(serving: Serving, raw: redis.Redis) -> None:
    block()
    assert not serving.admits()
    raw.flushall()  # scripts stay: nothing else tells
    assert not serving.admits_after_three_seconds()
    assert raw.exists(marker_key())


def test_if_a_publisher_is_killed_another_process_publishes(serving: Serving, manage: Manage, raw: redis.Redis) -> None:
    block()
    raw.flushall()
    killed(manage, "publish", "check_overrides()")
    assert raw.exists(lock_key())
    assert not serving.admits_after_three_seconds()


def test_a_block_applies_though_its_process_is_killed_after_the_commit(
    serving: Serving, manage: Manage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "django_quota")
    killed(manage, "publish_pending", f"QuotaOverride.objects.create(subject={SUBJECT!r}, rule='*', mode='blocked')")
    assert QuotaOverride.objects.exists()
    assert not serving.admits_after_three_seconds()
    assert "had waited in the database, and are published now: 1 of them" in caplog.text


@pytest.mark.usefixtures("redis_cache")
def test_a_block_applies_though_another_on_commit_hook_fails(serving: Serving) -> None:
    def save() -> None:
        with transaction.atomic():
            transaction.on_commit(lambda: 1 / 0)
            block()

    with pytest.raises(ZeroDivisionError):
        save()
    assert serving.admits()
    assert not serving.admits_after_three_seconds()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_block_saved_on_a_read_only_redis_applies_when_it_takes_writes(
    kind: str, serving: Serving, manage: Manage, raw: redis.Redis
) -> None:
    """`quota_override` has ended long since: the process that decides has nothing of it but the row."""
    serving.kind = kind
    assert serving.admits()
    raw.config_set("maxmemory", 1)
    try:
        assert manage.start("quota_override", "set", SUBJECT, "blocked").wait() == 1
    finally:
        raw.config_set("maxmemory", 0)
    assert not serving.admits_after_three_seconds()


class Machine:
    """Real Redis servers with a memory on disk, at an address that can be given to another one of them."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.address = folder / "redis.sock"
        self.servers: list[Server] = []

    def server(self) -> Server:
        """Start another server."""
        port = free_port()
        folder = self.folder / str(port)
        folder.mkdir()
        options = {
            "port": port,
            "dir": folder,
            "unixsocket": folder / "sock",
            "save": "",
            "repl-diskless-sync-delay": 0,
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        server = Server(port, [str(self.program), *words], folder / "log", redis.Redis(port=port))
        self.servers.append(server)
        server.start()
        return server

    def give_address_to(self, server: Server) -> None:
        """Let clients find this server, as they find a new primary by Sentinel, a name or an address that moves."""
        self.address.unlink(missing_ok=True)
        self.address.symlink_to(self.folder / str(server.port) / "sock")

    def end(self) -> None:
        for server in self.servers:
            server.kill()
            server.client.close()


@pytest.fixture(params=programs(), ids=named)
def machine(request: pytest.FixtureRequest, tmp_path: Path, settings: Any) -> Iterator[Machine]:
    """A machine for Redis servers, at whose address the site finds one."""
    machine = Machine(request.param, tmp_path)
    settings.CACHES = caches(RedisServer(f"unix://{machine.address}", 0, request.param))
    yield machine
    machine.end()


@pytest.mark.parametrize("what", ["block", "withdrawn exemption"])
class TestAPartOfItsMemory:
    """What was changed last is lost, and nothing else: no key that always is there is missing."""

    def changed(self, what: str, serving: Serving, saved: Callable[[], object]) -> None:
        """Save a snapshot, or whatever else lacks the next change, and make the change."""
        if what == "block":
            call_command("quota_sync", stdout=StringIO())
            saved()
            block()
        else:
            block()
            exemption = QuotaOverride.objects.create(subject=SUBJECT, rule="1000000/m", mode="exempt")
            call_command("quota_sync", stdout=StringIO())
            assert serving.admits()
            saved()
            exemption.delete()
        assert not serving.admits()

    def test_a_redis_restored_from_an_old_snapshot_gets_what_it_lacks(
        self, what: str, serving: Serving, machine: Machine
    ) -> None:
        server = machine.server()
        machine.give_address_to(server)
        self.changed(what, serving, server.client.save)
        server.kill()
        server.start()
        assert not serving.admits_after_three_seconds()

    @pytest.mark.thorough("topology")
    def test_a_replica_that_takes_over_gets_the_last_change(
        self, what: str, serving: Serving, machine: Machine
    ) -> None:
        primary, replica = machine.server(), machine.server()
        machine.give_address_to(primary)
        replica.client.replicaof("127.0.0.1", primary.port)

        def has_all() -> bool:
            primary_info, replica_info = primary.client.info("replication"), replica.client.info("replication")
            return bool(replica_info.get("slave_repl_offset") == primary_info["master_repl_offset"] > 0)

        def cut_off() -> None:
            wait_until(has_all)
            replica.client.replicaof("127.0.0.1", 1)

        self.changed(what, serving, cut_off)
        primary.kill()
        replica.client.replicaof("no", "one")
        machine.give_address_to(replica)
        assert not serving.admits_after_three_seconds()
