"""While servers of a Cluster do not answer: one log line says so, few calls wait, and it works again by itself."""

import asyncio
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import redis
import redis.asyncio as aioredis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota import acheck, check, peek
from django_quota.stores.breaker import FAILURES, Breaker
from tests.support.calls import both
from tests.support.clusters import Cluster, Server, running_cluster, slot_of
from tests.support.commands import wait_until
from tests.support.outages import heard
from tests.support.steps import Clock
from tests.support.stores import cluster_caches, cluster_program, current_store

SUBJECTS = [f"ip:192.0.2.{number}" for number in range(30)]
SHORT = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0}


def ask(kind: str, subjects: list[str], **options: Any) -> list[Any]:
    if kind == "sync":
        return [check("900/m", subject, **options) for subject in subjects]

    async def wait() -> list[Any]:
        return [await acheck("900/m", subject, **options) for subject in subjects]

    return asyncio.run(wait())


def until_back(kind: str, clock: Clock, reported: list[Any]) -> None:
    """Ask for one subject after the other until it is told that all is back; a busy machine may lose one once more."""

    def is_told() -> bool:
        for subject in SUBJECTS:
            clock.now += 1
            ask(kind, [subject])
            if reported[-1][0] == "back":
                return True
        return False

    wait_until(is_told)


def until_well(kind: str, clock: Clock) -> None:
    """Ask until Redis decides for every subject."""

    def is_well() -> bool:
        clock.now += 1
        return not any(decision.degraded for decision in ask(kind, SUBJECTS))

    wait_until(is_well)


def send(number: signal.Signals, *servers: Server) -> None:
    for server in servers:
        server.process.send_signal(number)


@pytest.fixture
def own(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster of its own, whose other servers go on where one is gone; an answer of all ends an outage at once."""
    monkeypatch.setattr("django_quota.limiting.outages.SETTLE_TIME", 0.0)
    with running_cluster(cluster_program()) as cluster:
        for server in cluster.servers:
            server.client.config_set("cluster-require-full-coverage", "no")
        settings.CACHES = cluster_caches(cluster, **SHORT)
        yield cluster
        send(signal.SIGCONT, *cluster.servers)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the breakers of all servers."""
    made = Clock()
    monkeypatch.setattr("django_quota.stores.cluster.store_cluster.Breaker", partial(Breaker, clock=made))
    return made


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The connections that something was sent over, sync and async."""
    found: list[int] = []
    for connection_class in (redis.Connection, aioredis.Connection):
        send = connection_class.send_packed_command

        def sending(*arguments: Any, send: Any = send, **options: Any) -> Any:
            found.append(1)
            return send(*arguments, **options)

        monkeypatch.setattr(connection_class, "send_packed_command", sending)
    return found


@pytest.mark.thorough("topology")
@both
def test_one_server_of_three_that_hangs_is_reported_once_costs_a_few_tries_and_comes_back(
    kind: str, own: Cluster, clock: Clock, tried: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    until_well(kind, clock)  # a busy machine may take long
    with heard() as reported:
        gone = own.owner(f"quota:1:{{{SUBJECTS[0]}}}:s")
        send(signal.SIGSTOP, gone)
        for _ in range(5):
            found = ask(kind, SUBJECTS)
            clock.now += 1
            assert 0 < sum(decision.degraded for decision in found) < len(SUBJECTS)
        ask(kind, SUBJECTS[:1] * (FAILURES + 1))
        tried.clear()
        assert all(decision.degraded for decision in ask(kind, SUBJECTS[:1] * 50))
        assert len(tried) <= 50  # the table is read again, ten times a second at most, from those that answer
        shut = [name for name, breaker in current_store()._breakers.items() if breaker.is_refusing()]
        assert shut == [f"127.0.0.1:{gone.port}"]
        assert [what for what, _ in reported] == ["lost"]
        send(signal.SIGCONT, gone)
        until_back(kind, clock, reported)
    assert [what for what, _ in reported] == ["lost", "back"]
    assert caplog.text.count("Rules decide by on_unavailable") == 1
    until_well(kind, clock)


@pytest.mark.thorough("topology")
@pytest.mark.parametrize("known", [True, False], ids=["known before", "never reached"])
@both
def test_with_all_servers_gone_nobody_is_asked(
    kind: str, known: bool, own: Cluster, clock: Clock, tried: list[int]
) -> None:
    if known:
        ask(kind, SUBJECTS)
    for server in own.servers:
        server.kill()
    with heard() as reported:
        ask(kind, SUBJECTS * 3)
        tried.clear()
        assert all(each.allowed and each.degraded for each in ask(kind, SUBJECTS * 10))
        assert not any(each.allowed for each in ask(kind, SUBJECTS[:3], on_unavailable="deny"))
    assert not tried
    assert [what for what, _ in reported] == ["lost"]


@pytest.mark.thorough("topology")
@both
def test_a_process_that_starts_while_no_server_answers_recovers_by_itself(
    kind: str, own: Cluster, clock: Clock
) -> None:
    send(signal.SIGSTOP, *own.servers)
    with heard() as reported:
        assert all(decision.degraded for decision in ask(kind, SUBJECTS[:5]))
        send(signal.SIGCONT, *own.servers)
        until_back(kind, clock, reported)
    assert [what for what, _ in reported] == ["lost", "back"]
    until_well(kind, clock)
    assert peek("900/m", SUBJECTS[0]).remaining is not None


@both
@pytest.mark.parametrize("lost", [RedisConnectionError("Connection closed by server."), RedisTimeoutError("late")])
def test_a_hit_whose_reply_is_lost_is_not_sent_again(
    kind: str, lost: Exception, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(kind, SUBJECTS[:1])[0].remaining == 899

    with monkeypatch.context() as patch:
        for connection_class in (redis.Connection, aioredis.Connection):
            patch.setattr(connection_class, "read_response", losing(connection_class, lost))
        assert ask(kind, SUBJECTS[:1])[0].degraded
    assert peek("900/m", SUBJECTS[0]).remaining == 898


def losing(connection_class: Any, lost: Exception) -> Any:
    """Return redis-py's reading of a reply, which loses that of a script: the server has run it."""
    read = connection_class.read_response

    def is_of_a_script(reply: Any) -> Any:
        if isinstance(reply, bytes) and len(reply) % 8 == 0:
            raise lost
        return reply

    async def aread(*arguments: Any, **options: Any) -> Any:
        return is_of_a_script(await read(*arguments, **options))

    return aread if asyncio.iscoroutinefunction(read) else lambda *a, **b: is_of_a_script(read(*a, **b))


@pytest.mark.thorough("topology")
@both
def test_a_slot_that_no_server_has_is_found_as_soon_as_one_has_it(kind: str, own: Cluster) -> None:
    slot, server = slot_of(f"{{{SUBJECTS[0]}}}"), own.owner(f"{{{SUBJECTS[0]}}}")
    for each in own.servers:
        each.client.execute_command("CLUSTER DELSLOTS", slot)

    async def is_degraded(subject: str) -> bool:
        asked = acheck("900/m", subject) if kind == "async" else asyncio.to_thread(check, "900/m", subject)
        return bool((await asked).degraded)

    async def found() -> list[bool]:
        before = [await is_degraded(subject) for subject in SUBJECTS[:2]]
        server.client.execute_command("CLUSTER ADDSLOTS", slot)
        return [*before, await is_degraded(SUBJECTS[0]), await is_degraded(SUBJECTS[0])]

    assert asyncio.run(found()) == [True, False, True, False]  # the third has read the table again


@pytest.mark.thorough("topology")
@both
def test_requests_that_meet_servers_that_hang_read_the_table_once_together(
    kind: str, own: Cluster, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in timeouts, not on the clock: one for each request, and one for each server that is asked."""
    check("900/m", SUBJECTS[0])
    timeouts: list[str] = []
    raised = RedisTimeoutError.__init__

    def noted(error: Any, *arguments: Any) -> None:
        timeouts.append("late")
        raised(error, *arguments)

    monkeypatch.setattr(RedisTimeoutError, "__init__", noted)

    async def ask_eight() -> list[Any]:
        def ask() -> Any:
            return acheck("900/m", SUBJECTS[0]) if kind == "async" else asyncio.to_thread(check, "900/m", SUBJECTS[0])

        return await asyncio.gather(*(ask() for _ in range(8)))

    send(signal.SIGSTOP, *own.servers)
    found = asyncio.run(ask_eight())  # the event loop knows no server yet
    assert all(decision.degraded for decision in found)
    assert 0 < len(timeouts) <= (8 if kind == "sync" else 0) + len(own.servers)
