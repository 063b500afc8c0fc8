"""The connections of all threads to a Redis: which one a call gets, and what becomes of it afterwards."""

import errno
from collections.abc import Callable
from queue import Empty
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import redis
import redis.asyncio as aioredis
from redis.asyncio import sentinel as aiosentinel
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, NoScriptError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

from django_quota.core.errors import StoreBusy, StoreUnavailable
from django_quota.stores.breaker import Breaker
from django_quota.stores.redis import connections
from django_quota.stores.redis.connections import (
    CHECK_AFTER_IDLE,
    GIVING_BACK,
    LATE,
    Source,
    SyncPool,
    async_source,
    connecting,
    is_too_late,
    sync_pool,
    sync_source,
)
from django_quota.stores.redis.errors import ConnectFailedError
from django_quota.stores.redis.settings import ANSWER_TIMEOUT
from tests.support.outages import FAILURES, fail
from tests.support.sentinels import played_sentinels
from tests.support.steps import Clock

PLACES = 2
"""How many connections the pool of a test has."""


class Wire:
    """A wire that notes what was sent, and reads what the test has prepared: a reply, or an error to raise."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.sent: list[bytes] = []
        self.replies: list[Any] = []
        self.used = 0.0
        self.is_closed = False
        self.says_more = False
        connection.wires.append(self)

    def is_ready(self) -> bool:
        return not (self.is_closed or self.says_more or self.connection.says_more)

    def send(self, commands: bytes) -> None:
        self.sent.append(commands)

    def read(self) -> Any:
        reply = self.replies.pop(0) if self.replies else b"OK"
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def close(self) -> None:
        self.is_closed = True


class Site:
    """A pool with connections that a test plays."""

    host, port = "h", 1
    says_more = False

    def __init__(self) -> None:
        self.wires: list[Wire] = []
        self.breaker = Breaker()
        self.clock = Clock()
        self.disconnected = 0
        self.connects: Callable[[], object] = bool
        self.pool: Any = self.pool_with(None)

    def pool_with(self, sentinels: Any) -> SyncPool:
        kind: Any = lambda **_: self  # noqa: E731 — the connection is this object
        source = Source(kind, {"socket_timeout": 1.0, "socket_connect_timeout": 2.0}, sentinels)
        self.pool = made = SyncPool(source, PLACES, 0.5, self.breaker)
        return made

    def connect(self) -> None:
        self.connects()

    def disconnect(self) -> None:
        self.disconnected += 1

    def idle(self, number: int) -> list[Wire]:
        """Leave so many idle wires in the pool; the last one is used next."""
        wires: list[Any] = [self.pool._connect() for _ in range(number)]
        for each in wires:
            self.pool._keep(each)
        return wires

    def fails(self, error: BaseException, **options: Any) -> None:
        with pytest.raises(type(error)):
            self.pool.execute(("GET", "a"), **options)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(connections, "Wire", Wire)
    made = Site()
    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=made.clock))
    return made


# --- a call -----------------------------------------------------------------------------------------------------------


class TestACall:
    def test_uses_the_connection_that_was_used_last(self, site: Site) -> None:
        first, last = site.idle(2)

        site.pool.execute(("GET", "a"))

        assert (len(first.sent), len(last.sent)) == (0, 1)

    def test_leaves_its_connection_to_the_next(self, site: Site) -> None:
        for _ in range(3):
            site.pool.execute(("GET", "a"))

        assert len(site.wires) == 1

    @pytest.mark.parametrize("reply", [b"a", None, 0], ids=repr)
    def test_returns_the_reply(self, reply: object, site: Site) -> None:
        (wire,) = site.idle(1)
        wire.replies = [reply]

        assert site.pool.execute(("GET", "a")) == reply

    def test_does_not_ask_another_server_of_a_cluster(self, site: Site) -> None:
        (wire,) = site.idle(1)

        site.pool.execute(b"command")

        assert wire.sent == [b"command"]

    @pytest.mark.parametrize("said", [b"OK", ResponseError("ERR no cluster")], ids=["well", "an error"])
    def test_that_asks_another_server_of_a_cluster_returns_the_second_reply(self, said: object, site: Site) -> None:
        (wire,) = site.idle(1)
        wire.replies = [said, b"a"]

        assert site.pool.execute(b"command", is_asking=True) == b"a"
        assert wire.sent == [b"*1\r\n$6\r\nASKING\r\ncommand"]

    def test_that_asks_another_server_of_a_cluster_raises_a_missing_reply(self, site: Site) -> None:
        (wire,) = site.idle(1)
        wire.replies = [RedisTimeoutError("late")]

        site.fails(RedisTimeoutError(), is_asking=True)

        assert wire.is_closed


KEPT = [ResponseError("WRONGTYPE"), NoScriptError("NOSCRIPT")]
LEFT = [
    ReadOnlyError("READONLY"), RedisTimeoutError("late"), RedisConnectionError("Connection closed by server."),
    InvalidResponse("x"), ValueError("x"),
]  # fmt: skip
ENDED = [KeyboardInterrupt(), SystemExit()]


class TestAfterAnError:
    @pytest.mark.parametrize("error", KEPT, ids=type)
    def test_that_is_a_reply_the_connection_is_kept(self, error: Exception, site: Site) -> None:
        (wire,) = site.idle(1)
        wire.replies = [error]

        site.fails(error)

        assert list(site.pool._idle) == [wire]

    @pytest.mark.parametrize("error", [*LEFT, *ENDED], ids=type)
    def test_that_leaves_a_reply_the_connection_is_closed(self, error: BaseException, site: Site) -> None:
        (wire,) = site.idle(1)
        wire.replies = [error]

        site.fails(error)

        assert wire.is_closed
        assert wire not in site.pool._idle

    @pytest.mark.parametrize("error", LEFT, ids=type)
    def test_of_one_connection_the_others_are_closed_as_well(self, error: Exception, site: Site) -> None:
        other, wire = site.idle(2)
        wire.replies = [error]

        site.fails(error)

        assert other.is_closed

    @pytest.mark.parametrize("error", ENDED, ids=type)
    def test_that_ends_the_process_the_others_are_kept(self, error: BaseException, site: Site) -> None:
        other, wire = site.idle(2)
        wire.replies = [error]

        site.fails(error)

        assert list(site.pool._idle) == [other]

    @pytest.mark.parametrize("error", [*KEPT, *LEFT, *ENDED], ids=type)
    def test_a_place_is_free_again(self, error: BaseException, site: Site) -> None:
        (wire,) = site.idle(1)
        wire.replies = [error]

        site.fails(error)

        assert site.pool._permits.qsize() == PLACES

    def test_that_is_a_reply_the_server_is_well(self, site: Site) -> None:
        (wire,) = site.idle(1)
        wire.replies = [KEPT[0]]
        fail(site.breaker, 1)

        site.fails(KEPT[0])

        assert not site.breaker.has_failed

    def test_that_is_silence_the_server_has_failed(self, site: Site) -> None:
        (wire,) = site.idle(1)
        wire.replies = [RedisTimeoutError("late")]

        site.fails(RedisTimeoutError())

        assert site.breaker.has_failed


class TestWhileTheBreakerIsOpen:
    @pytest.fixture(autouse=True)
    def is_open(self, site: Site) -> None:
        fail(site.breaker)

    def test_no_call_is_sent(self, site: Site) -> None:
        with pytest.raises(StoreUnavailable):
            site.pool.execute(("GET", "a"))
        assert site.wires == []

    def test_a_refused_call_takes_no_place(self, site: Site) -> None:
        with pytest.raises(StoreUnavailable):
            site.pool.execute(("GET", "a"))
        assert site.pool._permits.qsize() == PLACES

    def test_a_probe_that_is_interrupted_lets_another_one_ask(self, site: Site) -> None:
        vars(site.breaker).update(vars(Breaker(clock=site.clock)))
        fail(site.breaker, FAILURES)
        site.clock.now += 1
        site.connects = Mock(side_effect=KeyboardInterrupt)
        site.fails(KeyboardInterrupt())
        site.connects = bool

        assert site.pool.execute(("GET", "a")) == b"OK"


class TestACallThatFindsNoPlace:
    @pytest.fixture
    def waited(self, site: Site) -> Callable[..., float]:
        """Make a call while all places are taken; returns for how many seconds it waited."""

        def waited(patience: float = 0.5, **options: Any) -> float:
            site.pool._patience = patience
            site.pool._permits = permits = Mock(get_nowait=Mock(side_effect=Empty), get=Mock(side_effect=Empty))
            with pytest.raises(StoreBusy) as caught:
                site.pool.execute(("GET", "a"), **options)
            permits.put.assert_not_called()
            seconds = permits.get.call_args.kwargs["timeout"]
            assert caught.value.reason == f"all connections of this process were in use for {seconds:g} s"
            assert caught.value.__suppress_context__  # a queue that is empty says nothing more
            return cast("float", permits.get.call_args.kwargs["timeout"])

        return waited

    def test_waits_for_the_patience_of_its_pool(self, waited: Any) -> None:
        assert waited() == 0.5

    @pytest.mark.parametrize(
        ("patience", "seconds"), [(0.5, 30.0), (2 * GIVING_BACK, 2 * GIVING_BACK)], ids=["short", "long"]
    )
    def test_waits_for_longer_if_it_gives_back(self, patience: float, seconds: float, waited: Any) -> None:
        assert waited(patience, gives_back=True) == seconds

    def test_is_made_when_a_place_is_free(self, site: Site) -> None:
        site.pool._permits = permits = Mock(get_nowait=Mock(side_effect=Empty))

        assert site.pool.execute(("GET", "a")) == b"OK"
        permits.put.assert_called_once_with(None)


# --- an idle connection -----------------------------------------------------------------------------------------------


class TestAnIdleConnection:
    def test_that_the_server_has_closed_is_replaced_by_another_idle_one(self, site: Site) -> None:
        well, closed = site.idle(2)
        closed.says_more = True

        assert site.pool._connected() is cast("Any", well)
        assert closed.is_closed

    @pytest.mark.parametrize(
        ("later", "asked"), [(-0.01, []), (0, [b"*1\r\n$4\r\nTIME\r\n"])], ids=["shortly", "for long"]
    )
    def test_is_asked_whether_it_serves_after_it_idled(self, later: float, asked: list[bytes], site: Site) -> None:
        (wire,) = site.idle(1)
        site.clock.now += 1.0 + later

        assert site.pool._connected() is cast("Any", wire)
        assert wire.sent == asked

    def test_serves_if_it_answers_with_an_error(self, site: Site) -> None:
        (wire,) = site.idle(1)
        wire.replies = [ResponseError("NOPERM")]
        site.clock.now += CHECK_AFTER_IDLE

        assert site.pool._connected() is cast("Any", wire)

    @pytest.mark.parametrize("error", [RedisTimeoutError("x"), ReadOnlyError("x"), OSError("x")], ids=type)
    def test_that_does_not_serve_is_replaced_with_all_others(self, error: Exception, site: Site) -> None:
        other, wire = site.idle(2)
        wire.replies = [error]
        site.clock.now += CHECK_AFTER_IDLE

        assert site.pool._connected() not in (other, wire)
        assert (other.is_closed, wire.is_closed) == (True, True)

    def test_is_closed_if_asking_it_is_interrupted(self, site: Site) -> None:
        other, wire = site.idle(2)
        wire.replies = [KeyboardInterrupt()]
        site.clock.now += CHECK_AFTER_IDLE

        with pytest.raises(KeyboardInterrupt):
            site.pool._connected()
        assert (other.is_closed, wire.is_closed) == (False, True)

    def test_to_a_former_primary_is_replaced(self, site: Site) -> None:
        pool = played_sentinels()
        site.pool_with(pool)
        (wire,) = site.idle(1)
        pool.master_address = ("another", 1)
        site.host = "another"
        wire.connection = SimpleNamespace(host="h", port=1, says_more=False)

        assert site.pool._connected() is not cast("Any", wire)
        assert wire.is_closed


# --- a new connection -------------------------------------------------------------------------------------------------


class TestANewConnection:
    @pytest.mark.parametrize("error", [RedisConnectionError("refused"), KeyboardInterrupt()], ids=type)
    def test_that_cannot_be_made_is_closed(self, error: BaseException, site: Site) -> None:
        site.connects = Mock(side_effect=error)

        site.fails(error)

        assert site.disconnected == 1

    def test_on_which_the_server_says_more_than_it_was_asked_is_closed(self, site: Site) -> None:
        site.says_more = True

        with pytest.raises(ConnectFailedError) as caught:
            site.pool.execute(("GET", "a"))
        assert str(caught.value) == "the server sent unexpected data after connecting"
        assert site.disconnected == 1

    def test_to_a_server_that_is_no_longer_the_primary_is_closed(self, site: Site) -> None:
        site.pool_with(played_sentinels(("elsewhere", 1)))

        site.fails(ConnectFailedError())

        assert site.disconnected == 1

    def test_that_serves_stays_open(self, site: Site) -> None:
        site.pool.execute(("GET", "a"))

        assert site.disconnected == 0

    @pytest.fixture
    def tried(self, site: Site) -> Callable[..., tuple[int, Exception]]:
        """Connect in vain; returns how often that was tried, and the error. `took`: seconds of each try."""

        def tried(*took: float, asked: int = 0, error: Exception | None = None) -> tuple[int, Exception]:
            left = list(took)

            def late() -> None:
                site.clock.now += left.pop(0)
                raise error or RedisTimeoutError("late")

            site.connects = late
            site.pool_with(played_sentinels(clients=asked) if asked else None)
            with pytest.raises(Exception, match="late") as caught:
                site.pool.execute(("GET", "a"))
            return len(took) - len(left), caught.value

        return tried

    LONGEST = 2.0 + 0.1
    """Seconds that connecting takes at most, with these time-outs."""

    def test_that_times_out_in_time_fails(self, tried: Any) -> None:
        times, error = tried(self.LONGEST - 0.01, 9)

        assert (times, type(error)) == (1, RedisTimeoutError)

    @pytest.mark.parametrize(
        "late", [RedisTimeoutError("late"), TimeoutError("late"), MasterNotFoundError("late")], ids=type
    )
    def test_that_times_out_too_late_is_tried_once_more(self, late: Exception, tried: Any) -> None:
        times, error = tried(self.LONGEST + 0.01, self.LONGEST - 0.01, 9, error=late)

        assert (times, error) == (2, late)

    def test_that_times_out_too_late_twice_finds_the_process_busy(self, tried: Any) -> None:
        times, error = tried(self.LONGEST + 0.01, self.LONGEST + 0.01, 9)

        assert (times, type(error)) == (2, StoreBusy)
        assert error.reason == "this process was too busy to connect: late"
        assert error.__suppress_context__  # the frames of redis-py have the password

    def test_is_given_more_time_by_each_sentinel(self, tried: Any) -> None:
        times, _ = tried(3 * 2.0 + LATE - 0.01, 9, asked=2)

        assert times == 1


@pytest.mark.parametrize(("more", "is_late"), [(0.0, False), (0.125, True)], ids=["in time", "too late"])
def test_connecting_is_too_late_after_all_time_outs(
    more: float, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LATE", 0.25)
    source = Source(Site, {"socket_timeout": 2.0, "socket_connect_timeout": 1.0}, played_sentinels(clients=1))

    assert is_too_late(100.0, source, 104.25 + more) is is_late


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM], ids=errno.errorcode.get)
def test_a_process_that_may_open_no_more_files_is_busy(code: int) -> None:
    error = RedisConnectionError("Error connecting")
    error.__cause__ = OSError(code, "no more")

    with pytest.raises(StoreBusy) as caught, connecting():
        raise error
    assert caught.value.reason == "this process cannot open another connection: Error connecting"
    assert caught.value.__suppress_context__  # the frames of redis-py have the password


@pytest.mark.parametrize(
    "error", [ConnectionResetError("x"), RedisConnectionError("Connection closed by server.")], ids=type
)
def test_a_new_connection_that_is_cut_was_answered_by_no_redis(error: Exception) -> None:
    with pytest.raises(ConnectFailedError) as caught, connecting():
        raise error
    assert (str(caught.value), caught.value.__cause__) == (f"cut before an answer: {error}", error)


@pytest.mark.parametrize(
    "error", [RedisConnectionError("refused"), OSError(errno.ECONNREFUSED, "x"), ResponseError("x")], ids=type
)
def test_another_error_of_a_new_connection_stays_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, connecting():
        raise error
    assert caught.value is error


def test_a_pool_that_closes_closes_its_idle_connections(site: Site) -> None:
    wires = site.idle(2)

    site.pool.close()

    assert ([each.is_closed for each in wires], len(site.pool._idle)) == ([True, True], 0)


def test_a_pool_that_closes_closes_its_clients_of_sentinels(site: Site) -> None:
    pool = played_sentinels(clients=2)
    site.pool_with(pool)

    site.pool.close()

    assert [each.close.call_count for each in pool.sentinel_manager.sentinels] == [1, 1]


@pytest.mark.parametrize(
    ("pool", "leads_elsewhere"),
    [
        (None, False),
        (played_sentinels(("h", 1)), False),
        (played_sentinels(("h", 2)), True),
        (played_sentinels(("i", 1)), True),
        (played_sentinels(("h", 2), is_master=False), False),
    ],
    ids=["no sentinels", "the primary", "another port", "another host", "a replica that was asked for"],
)
def test_only_a_connection_to_a_former_primary_leads_elsewhere(pool: Any, leads_elsewhere: bool) -> None:
    source = Source(Site, {}, pool)

    assert source.leads_elsewhere(SimpleNamespace(host="h", port=1)) is leads_elsewhere


# --- from a pool of redis-py ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_pool", "set_to", "found"),
    [(999, None, 50), (20, None, 20), (999, 3, 3), (999, 70, 70), (5, 70, 5)],
    ids=["no setting", "of the pool", "a few", "many", "more than the pool has"],
)
def test_a_process_has_fifty_connections_unless_the_settings_say(of_pool: int, set_to: Any, found: int) -> None:
    pool = redis.ConnectionPool(max_connections=of_pool)

    made = sync_pool(pool, {"max_connections": set_to}.get, Breaker())

    assert made._permits.qsize() == found


def test_a_call_waits_for_a_connection_as_long_as_the_settings_say() -> None:
    made = sync_pool(redis.ConnectionPool(), {"timeout": 7}.get, Breaker())

    assert made._patience == 7


class TestTheConnectionsOfAnEventLoop:
    @pytest.mark.parametrize(
        ("kind", "twin"),
        [
            (redis.Connection, aioredis.Connection),
            (redis.SSLConnection, aioredis.SSLConnection),
            (redis.UnixDomainSocketConnection, aioredis.UnixDomainSocketConnection),
            (SentinelManagedConnection, aiosentinel.SentinelManagedConnection),
            (SentinelManagedSSLConnection, aiosentinel.SentinelManagedSSLConnection),
            (type("OfSite", (redis.SSLConnection,), {}), aioredis.SSLConnection),
            (type("Another", (), {}), aioredis.Connection),
        ],
        ids=[
            "TCP", "TLS", "a socket file", "Sentinel", "Sentinel by TLS", "a class of the site",
            "a class that nobody knows",
        ],
    )  # fmt: skip
    def test_are_of_the_class_that_the_settings_mean(self, kind: type[Any], twin: type[Any]) -> None:
        pool: Any = redis.ConnectionPool(connection_class=kind)

        assert async_source(pool).connection_class is twin

    def test_take_the_options_of_the_settings(self) -> None:
        pool: Any = redis.ConnectionPool(host="h", db=3, client_name="limits")

        options = async_source(pool).options

        assert (options["host"], options["db"], options["client_name"]) == ("h", 3, "limits")

    def test_have_short_time_outs_where_the_settings_have_none(self) -> None:
        pool: Any = redis.ConnectionPool(socket_timeout=3)

        options = async_source(pool).options

        assert (options["socket_timeout"], options["socket_connect_timeout"]) == (3, ANSWER_TIMEOUT)

    @pytest.mark.parametrize(
        "option",
        [
            "retry", "retry_on_error", "retry_on_timeout", "maint_notifications_config", "orig_host_address",
            "oss_cluster_maint_notifications_handler", "himport_method", "parser_class", "command_packer",
        ],
    )  # fmt: skip
    def test_leave_out_what_repeats_commands_or_reads_replies(self, option: str) -> None:
        pool: Any = SimpleNamespace(connection_class=redis.Connection, connection_kwargs={option: object()})

        assert option not in async_source(pool).options

    @pytest.mark.parametrize(("value", "is_kept"), [(True, True), (None, False), (False, False)], ids=repr)
    def test_leave_out_an_option_that_they_do_not_know_only_if_it_sets_nothing(
        self, value: object, is_kept: bool
    ) -> None:
        pool: Any = SimpleNamespace(connection_class=redis.Connection, connection_kwargs={"of_another": value})

        assert ("of_another" in async_source(pool).options) is is_kept

    @pytest.mark.parametrize("option", ["parser_class", "command_packer"])
    def test_of_threads_keep_what_reads_replies(self, option: str) -> None:
        pool: Any = SimpleNamespace(connection_class=redis.Connection, connection_kwargs={option: object()})

        assert option in sync_source(pool).options

    def test_read_replies_as_bytes(self) -> None:
        pool: Any = redis.ConnectionPool(decode_responses=True)

        assert async_source(pool).options["decode_responses"] is False


class TestTheSentinelsOfAnEventLoop:
    @pytest.fixture
    def pool(self) -> Callable[..., Any]:
        """Return redis-py's pool of sentinels for tasks, for one of threads with these options."""

        def pool(**options: Any) -> Any:
            manager = cast("Any", Sentinel)([("a", 1), ("b", 2)], sentinel_kwargs={"password": "x"})
            made = cast("Any", SentinelConnectionPool)("mymaster", manager, **options)
            return async_source(made).sentinels

        return pool

    @pytest.mark.parametrize("option", ["is_master", "check_connection"])
    @pytest.mark.parametrize("value", [True, False])
    def test_name_the_server_that_the_settings_ask_for(self, option: str, value: bool, pool: Any) -> None:
        assert getattr(pool(**{option: value}), option) is value

    def test_are_asked_for_the_name_of_the_settings(self, pool: Any) -> None:
        assert pool().service_name == "mymaster"

    def test_are_those_of_the_settings_in_their_order(self, pool: Any) -> None:
        options = [each.connection_pool.connection_kwargs for each in pool().sentinel_manager.sentinels]

        assert [(each["host"], each["port"], each["password"]) for each in options] == [("a", 1, "x"), ("b", 2, "x")]
