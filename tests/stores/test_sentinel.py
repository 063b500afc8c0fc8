"""An alias that is configured for Sentinel: a real primary and a real sentinel, sync and async."""

import asyncio
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import redis

from django_quota import acheck, areset, check
from django_quota.testing import RedisServer, running_redis
from tests.support.calls import remaining_both_ways
from tests.support.commands import wait_until
from tests.support.ports import free_port
from tests.support.sentinels import behind, reasons_both_ways, times_called
from tests.support.stores import PATIENT, current_store, redis_store


@pytest.mark.parametrize(
    ("location", "options"),
    [
        ("redis://default:geheim@quotas?db=3", {}), ("redis://quotas/3", {"PASSWORD": "geheim"}),
        ("redis://:geheim@quotas/3?is_master=1", {}),
    ],
)  # fmt: skip
def test_credentials_are_read_from_the_url_or_the_options(
    location: str, options: dict[str, str], sentinel_port: int, settings: Any
) -> None:
    with redis.Redis(port=sentinel_port) as sentinel:
        (_, primary) = sentinel.sentinel_get_master_addr_by_name("quotas")
    with redis.Redis(port=int(primary)) as client:
        client.config_set("requirepass", "geheim")
    with redis.Redis(port=int(primary), password="geheim") as client:
        settings.CACHES = {"default": {**behind(sentinel_port, **PATIENT), "LOCATION": location}}
        settings.CACHES["default"]["OPTIONS"].update(options)
        assert remaining_both_ways() == [4, 3]
        assert set(client.info("keyspace")) == {"db3"}


SUBJECT = "ip:192.0.2.1"
GUARD = "geheim<redis. - &'"
SOON = {"socket_timeout": 0.1, "socket_connect_timeout": 0.1}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "the last by AuthenticationError"), ({"password": f"x{GUARD}"}, "the last by AuthenticationError"),
        ({"password": GUARD, "ssl": True, **SOON}, "the last by TimeoutError"),
        ({"password": GUARD}, "that is up"),
    ],
    ids=["no password", "wrong password", "no TLS", "unknown name"],
)  # fmt: skip
def test_the_error_says_why_no_sentinel_names_a_primary(
    given: dict[str, Any], why: str, sentinel_port: int, settings: Any
) -> None:
    operator = cast("Any", redis.Redis)(port=sentinel_port)  # redis-py leaves it untyped
    with operator as sentinel:
        if "that is up" in why:
            sentinel.execute_command("SENTINEL REMOVE", "quotas")
        sentinel.execute_command("ACL", "SETUSER", "default", "resetpass", f">{GUARD}")

    reasons = reasons_both_ways({"default": behind(sentinel_port, **PATIENT, SENTINEL_KWARGS=given)}, GUARD)

    begins = "MasterNotFoundError: No master found for 'quotas': "
    assert [said for said in reasons if not said.startswith(begins) or why not in said] == []


def test_the_error_says_that_no_sentinel_can_be_reached() -> None:
    reasons = reasons_both_ways({"default": behind(free_port(), free_port(), **PATIENT)})

    ends = "at least one sentinel failed, the last by ConnectionError"
    assert [said for said in reasons if not said.endswith(ends)] == []


def test_a_password_repeated_by_a_false_sentinel_is_hidden() -> None:
    """It repeats what it was sent, AUTH with its password first."""
    with socket.create_server(("127.0.0.1", 0)) as parrot:

        def repeat() -> None:
            for _ in range(2):
                caller = parrot.accept()[0]
                with caller:
                    caller.sendall(
                        b"-WRONGPASS no such thing: " + caller.recv(1 << 16).replace(b"\r\n", b" ") + b"\r\n"
                    )

        talking = threading.Thread(target=repeat)
        talking.start()
        options = {**PATIENT, "SENTINEL_KWARGS": {"password": GUARD, "protocol": 2}}
        said = reasons_both_ways({"default": behind(parrot.getsockname()[1], **options)}, secret=GUARD)
        talking.join()
    assert all(each.endswith("AuthenticationError") for each in said)


@pytest.mark.thorough("slow")
@pytest.mark.parametrize("options", [{}, {"SENTINEL_KWARGS": {"password": None}}], ids=["plain", "options"])
def test_a_sentinel_that_hangs_is_skipped_in_time(options: dict[str, Any], sentinel_port: int, settings: Any) -> None:
    """The alias sets no time-out at all."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen(64)
        settings.CACHES = {"default": behind(mute.getsockname()[1], sentinel_port, **options)}
        tries: list[bool] = []  # a busy machine may need some more

        async def asked() -> bool:
            return bool(await acheck("5/m", SUBJECT, on_unavailable="deny"))

        def is_decided(ask: Callable[[], bool]) -> bool:
            tries.append(ask())
            return tries[-1]

        wait_until(partial(is_decided, lambda: bool(check("5/m", SUBJECT, on_unavailable="deny"))))
        wait_until(partial(is_decided, lambda: asyncio.run(asked())))
        assert 0 < times_called(mute) <= len(tries)
        store: Any = current_store()
        pool = store.server.pool._source.sentinels
        kwargs = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
        assert [(each["socket_timeout"], each["socket_connect_timeout"]) for each in kwargs] == [(0.25, 0.25)] * 2


def name_primary(sentinel_port: int, primary: int) -> None:
    """Let the sentinel name another primary. The old one lives, and takes commands from connections that are open."""
    with redis.Redis(port=sentinel_port, decode_responses=True) as sentinel:
        sentinel.execute_command("SENTINEL REMOVE", "quotas")
        sentinel.execute_command("SENTINEL MONITOR", "quotas", "127.0.0.1", str(primary), "1")
        wait_until(lambda: sentinel.sentinel_master("quotas")["flags"] == "master")


def test_an_idle_connection_does_not_lead_to_the_old_primary(
    sentinel_port: int, redis_server: RedisServer, settings: Any
) -> None:
    settings.CACHES = {"default": behind(sentinel_port, **PATIENT)}
    with redis.Redis(port=sentinel_port) as sentinel:
        old_primary = int(sentinel.sentinel_get_master_addr_by_name("quotas")[1])
    assert [check("9/m", SUBJECT).remaining for _ in range(2)] == [8, 7]

    async def ask(times: int) -> set[int | None]:
        decisions = await asyncio.gather(*(acheck("9/h", SUBJECT) for _ in range(times)))
        return {decision.remaining for decision in decisions}

    async def tasks() -> None:
        assert await ask(1) == {8}
        name_primary(sentinel_port, old_primary)
        await areset("9/d", SUBJECT)  # over a new connection beside the wire
        assert await ask(2) == {7, 8}
        assert await ask(1) == {6}

    with running_redis(redis_server.program, "--port", str(port := free_port())):
        name_primary(sentinel_port, port)
        with redis_store().commands() as client:
            assert client.info("replication")["role"] == "master"  # the process knows the new primary
        assert [check("9/m", SUBJECT).remaining for _ in range(2)] == [8, 7]
        asyncio.run(tasks())
