"""The breaker opens after failures in a row and closes with the first answer; and what an error of redis-py means."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django_redis import get_redis_connection
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from redis import exceptions as theirs

from django_quota import acheck, check, once
from django_quota.adapters import digest
from django_quota.core.errors import StoreBusy, StoreCommandDenied, StoreDataError, StoreRefusesWrites
from django_quota.engine.decide import Decide
from django_quota.engine.operations import Script
from django_quota.exceptions import ConfigurationError, StoreUnavailable
from django_quota.stores.breaker import PROBE_TIMEOUT, Breaker, GuardedCall
from django_quota.stores.redis.errors import server_answered, translate_error
from django_quota.testing import RedisServer
from tests.support.clusters import Cluster
from tests.support.inputs import inputs
from tests.support.outages import FAILURES, due_breaker, fail, new_breaker
from tests.support.processes import forks, in_child
from tests.support.steps import Clock
from tests.support.stores import caches, redis_store


@pytest.fixture
def opened(clock: Clock) -> Breaker:
    """A breaker that has just opened."""
    made = Breaker(failures=3, reset_timeout=1.0, clock=clock)
    for _ in range(3):
        assert made.acquire() is False
        made.failed()
    return made


def test_one_of_many_threads_probes(opened: Breaker, clock: Clock) -> None:
    barrier = threading.Barrier(16)

    def acquire(_: int) -> bool | None:
        barrier.wait()
        return opened.acquire()

    rounds = []
    with ThreadPoolExecutor(16) as threads:
        for _ in range(20):
            clock.now += 1
            rounds.append(sorted(threads.map(acquire, range(16)), key=str))
            opened.failed()

    assert [acquired for acquired in rounds if acquired != [None] * 15 + [True]] == []


@forks
def test_a_forked_process_does_not_wait_for_its_parent(opened: Breaker, clock: Clock) -> None:
    clock.now += 1
    assert opened.acquire()
    with opened._lock:  # as another thread may at the moment of the fork
        assert in_child(lambda: opened.acquire() is True) == 1
    assert opened.acquire() is None


def test_a_probe_that_is_cancelled_lets_another_one_ask_at_once(opened: Breaker, clock: Clock) -> None:
    clock.now += 1
    with pytest.raises(KeyboardInterrupt), GuardedCall(opened, lambda error: None):
        raise KeyboardInterrupt
    assert opened.acquire() is True


@pytest.mark.parametrize(
    ("answers", "has_failed", "is_open", "is_refusing"),
    [
        ([], False, False, False),
        ([False], True, False, False),
        ([False, False], True, False, False),
        ([False, False, False], True, True, True),
        ([False, False, True, False], True, False, False),
        ([False, False, False, True], False, False, False),
        ([False, False, None], True, False, False),
    ],
    ids=["new", "one", "two", "three in a row", "not in a row", "answered again", "a call that shows nothing"],
)
def test_three_failures_in_a_row_open_a_breaker(
    answers: list[bool | None], has_failed: bool, is_open: bool, is_refusing: bool, clock: Clock
) -> None:
    breaker = Breaker(clock=clock)
    for answered in answers:
        breaker.leave(answered, is_probe=False)

    assert (breaker.has_failed, breaker.is_open, breaker.is_refusing()) == (has_failed, is_open, is_refusing)


def test_a_call_that_began_before_a_breaker_opened_lets_nobody_ask_when_it_is_cancelled(clock: Clock) -> None:
    breaker = Breaker(clock=clock)

    def is_interrupted() -> None:
        fail(breaker)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), GuardedCall(breaker, lambda error: None):
        is_interrupted()
    assert breaker.is_refusing()


def test_a_probe_without_a_result_counts_as_lost_after_five_seconds(opened: Breaker, clock: Clock) -> None:
    clock.now += 1
    assert opened.acquire() is True

    clock.now += 4.75
    assert opened.acquire() is None
    clock.now += 0.25
    assert opened.acquire() is True


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ([], "it has failed several times in a row, and is asked again in a moment"),
        (["a:1"], "a:1 has failed several times in a row, and is asked again in a moment"),
    ],
    ids=["the only server", "one of several"],
)
def test_a_call_that_is_refused_names_its_server(names: list[str], reason: str, opened: Breaker) -> None:
    with pytest.raises(StoreUnavailable) as caught, GuardedCall(opened, lambda error: None, *names):
        pytest.fail("it was made")
    with pytest.raises(StoreUnavailable) as entered:
        opened.enter(*names)

    assert (caught.value.reason, entered.value.reason) == (reason, reason)


@pytest.mark.parametrize("does", ["acquire", "failed", "succeeded", "release"])
def test_what_a_breaker_knows_changes_under_its_lock(does: str, clock: Clock) -> None:
    """Else a failure that is being counted would hide an answer that comes meanwhile."""
    changed: list[str] = []

    class Watched(Breaker):
        def __setattr__(self, name: str, value: object) -> None:
            if name in ("_failed", "_probe_from") and does in used:
                assert self._lock.locked()
                changed.append(name)
            super().__setattr__(name, value)

    used: list[str] = []
    breaker = Watched(clock=clock)
    fail(breaker)
    clock.now += 1
    used.append(does)

    getattr(breaker, does)()

    assert changed


class Life(RuleBasedStateMachine):
    """A breaker against a plain model of it."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breaker = Breaker(failures=3, reset_timeout=1.0, clock=self.clock)
        self.row = 0
        self.next_probe_at = 0.0

    @property
    def lets_one(self) -> bool:
        return self.row < 3 or self.clock.now >= self.next_probe_at

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, PROBE_TIMEOUT - 0.25, PROBE_TIMEOUT]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def ask(self) -> None:
        expected = (self.row >= 3) if self.lets_one else None
        assert self.breaker.acquire() is expected
        if expected:
            self.next_probe_at = self.clock.now + PROBE_TIMEOUT

    @rule()
    def is_answered(self) -> None:
        self.breaker.succeeded()
        self.row = 0

    @rule()
    def fails(self) -> None:
        self.breaker.failed()
        self.row += 1
        self.next_probe_at = self.clock.now + 1

    @rule()
    def a_probe_leaves(self) -> None:
        self.breaker.release()
        self.next_probe_at = 0.0

    @invariant()
    def open_after_three(self) -> None:
        assert self.breaker.is_open is (self.row >= 3)
        assert self.breaker.is_refusing() is not self.lets_one


TestLife = Life.TestCase
TestLife.settings = inputs(250, stateful_step_count=50)


ERRORS: Any = {
    False: [
        theirs.ConnectionError("Error 111 connecting to 127.0.0.1:1. Connection refused."), OSError(),
        theirs.TimeoutError("Timeout"), theirs.InvalidResponse("x"), theirs.AuthenticationError("NOAUTH"),
        theirs.BusyLoadingError("LOADING Redis is loading the dataset in memory"), theirs.ClusterDownError("down"),
    ],
    None: [
        theirs.ConnectionError("Connection closed by server."), ConnectionResetError(), StoreBusy("all in use"),
        theirs.ConnectionError("Error while reading from /tmp/s : (104, 'Connection reset by peer')"),
        theirs.ConnectionError("Error UNKNOWN while writing to socket. Connection lost."),
    ],
    True: [
        theirs.ReadOnlyError("READONLY"), theirs.NoPermissionError("NOPERM"), theirs.ClusterError("TTL exhausted."),
        theirs.TryAgainError("TRYAGAIN"), theirs.ResponseError("BUSY"), theirs.ResponseError("max number of clients"),
    ],
}  # fmt: skip


EACH_ERROR = [
    pytest.param(error, is_answer, id=f"{error!r}") for is_answer, errors in ERRORS.items() for error in errors
]


@pytest.mark.parametrize(("error", "is_answer"), EACH_ERROR)
def test_only_silence_counts_as_a_failure_of_the_server(error: Exception, is_answer: bool | None) -> None:
    assert server_answered(error) is is_answer


@pytest.mark.parametrize(("error", "_"), EACH_ERROR)
def test_any_error_of_redis_py_means_that_the_store_is_unavailable(error: Exception, _: bool | None) -> None:
    assert isinstance(translate_error(error), StoreUnavailable)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("MOVED 3999 127.0.0.1:6381", ConfigurationError),
        ("CROSSSLOT Keys in request don't hash to the same slot", ConfigurationError),
        ("MOVED nonsense", StoreUnavailable),
        ("MISCONF Redis is configured to save RDB snapshots", StoreRefusesWrites),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", StoreDataError),
        ("ERR Error running script: @user_script: 9: WRONGTYPE Operation against a key", StoreDataError),
        ("ERR user_script:12: attempt to index a nil value", StoreDataError),
        ("The user executing the script can't run this command or subcommand script: f_1.", StoreCommandDenied),
        ("ACL failure in script: User quota has no permissions to run the 'pfadd' command", StoreCommandDenied),
    ],
    ids=["moved", "slots", "moved, no address", "disk", "type", "type in a script", "nil", "ACL of 7.0", "ACL of 7.2"],
)
def test_an_error_reply_has_its_kind(words: str, kind: type[Exception]) -> None:
    assert type(translate_error(theirs.ResponseError(words))) is kind


def test_the_words_of_a_server_that_is_not_redis_are_not_repeated() -> None:
    foreign: Any = theirs.InvalidResponse("b'AUTH secret'")

    assert str(translate_error(foreign)).endswith("is not a Redis server")


OLD_REDIS = """
local real = redis
local redis = { error_reply = real.error_reply, pcall = function() return %s end }
"""
"""Hides from a script what its server tells. Redis names its version to scripts since 7.0."""


@pytest.mark.parametrize(
    ("info", "named"),
    [("'redis_version:6.2.14\\r\\n'", "Redis 6.2.14"), ("{ err = 'NOPERM' }", "Redis older than 7.0")],
    ids=["a known version", "an unknown version"],
)
@pytest.mark.parametrize(
    "ask", [lambda: check("1/m", "a:1"), lambda: asyncio.run(acheck("1/m", "a:1"))], ids=["sync", "async"]
)
def test_a_server_that_is_too_old_is_a_configuration_error_with_its_version(
    ask: Callable[[], object], info: str, named: str, redis_cache: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Decide, "script", Script.of(OLD_REDIS % info + Decide.script.text))

    with pytest.raises(ConfigurationError, match=f"is {named}.*needs Redis 7.0 or Valkey 7.2") as raised:
        ask()

    assert raised.value.hint


# --- plain commands: those of the admin and the management commands ---------------------------------------------------

PLAIN_TIMEOUT = 2.0
"""Seconds that the admin and the commands wait where the alias sets none: docs/redis.md."""


def timeouts_of(client: Any) -> tuple[Any, Any]:
    options = client.connection_pool.connection_kwargs
    return options.get("socket_timeout"), options.get("socket_connect_timeout")


def test_plain_commands_have_timeouts_where_the_alias_sets_none(redis_server: RedisServer, settings: Any) -> None:
    settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": redis_server.url}}
    with redis_store().commands() as client:
        assert client.ping()
        assert timeouts_of(client) == (PLAIN_TIMEOUT, PLAIN_TIMEOUT)
    assert timeouts_of(get_redis_connection("default")) == (None, None)
    alias = settings.CACHES["default"]
    settings.CACHES = {"default": {**alias, "OPTIONS": {"SOCKET_TIMEOUT": 9}}}
    with redis_store().commands() as client:
        assert timeouts_of(client) == (9, PLAIN_TIMEOUT)


def test_an_error_of_the_caller_or_a_reply_is_not_a_failure_of_the_server(redis_cache: RedisServer, raw: Any) -> None:
    for _ in range(FAILURES):
        with pytest.raises(ValueError, match="abc"), redis_store().commands() as client:
            int(f"abc{client.time()}")
    assert not redis_store().is_refusing()
    breaker = new_breaker()
    fail(breaker, 1)
    raw.set("a", "b")
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"), redis_store().commands() as client:
        client.hgetall("a")
    fail(breaker, FAILURES - 1)
    assert not breaker.is_open


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(
    "error", [theirs.ConnectionError("gone"), ConnectionResetError("gone")], ids=["of redis-py", "of the socket"]
)
def test_an_error_of_the_driver_in_a_block_of_plain_commands_is_ours(error: Exception) -> None:
    with pytest.raises(StoreUnavailable), redis_store().commands():
        raise error


def asks_within(kind: str, value: str = "1") -> None:
    with redis_store().commands() as client:
        if kind == "run":
            assert once("event", value)
        else:
            with redis_store().commands() as inner:
                assert inner.time()
        assert client.time()


@pytest.mark.parametrize("kind", ["run", "commands"])
def test_a_call_within_a_probing_block_is_made(kind: str, redis_cache: RedisServer) -> None:
    breaker = due_breaker()
    asks_within(kind)
    assert not breaker.is_open


def test_a_call_within_a_probing_block_of_a_cluster_server_is_made(cluster: Cluster, settings: Any) -> None:
    alias = settings.CACHES["default"]
    settings.CACHES = {"default": {**alias, "OPTIONS": {"CLIENT_CLASS": alias["OPTIONS"]["CLIENT_CLASS"]}}}
    found: Any = redis_store()
    server = found.server_of("{!}")  # of plain commands
    value = next(each for each in "abcdefghijklmnop" if found.server_of(f"{{once:{digest(each)}}}") == server)
    breaker = found._breakers[server] = due_breaker(of=Breaker())
    asks_within("run", value)
    assert not breaker.is_open
    with found.commands(server) as client:
        assert timeouts_of(client) == (PLAIN_TIMEOUT, PLAIN_TIMEOUT)


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: check("9/m", "user:1"), id="sync"),
        pytest.param(lambda: asyncio.run(acheck("9/m", "user:1")), id="async"),
    ],
)
def test_an_answer_closes_the_breaker_of_the_server(call: Callable[[], Any]) -> None:
    breaker: Breaker = redis_store().server.breaker
    call()  # the server knows the script then: an error reply is an answer, too
    breaker.failed()

    assert call()
    assert not breaker.has_failed


def test_plain_commands_probe_a_server_that_is_gone_once(settings: Any) -> None:
    settings.CACHES = caches(RedisServer("redis://127.0.0.1:1/0", 0, Path()))
    due_breaker()
    for words in ("refused", "several times in a row"):
        with pytest.raises(StoreUnavailable, match=words), redis_store().commands():
            pytest.fail("the block began")
