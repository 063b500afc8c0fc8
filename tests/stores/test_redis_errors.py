"""What an error of redis-py, or of the server, means: which failure it is, and whether the server is there."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha1
from typing import Any

import pytest
from redis import exceptions as theirs

from django_quota import acheck, check
from django_quota.core.errors import StoreCommandDenied, StoreDataError, StoreRefusesWrites
from django_quota.engine.decide import Decide
from django_quota.exceptions import ConfigurationError, StoreUnavailable
from django_quota.stores.redis.errors import AllInUseError, answered, translate_error
from django_quota.testing import RedisServer


@pytest.mark.parametrize(
    ("error", "is_answer"),
    [
        (theirs.ConnectionError("Error 111 connecting to 127.0.0.1:1. Connection refused."), False),
        (theirs.ConnectionError("Connection closed by server."), None), (ConnectionResetError(), None),
        (theirs.ConnectionError("Error while reading from /tmp/s : (104, 'Connection reset by peer')"), None),
        (theirs.ConnectionError("Error UNKNOWN while writing to socket. Connection lost."), None),
        (theirs.TimeoutError("Timeout"), False), (OSError(), False), (theirs.InvalidResponse("x"), False),
        (theirs.BusyLoadingError("LOADING Redis is loading the dataset in memory"), False),
        (theirs.ReadOnlyError("You can't write against a read only replica."), True),
        (theirs.AuthenticationError("NOAUTH"), False), (theirs.NoPermissionError("NOPERM"), True),
        (theirs.ClusterDownError("The cluster is down"), False), (theirs.ClusterError("TTL exhausted."), True),
        (theirs.TryAgainError("TRYAGAIN"), True), (theirs.ResponseError("BUSY running a script"), True),
        (theirs.ResponseError("max number of clients reached"), True),
        (AllInUseError("all 50 connections are in use"), None),
    ],
    ids=lambda value: getattr(value, "args", None) and str(value)[:28],
)  # fmt: skip
def test_only_silence_counts_as_a_failure_of_the_server(error: Any, is_answer: bool | None) -> None:
    assert isinstance(translate_error(error), StoreUnavailable)
    assert answered(error) is is_answer


def test_an_error_reply_has_its_kind() -> None:
    kinds: dict[str, type[Exception]] = {
        "MOVED 3999 127.0.0.1:6381": ConfigurationError,
        "CROSSSLOT Keys in request don't hash to the same slot": ConfigurationError,
        "MOVED nonsense": StoreUnavailable,
        "MISCONF Redis is configured to save RDB snapshots": StoreRefusesWrites,
        "WRONGTYPE Operation against a key holding the wrong kind of value": StoreDataError,
        "ERR Error running script: @user_script: 9: WRONGTYPE Operation against a key": StoreDataError,
        "ERR user_script:12: attempt to index a nil value": StoreDataError,
        "The user executing the script can't run this command or subcommand script: f_1.": StoreCommandDenied,
        "ACL failure in script: User quota has no permissions to run the 'pfadd' command": StoreCommandDenied,
    }
    assert {words: type(translate_error(theirs.ResponseError(words))) for words in kinds} == kinds
    foreign: Any = theirs.InvalidResponse("b'AUTH secret'")  # the words of a server that is no Redis are not repeated
    assert str(translate_error(foreign)).endswith("speak the protocol of Redis")


OLD_REDIS = """
local real = redis
local redis = { error_reply = real.error_reply, pcall = function() return %s end }
"""
"""Hides from a script what its server tells. Redis names its version to scripts since 7.0."""


@pytest.mark.parametrize(
    ("info", "named"),
    [("'redis_version:6.2.14\\r\\n'", "Redis 6.2.14"), ("{ err = 'NOPERM' }", "Redis older than 7.0")],
)
def test_a_server_that_is_too_old_is_a_configuration_error_with_its_version(
    info: str, named: str, redis_cache: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = OLD_REDIS % info + Decide.script.text
    monkeypatch.setattr(Decide, "script", replace(Decide.script, text=text, sha=sha1(text.encode()).hexdigest()))
    asks: list[Callable[[], object]] = [lambda: check("1/m", "a:1"), lambda: asyncio.run(acheck("1/m", "a:1"))]
    for ask in asks:
        with pytest.raises(ConfigurationError, match=f"is {named}.*needs Redis 7.0 or Valkey 7.2") as raised:
            ask()
        assert raised.value.hint
