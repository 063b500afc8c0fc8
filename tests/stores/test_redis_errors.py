"""What an error of redis-py, or of the server, means: which failure it is, and whether the server is there."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from hashlib import sha1
from typing import Any

import pytest
from redis import exceptions as theirs

from django_quota import acheck, check
from django_quota.core.errors import StoreCommandDenied
from django_quota.engine.decide import Decide
from django_quota.exceptions import ConfigurationError, StoreUnavailable
from django_quota.stores.breaker import CLOSED, Breaker
from django_quota.stores.redis.errors import AllInUseError, translate_error
from django_quota.stores.redis.settings import ANSWER_TIMEOUT, with_timeouts
from django_quota.testing import RedisServer
from tests.support.stores import redis_store


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
        (theirs.AuthenticationError("NOAUTH"), True), (theirs.NoPermissionError("NOPERM"), False),
        (theirs.ClusterDownError("The cluster is down"), True), (theirs.ClusterError("TTL exhausted."), False),
        (theirs.TryAgainError("TRYAGAIN"), False),
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
    breaker = Breaker(failures=1)
    breaker.tell(error, CLOSED)
    assert breaker.is_open is no_answer


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


OLD_REDIS = """
local real = redis
local redis = { error_reply = real.error_reply, pcall = function() return %s end }
"""
"""Hides from a script what its server tells. Redis names its version to scripts since 7.0."""


@pytest.mark.parametrize(
    ("info", "named"),
    [("'redis_version:6.2.14\\r\\n'", "Redis 6.2.14"), ("{ err = 'NOPERM' }", "Redis older than 7.0")],
)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_server_that_is_too_old_is_a_configuration_error_with_its_version(
    info: str, named: str, is_async: bool, redis_cache: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = OLD_REDIS % info + Decide.script.text
    monkeypatch.setattr(Decide, "script", replace(Decide.script, text=text, sha=sha1(text.encode()).hexdigest()))
    with pytest.raises(ConfigurationError, match=f"is {named}.*needs Redis 7.0 or Valkey 7.2") as raised:
        asyncio.run(acheck("1/m", "user:1")) if is_async else check("1/m", "user:1")
    assert raised.value.hint


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
        store = redis_store()
        check("9/m", "user:1")
        (connection,) = store.server.pool._idle
        assert (connection.socket_timeout, connection.socket_connect_timeout) == (ANSWER_TIMEOUT, ANSWER_TIMEOUT)
