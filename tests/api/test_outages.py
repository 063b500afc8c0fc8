"""While Redis does not answer, no call waits long and one log line says so; afterwards everything works by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from redis import exceptions as theirs

from django_quota import Rule, StoreUnavailable, acheck, check, concurrency, counter, peek, reserve
from django_quota.engine.decide import Decide
from django_quota.exceptions import ConfigurationError, StoreCommandDenied
from django_quota.services.registry import get_limiter
from django_quota.signals import store_lost
from django_quota.stores.redis.breaker import FAILURES
from django_quota.stores.redis.config import ANSWER_TIMEOUT, with_timeouts
from django_quota.stores.redis.errors import AllInUseError, is_silence, translate_error
from django_quota.stores.redis.store import RedisStore
from django_quota.testing import RedisServer, freeze, running_redis
from tests.support.calls import both
from tests.support.outages import FULL, Mute, ask, heard, with_clock
from tests.support.steps import SECOND, START, Clock
from tests.support.stores import caches, current_store

SUBJECT = "ip:203.0.113.9"


@both
class TestAServerThatHangs:
    def test_a_server_that_does_not_answer_opens_the_breaker(self, kind: str, mute: Mute, clock: Clock) -> None:
        with_clock(clock)
        decisions = ask(kind, 50)
        assert all(decision.allowed and decision.degraded for decision in decisions)
        assert mute.met <= FAILURES

    def test_one_caller_probes_after_the_reset_timeout(self, kind: str, mute: Mute, clock: Clock) -> None:
        with_clock(clock)
        ask(kind, FAILURES)
        before = mute.met
        clock.now += 1
        ask(kind, 10)
        assert mute.met == before + 1

    def test_the_outage_is_logged_and_sent_once(
        self, kind: str, mute: Mute, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        with_clock(clock)
        with heard() as reported:
            ask(kind, 20)
        assert [what for what, _ in reported] == ["lost"]
        assert reported[0][1]["reason"]
        assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


@both
def test_a_check_during_an_outage_makes_no_command(
    kind: str, mute: Mute, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_clock(clock)
    for _ in range(FAILURES):
        assert check("1/m", SUBJECT).degraded
    monkeypatch.setattr(Decide, "evalsha", None)
    decision = check("1/m", SUBJECT) if kind == "sync" else asyncio.run(acheck("1/m", SUBJECT))
    assert (decision.allowed, decision.degraded, decision.rule, decision.subject) == (True, True, "1/m", SUBJECT)
    assert not check(Rule.make("unlimited", None), SUBJECT).degraded
    monkeypatch.undo()
    assert not check("1/m", SUBJECT, on_unavailable="deny")
    for _ in range(2):
        local = check("1/m", SUBJECT, on_unavailable="local")
    assert not local


def test_sync_and_async_share_the_breaker(mute: Mute, clock: Clock) -> None:
    with_clock(clock)
    ask("sync", FAILURES)
    before = mute.met
    ask("async", 5)
    assert mute.met == before


def test_counters_raise_without_waiting(mute: Mute, clock: Clock) -> None:
    with_clock(clock)
    ask("sync", FAILURES)
    before = mute.met
    with pytest.raises(StoreUnavailable, match="several times in a row"):
        counter("clicks").incr("user:1")
    assert mute.met == before


@both
def test_decisions_recover_when_redis_is_back(
    kind: str, redis_cache: RedisServer, settings: Any, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    store = with_clock(clock)
    with heard() as reported:
        for _ in range(FAILURES):
            store.server.breaker.failed()
        assert ask(kind)[0].degraded
        clock.now += 1
        assert not ask(kind)[0].degraded
        assert not ask(kind, 3)[0].degraded
    assert [what for what, _ in reported] == ["lost", "back"]
    assert reported[1][1]["seconds"] >= 0
    assert "answers again, after" in caplog.text


WELL_AGAIN = ("CONFIG", "SET", "maxmemory", "0")
READ_ONLY, ITS_OWN_MASTER = ("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize(
    ("fault", "mend"), [(FULL, WELL_AGAIN), (READ_ONLY, ITS_OWN_MASTER)], ids=["full", "read-only"]
)
@both
def test_reads_do_not_end_the_outage_of_a_read_only_server(
    kind: str, fault: tuple[str, ...], mend: tuple[str, ...], redis_server: RedisServer, settings: Any, clock: Clock
) -> None:
    with (
        running_redis(redis_server.program) as server,
        redis.Redis.from_url(server.url) as client,
        heard() as reported,
        freeze(START),
    ):
        settings.CACHES = caches(server)
        with_clock(clock)
        visitor = "ip:192.0.2.1"  # whose days are not counted
        ask(kind, 10, visitor)  # the last is refused, and told
        client.execute_command(*fault)
        for number in range(FAILURES + 1):
            assert check("9/m", f"user:other-{number}").degraded
            clock.now += 1
            assert (ask(kind, 1, visitor)[0].allowed, peek("9/m", visitor).degraded) == (False, False)
        assert [what for what, _ in reported] == ["lost"]
        client.execute_command(*mend)
        clock.now += 1
        assert check("9/m", "user:other").allowed
        assert [what for what, _ in reported] == ["lost", "back"]


@pytest.fixture
def full_redis(redis_server: RedisServer, settings: Any) -> Iterator[None]:
    with running_redis(redis_server.program) as server, redis.Redis.from_url(server.url) as client:
        settings.CACHES = caches(server)
        assert not check("9/m", "ip:192.0.2.9").degraded
        client.execute_command(*FULL)
        yield
        client.execute_command(*WELL_AGAIN)


def test_a_late_settlement_charges_nothing_in_this_process(redis_server: RedisServer, settings: Any) -> None:
    with running_redis(redis_server.program) as server, freeze(START):
        settings.CACHES = caches(server)
        reservation = reserve("9/m", "user:1", 5, ttl=1, on_unavailable="local")
    with freeze(START + 2 * SECOND):
        assert reservation.settle(7).degraded
        assert check("9/m", "user:1", on_unavailable="local").remaining == 8


class TestARedisThatIsFull:
    """A client that fills the memory of Redis does not switch the limits off."""

    @both
    def test_a_full_redis_makes_rules_count_in_each_process(self, kind: str, full_redis: None) -> None:
        decisions = ask(kind, 30)
        assert all(decision.degraded for decision in decisions)
        assert sum(decision.allowed for decision in decisions) == 9
        assert decisions[-1].binding is not None  # a real refusal with its wait, and no 503

    def test_each_process_takes_its_part_of_the_limit(self, full_redis: None) -> None:
        workers = get_limiter().workers
        assert workers is not None
        workers.number = 3
        assert sum(decision.allowed for decision in ask("sync", 30)) == 3

    @pytest.mark.parametrize(("says", "admitted"), [("allow", 30), ("deny", 0), ("local", 9)])
    def test_on_unavailable_of_a_rule_wins(self, says: Any, admitted: int, full_redis: None) -> None:
        assert sum(check("9/m", "user:1", on_unavailable=says).allowed for _ in range(30)) == admitted

    @pytest.mark.parametrize(("says", "admitted"), [("allow", 9), ("deny", 0), ("local", 9)])
    def test_of_the_setting_only_deny_is_stricter(
        self, says: str, admitted: int, full_redis: None, settings: Any
    ) -> None:
        settings.QUOTA = {**(getattr(settings, "QUOTA", None) or {}), "ON_UNAVAILABLE": says}
        assert sum(decision.allowed for decision in ask("sync", 30)) == admitted

    def test_slots_of_views_are_counted_in_this_process(self, full_redis: None, rf: RequestFactory) -> None:
        inner: list[int] = []

        @concurrency(2, key="global", name="export")
        def view(request: HttpRequest) -> HttpResponse:
            inner.append(view(request).status_code)
            return HttpResponse()

        assert view(rf.get("/")).status_code == 200
        assert inner == [429, 200]

    def test_the_log_says_what_rules_do(self, full_redis: None, caplog: pytest.LogCaptureFixture) -> None:
        ask("sync", 3)
        (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert "Redis is full: until it takes changes again, each process counts by itself" in line


def test_a_redis_that_is_gone_does_not_count_as_full(settings: Any, redis_server: RedisServer) -> None:
    with running_redis(redis_server.program) as server:
        settings.CACHES = caches(server)
    assert all(decision.allowed for decision in ask("sync", 30))


def test_an_async_receiver_gets_the_signal(mute: Mute, clock: Clock) -> None:
    with_clock(clock)
    reported: list[str] = []

    async def lost(**carried: Any) -> None:
        reported.append(carried["reason"])

    store_lost.connect(lost)
    try:
        ask("async")
    finally:
        store_lost.disconnect(lost)
    assert len(reported) == 1


@pytest.mark.parametrize(
    ("error", "no_answer"),
    [
        (theirs.ConnectionError("Error 111 connecting to 127.0.0.1:1. Connection refused."), True),
        (theirs.ConnectionError("Connection closed by server."), False), (ConnectionResetError(), False),
        (theirs.ConnectionError("Error while reading from /tmp/s : (104, 'Connection reset by peer')"), False),
        (theirs.ConnectionError("Error UNKNOWN while writing to socket. Connection lost."), False),
        (theirs.TimeoutError("Timeout"), True), (OSError(), True),
        (theirs.BusyLoadingError("LOADING Redis is loading the dataset in memory"), True),
        (theirs.ReadOnlyError("You can't write against a read only replica."), False),
        (theirs.ResponseError("MISCONF Redis is configured to save RDB snapshots"), False),
        (theirs.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), False),
        (theirs.ResponseError("ERR Error running script (call to f_x): @user_script:1: OOM command"), False),
        (theirs.ResponseError("Error running script: @user_script: 9: -READONLY You can't write"), False),
        (theirs.AuthenticationError("NOAUTH"), True), (theirs.NoPermissionError("NOPERM"), False),
        (theirs.ClusterDownError("The cluster is down"), False), (theirs.TryAgainError("TRYAGAIN"), False),
        (theirs.ResponseError("BUSY Redis is busy running a script"), False),
        (theirs.ResponseError("max number of clients reached"), False), (theirs.InvalidResponse("x"), True),
        (theirs.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"), False),
        (theirs.ResponseError("ERR Error running script: @user_script: 9: WRONGTYPE Operation against a key"), False),
        (theirs.ResponseError("ERR user_script:12: attempt to index a nil value"), False),
        (AllInUseError("all 50 connections are in use"), False),
    ],
    ids=lambda value: getattr(value, "args", None) and str(value)[:28],
)  # fmt: skip
def test_each_error_is_translated_and_only_silence_counts_as_a_failure(error: Any, no_answer: bool) -> None:
    assert isinstance(translate_error(error), StoreUnavailable)
    assert is_silence(error) is no_answer


@pytest.mark.parametrize(
    "words",
    [
        "The user executing the script can't run this command or subcommand script: f_1.",
        "ACL failure in script: User quota has no permissions to run the 'pfadd' command script: f_1.",
    ],
    ids=["up to Redis 7.0", "since Redis 7.2, and Valkey"],
)
def test_a_script_without_permission_says_nothing_about_other_calls(words: str) -> None:
    failure = translate_error(theirs.ResponseError(words))
    assert isinstance(failure, StoreUnavailable)
    assert isinstance(failure, StoreCommandDenied)


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("b'HTTP/1.1 400 Bad Request'", ", but HTTP/1.1"),
        ('Protocol error, got "H" as reply type byte', ", but perhaps HTTP"),
        ("b'SSH-2.0-OpenSSH'", ""),
    ],
)
def test_the_error_names_the_protocol_of_a_server_that_is_not_redis(words: str, instead: str) -> None:
    what = "The quota store is unavailable: InvalidResponse: what answers there does not speak the protocol of Redis"
    assert str(translate_error(theirs.InvalidResponse(words))) == f"{what}{instead}"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("MOVED 3999 127.0.0.1:6381", ConfigurationError),
        ("CROSSSLOT Keys in request don't hash to the same slot", ConfigurationError),
        ("MOVED nonsense", StoreUnavailable),
    ],
)
def test_cluster_errors_of_a_plain_client_are_configuration_errors(words: str, kind: type[Exception]) -> None:
    assert isinstance(translate_error(theirs.ResponseError(words)), kind)


def test_a_key_of_another_type_affects_only_its_subject(redis_cache: RedisServer, raw: Any) -> None:
    raw.set("quota:1:{user:1}:r:9/m:sw.60s", "alien")
    assert all(check("9/m", "user:1").degraded for _ in range(3 * FAILURES))
    assert not check("9/m", "user:2").degraded


class TestTimeouts:
    def test_missing_timeouts_are_short(self) -> None:
        assert with_timeouts({"a": 1}) == {
            "a": 1,
            "socket_timeout": ANSWER_TIMEOUT,
            "socket_connect_timeout": ANSWER_TIMEOUT,
        }
        assert with_timeouts({"socket_timeout": 9, "socket_connect_timeout": None})["socket_timeout"] == 9

    def test_connections_have_short_timeouts(self, redis_cache: RedisServer, settings: Any) -> None:
        settings.CACHES = {"default": {**settings.CACHES["default"], "OPTIONS": {}}}
        store = current_store()
        assert isinstance(store, RedisStore)
        connection = store.server.connections.take()
        assert (connection.socket_timeout, connection.socket_connect_timeout) == (ANSWER_TIMEOUT, ANSWER_TIMEOUT)
        store.server.connections.release(connection)


@both
def test_an_error_of_the_caller_keeps_its_traceback(kind: str, mute: Mute) -> None:
    def look_up() -> None:
        raise KeyError("the caller's")

    def handle() -> None:
        try:
            look_up()
        except KeyError:
            assert ask(kind)[0].degraded
            raise

    with pytest.raises(KeyError) as found:
        handle()
    assert "look_up" in [entry.name for entry in found.traceback]
