"""What each error of redis-py means, and which of ours replaces it."""

import errno
from itertools import pairwise
from traceback import walk_tb
from typing import Any

import pytest
from redis import exceptions as theirs
from redis.asyncio.sentinel import MasterNotFoundError as AsyncMasterNotFoundError
from redis.sentinel import MasterNotFoundError

from django_quota.core.errors import (
    StoreBusy,
    StoreCommandDenied,
    StoreConnectionLost,
    StoreDataError,
    StoreOutOfMemory,
    StorePermissionDenied,
    StoreRefusesWrites,
    StoreUnavailable,
)
from django_quota.exceptions import ConfigurationError
from django_quota.stores.base import MAX_REASON_LENGTH
from django_quota.stores.redis.errors import (
    ConnectFailedError,
    answered_plain,
    is_cut,
    is_passthrough,
    leaves_a_reply,
    of_this_process,
    translate_cluster_error,
    translate_error,
    translated,
)

KINDS: list[tuple[Exception, type[Exception]]] = [
    (theirs.AuthenticationError("WRONGPASS"), StorePermissionDenied),
    (theirs.NoPermissionError("NOPERM"), StorePermissionDenied),
    (theirs.ResponseError("unknown command 'EVALSHA'"), StorePermissionDenied),
    (theirs.ResponseError("Unknown command `evalsha`, with args"), StorePermissionDenied),
    (theirs.ResponseError("unknown command EVAL"), StorePermissionDenied),
    (theirs.ResponseError("unknown command 'GET'"), StoreUnavailable),
    (theirs.NoPermissionError("User a has no permissions to run the 'eval' command"), StorePermissionDenied),
    (theirs.ResponseError("Could not find scripting engine 'lua'"), StorePermissionDenied),
    (theirs.OutOfMemoryError("OOM"), StoreOutOfMemory),
    (theirs.ReadOnlyError("READONLY"), StoreRefusesWrites),
    (theirs.ResponseError("MISCONF Redis"), StoreRefusesWrites),
    (theirs.ResponseError("NOREPLICAS Not enough good replicas"), StoreRefusesWrites),
    (theirs.ResponseError("can't run this command"), StoreCommandDenied),
    (theirs.ResponseError("ACL failure in script"), StoreCommandDenied),
    (theirs.ResponseError("WRONGTYPE"), StoreDataError),
    (theirs.ResponseError("value is not an integer or out of range"), StoreDataError),
    (theirs.ResponseError("value is not a valid float"), StoreDataError),
    (theirs.ResponseError("attempt to perform arithmetic on a nil value"), StoreDataError),
    (theirs.ResponseError("attempt to compare nil with number"), StoreDataError),
    (theirs.ResponseError("attempt to index a nil value"), StoreDataError),
    (theirs.ConnectionError("Connection closed by server."), StoreConnectionLost),
    (ConnectionResetError("x"), StoreConnectionLost),
    (BrokenPipeError("x"), StoreConnectionLost),
    (theirs.ConnectionError("WRONGTYPE"), StoreUnavailable),
    (theirs.ResponseError("ERR something else"), StoreUnavailable),
    (ConnectFailedError("connection lost"), StoreUnavailable),
    (theirs.ClusterCrossSlotError("Keys in request don't hash to the same slot"), ConfigurationError),
    (theirs.MovedError("1 127.0.0.1:1"), ConfigurationError),
    (theirs.ResponseError("NOSTRUCT"), ConfigurationError),
    (theirs.ResponseError("Script attempted to access nonexistent global 'struct'"), ConfigurationError),
]


@pytest.mark.parametrize(("error", "kind"), [pytest.param(*each, id=repr(each[0])) for each in KINDS])
def test_an_error_of_redis_py_becomes_ours(error: Exception, kind: type[Exception]) -> None:
    assert type(translate_error(error)) is kind


class TestTheReasonOfAnError:
    def reason(self, error: Exception) -> str:
        found: Any = translate_error(error)
        return str(found.reason)

    def test_names_the_class_of_redis_py(self) -> None:
        assert self.reason(theirs.TimeoutError("late")) == "TimeoutError: late"

    def test_repeats_no_command_of_a_pipeline(self) -> None:
        text = "Command # 1 (SET a secret) of pipeline caused error: WRONGTYPE Operation"

        assert self.reason(theirs.ResponseError(text)) == "ResponseError: WRONGTYPE Operation"

    def test_is_one_printable_line(self) -> None:
        assert self.reason(theirs.ResponseError("a\r\nb\x1b[31m")) == r"ResponseError: a\r\nb\x1b[31m"

    def test_says_how_to_permit_scripts(self) -> None:
        reason = self.reason(theirs.ResponseError("unknown command 'EVALSHA'"))

        assert reason == (
            "this server runs no scripts of ours, so no limit is decided. Permit EVALSHA and EVAL (ACL SETUSER <user> "
            "+evalsha +eval, no rename-command), install the Lua module of Valkey (the package valkey-lua), or use "
            'QUOTA = {"STORE": "database"}. It says: ResponseError: unknown command \'EVALSHA\''
        )

    def test_repeats_nothing_of_a_server_that_is_not_redis(self) -> None:
        foreign: Any = theirs.InvalidResponse("b'AUTH secret'")

        assert self.reason(foreign) == "InvalidResponse: the server at this address is not a Redis server"

    def test_shows_no_password_in_a_url(self) -> None:
        assert "secret" not in self.reason(theirs.ResponseError("redis://u:secret@h"))

    def test_shows_no_beginning_of_a_password_where_a_long_text_is_cut(self) -> None:
        before = "x" * (MAX_REASON_LENGTH - len(" redis://u:secret"))

        assert "secret" not in self.reason(theirs.ResponseError(f"{before} redis://u:secret-word@h"))

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("No master found for 'm'", "each sentinel answers, but knows no primary of this name that is up"),
            ("No master found for 'm' : Redis<x(password=secret)> - TimeoutError('x')",
             "at least one sentinel failed, the last by TimeoutError"),
            ("No master found for 'm' : Redis<a> - ConnectionError('x'), Redis<b> - redis:AuthenticationError('s')",
             "at least one sentinel failed, the last by AuthenticationError"),
        ],
        ids=["unknown", "one", "two"],
    )  # fmt: skip
    @pytest.mark.parametrize("kind", [MasterNotFoundError, AsyncMasterNotFoundError], ids=["sync", "async"])
    def test_says_why_no_sentinel_names_a_primary(self, kind: type[Exception], text: str, said: str) -> None:
        assert self.reason(kind(text)) == f"MasterNotFoundError: No master found for 'm': {said}"


A_CLUSTER = (
    "This Redis is a Cluster. Its client knows only one server of it, or the keys of one call are in several slots:"
)
AN_IMITATION = "The server of this alias runs scripts without the library `struct`, which every server has."
OF_A_CLUSTER = (
    'Use QUOTA = {"REDIS": "redis+cluster://10.0.0.1:6379"}; or, in the OPTIONS of an alias of django-redis, '
    '"CLIENT_CLASS": "django_quota.stores.cluster.ClusterClient".'
)
IN_TESTS = (
    "In tests, count in memory: by the pytest plugin of django_quota, by QuotaTestMixin of "
    'django_quota.testing, or by QUOTA = {"STORE": "memory"}.'
)


@pytest.mark.parametrize(
    ("said", "problem", "hint"),
    [
        (
            "MOVED 1 h:1",
            f"{A_CLUSTER} MOVED 1 h:1.",
            OF_A_CLUSTER,
        ),
        (
            "NOSTRUCT",
            f"{AN_IMITATION} Perhaps it is fakeredis.",
            IN_TESTS,
        ),
        (
            "TOOOLD 6.2.14",
            "The server is Redis 6.2.14.",
            "Update it: django_quota needs Redis 7.0 or Valkey 7.2, or newer.",
        ),
        (
            "TOOOLD older than 7.0",
            "The server is Redis older than 7.0.",
            "Update it: django_quota needs Redis 7.0 or Valkey 7.2, or newer.",
        ),
    ],
    ids=["a Cluster", "an imitation", "an old one", "a very old one"],
)
def test_a_server_that_cannot_serve_is_named_with_what_to_do(said: str, problem: str, hint: str) -> None:
    found: Any = translate_error(theirs.ResponseError(said))

    assert (type(found), found.problem, found.hint) == (ConfigurationError, problem, hint)


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (theirs.AskError("1 127.0.0.1:1"), StoreUnavailable, "a slot is moving to another server: 1 127.0.0.1:1"),
        (theirs.ClusterError("TTL exhausted."), StoreUnavailable, "a slot is moving to another server: TTL exhausted."),
        (theirs.ClusterDownError("CLUSTERDOWN"), StoreUnavailable, "ClusterDownError: CLUSTERDOWN"),
        (theirs.ResponseError("WRONGTYPE"), StoreDataError, "ResponseError: WRONGTYPE"),
    ],
    ids=["asking", "giving up", "down", "another"],
)
def test_an_error_of_a_client_of_a_cluster_becomes_ours(error: Exception, kind: type[Exception], reason: str) -> None:
    found: Any = translate_cluster_error(error)

    assert (type(found), found.reason) == (kind, reason)


# --- what an error means ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (StoreBusy("x"), True), (KeyboardInterrupt(), True), (GeneratorExit(), True),
        (theirs.TimeoutError(), False), (ValueError("x"), False), (OSError(), False),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_failure_of_the_server_is_raised_as_it_is(error: BaseException, passes: bool) -> None:
    assert is_passthrough(error) is passes


@pytest.mark.parametrize(
    ("error", "leaves"),
    [
        (theirs.ResponseError("x"), False), (theirs.NoScriptError("x"), False), (theirs.ReadOnlyError("x"), True),
        (theirs.TimeoutError("x"), True), (theirs.ConnectionError("x"), True), (theirs.InvalidResponse("x"), True),
        (KeyboardInterrupt(), True),
    ],
    ids=repr,
)  # fmt: skip
def test_a_connection_is_left_on_which_a_reply_may_still_come(error: BaseException, leaves: bool) -> None:
    assert leaves_a_reply(error) is leaves


@pytest.mark.parametrize(
    ("error", "cut"),
    [
        (theirs.ConnectionError("Connection closed by server."), True),
        (theirs.ConnectionError("Connection reset by peer"), True), (theirs.ConnectionError("Broken pipe"), True),
        (theirs.ConnectionError("Connection lost"), True), (ConnectionResetError(), True), (BrokenPipeError(), True),
        (theirs.ConnectionError("Connection refused"), False), (theirs.TimeoutError("connection lost"), False),
        (theirs.ResponseError("connection lost"), False), (ConnectFailedError("connection lost"), False),
        (MasterNotFoundError("Connection closed by server."), False), (OSError("broken pipe"), False),
        (AsyncMasterNotFoundError("Connection closed by server."), False),
    ],
    ids=repr,
)  # fmt: skip
def test_only_an_established_connection_is_cut(error: Exception, cut: bool) -> None:
    assert is_cut(error) is cut


def chained(*errors: Exception, by: str = "__cause__") -> Exception:
    for error, cause in pairwise(errors):
        setattr(error, by, cause)
    return errors[0]


@pytest.mark.parametrize(
    ("error", "is_ours"),
    [
        (OSError(errno.EMFILE, "x"), True),
        (chained(theirs.ConnectionError("x"), OSError(errno.EMFILE, "x")), True),
        (chained(theirs.ConnectionError("x"), OSError(errno.ENOMEM, "x"), by="__context__"), True),
        (chained(theirs.ConnectionError("x"), ValueError("x"), OSError(errno.ENFILE, "x")), True),
        (OSError(errno.ECONNREFUSED, "x"), False),
        (chained(theirs.ConnectionError("x"), OSError(errno.ECONNREFUSED, "x")), False),
        (ValueError("x"), False),
    ],
    ids=["itself", "its cause", "its context", "a cause of its cause", "refused", "refused below", "another"],
)
def test_a_process_without_files_is_not_a_server_that_is_gone(error: Exception, is_ours: bool) -> None:
    assert of_this_process(error) is is_ours


@pytest.mark.parametrize(
    ("error", "answered"),
    [
        (theirs.ResponseError("x"), True), (theirs.TimeoutError("x"), False), (ConnectionRefusedError("x"), False),
        (ConnectionResetError("x"), None), (ValueError("x"), None), (KeyError("x"), None), (KeyboardInterrupt(), None),
    ],
    ids=repr,
)  # fmt: skip
def test_an_error_of_the_code_in_a_block_says_nothing_of_the_server(
    error: BaseException, answered: bool | None
) -> None:
    assert answered_plain(error) is answered


class TestTheErrorOfABlock:
    def test_is_ours(self) -> None:
        with pytest.raises(StoreDataError), translated():
            raise theirs.ResponseError("WRONGTYPE")

    def test_is_that_of_the_translation_that_is_given(self) -> None:
        with pytest.raises(StoreUnavailable, match="moving"), translated(translate_cluster_error):
            raise theirs.ClusterError("x")

    def test_has_no_cause_whose_frames_show_the_password(self) -> None:
        with pytest.raises(StoreUnavailable) as caught, translated():
            raise theirs.TimeoutError("x")
        assert (caught.value.__cause__, caught.value.__suppress_context__) == (None, True)

    def test_has_no_frame_that_shows_the_error_of_redis_py(self) -> None:
        with pytest.raises(StoreUnavailable) as caught, translated():
            raise theirs.TimeoutError("x")
        (frame,) = [frame for frame, _ in walk_tb(caught.tb) if frame.f_code.co_name == "__exit__"]
        assert {"error", "trace"}.isdisjoint(frame.f_locals)

    @pytest.mark.parametrize("error", [StoreBusy("x"), KeyboardInterrupt()], ids=type)
    def test_stays_if_it_is_not_of_the_server(self, error: BaseException) -> None:
        with pytest.raises(type(error)) as caught, translated():
            raise error
        assert caught.value is error

    def test_stays_if_it_is_of_the_caller(self) -> None:
        with pytest.raises(ZeroDivisionError), translated(only=theirs.RedisError):
            raise ZeroDivisionError
