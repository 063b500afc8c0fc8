"""What an error of redis-py means, and which of our errors replaces it.

Only this module turns errors of redis-py into ours.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from types import TracebackType

from redis.asyncio.sentinel import MasterNotFoundError as AsyncMasterNotFoundError
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterCrossSlotError,
    ClusterDownError,
    ClusterError,
    InvalidResponse,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.sentinel import MasterNotFoundError

from django_quota.core.errors import (
    ConfigurationError,
    QuotaError,
    StoreCommandDenied,
    StoreConnectionLost,
    StoreDataError,
    StoreOutOfMemory,
    StorePermissionDenied,
    StoreRefusesWrites,
    StoreUnavailable,
    without_secrets,
)
from django_quota.stores.base import reason_of


class ConnectFailedError(RedisConnectionError):
    """A new connection was cut: connections are accepted, but no Redis answers."""


# --- what an error means ----------------------------------------------------------------------------------------------


def is_passthrough(error: BaseException) -> bool:
    """Say whether to raise an error as it is: one of ours, or one that ends the call or the process.

    All others are failures of the server. redis-py's parsers raise whatever they run into, for example `ValueError`.
    """
    return isinstance(error, QuotaError) or not isinstance(error, Exception)


def leaves_a_reply(error: BaseException) -> bool:
    """Say whether a reply may still be under way after an error, so that the connection must be closed.

    An error reply is read. But a server that has become a replica is left: a new connection leads to the new primary.
    """
    return isinstance(error, ReadOnlyError) or not isinstance(error, ResponseError)


_MASTER_NOT_FOUND = (MasterNotFoundError, AsyncMasterNotFoundError)

_CUT = ("closed by server", "reset by peer", "broken pipe", "connection lost")
"""What redis-py says of a connection that was cut."""


def is_cut(error: BaseException) -> bool:
    """Say whether an established connection was cut."""
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return True
    # The others may repeat such words of a connection to a sentinel.
    is_ours = isinstance(error, RedisConnectionError) and not isinstance(
        error, (ConnectFailedError, *_MASTER_NOT_FOUND)
    )
    return is_ours and any(words in str(error).lower() for words in _CUT)


_USED_UP = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""What the system says if it has no more files or memory for this process."""


def of_this_process(error: BaseException) -> bool:
    """Say whether a connection failed for want of something that this process has used up, such as open files."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _USED_UP:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def server_answered(error: BaseException) -> bool | None:
    """Say whether the server has answered; None if an error does not show that, such as that of a cut connection.

    A redirection to another server is an answer, and so is every error reply except CLUSTERDOWN.
    """
    if is_passthrough(error) or is_cut(error):
        return None
    return isinstance(error, (ResponseError, ClusterError)) and not isinstance(error, ClusterDownError)


def answered_plain(error: BaseException) -> bool | None:
    """Say the same for a block that also runs the caller's code; None for errors of that code."""
    return server_answered(error) if isinstance(error, (RedisError, OSError)) else None


# --- our errors -------------------------------------------------------------------------------------------------------


class translated:  # noqa: N801 — it reads as a function
    """Raise our error in place of one of redis-py.

    `only`: the errors that come from redis-py, if the block runs code of the caller, too. The new error has no cause:
    error reports show the variables of each frame, and redis-py's frames hold the password.
    """

    def __init__(
        self,
        translate: Callable[[BaseException], QuotaError] | None = None,
        only: type[BaseException] | tuple[type[BaseException], ...] = BaseException,
    ) -> None:
        self._translate = translate or translate_error
        self._only = only

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not isinstance(error, self._only) or is_passthrough(error):
            return
        ours = self._translate(error)
        del error, trace  # this frame is in the report too
        raise ours from None


def translate_error(error: BaseException) -> QuotaError:
    """Return our error for one of redis-py or of the socket. Raise it `from None`; see `translated`."""
    if isinstance(error, _OF_A_CLUSTER) or _SAID_BY_A_CLUSTER.search(str(error)):
        return ConfigurationError(
            "This Redis is a Cluster. Its client knows only one server of it, or the keys of one call are "
            f"in several slots: {error}.",
            'Use QUOTA = {"REDIS": "redis+cluster://10.0.0.1:6379"}; or, in the OPTIONS of an alias of django-redis, '
            '"CLIENT_CLASS": "django_quota.stores.cluster.ClusterClient".',
        )
    if _NO_STRUCT.search(str(error)):
        return imitated("The server of this alias runs scripts without the library `struct`, which every server has.")
    if (too_old := _TOO_OLD.search(str(error))) is not None:
        return ConfigurationError(
            f"The server is Redis {too_old[1]}.",
            "Update it: django_quota needs Redis 7.0 or Valkey 7.2, or newer.",
        )
    if _NO_SCRIPTS.search(str(error)):
        return StorePermissionDenied(
            "this server runs no scripts of ours, so no limit is decided. Permit EVALSHA and EVAL (ACL SETUSER <user> "
            "+evalsha +eval, no rename-command), install the Lua module of Valkey (the package valkey-lua), or use "
            f'QUOTA = {{"STORE": "database"}}. It says: {_said_by(error)}'
        )
    return _kind_of(error)(_said_by(error))


def imitated(problem: str) -> ConfigurationError:
    """Return the error for a library that imitates a server."""
    return ConfigurationError(
        f"{problem} Perhaps it is fakeredis.",
        "In tests, count in memory: by the pytest plugin of django_quota, by QuotaTestMixin of "
        'django_quota.testing, or by QUOTA = {"STORE": "memory"}.',
    )


def translate_cluster_error(error: BaseException) -> QuotaError:
    """Return our error for one of redis-py's clients of a Cluster."""
    if isinstance(error, AskError) or type(error) is ClusterError:  # redis-py gives up: servers keep redirecting
        return StoreUnavailable(f"a slot is moving to another server: {error}")
    return translate_error(error)


_TOO_OLD = re.compile(r"TOOOLD (older than 7.0|\S+)")
"""What our scripts say on a server that is too old, and its version."""

_NO_STRUCT = re.compile(r"NOSTRUCT|global 'struct'")
"""What our scripts, or Lua itself, say on a server without the library `struct`."""

_NO_SCRIPTS = re.compile(
    r"unknown command ['`]?EVAL|permissions to run the 'eval|not find scripting engine", re.IGNORECASE
)
"""What a server says that has no EVAL and EVALSHA for this user, or no Lua."""

_OF_A_CLUSTER = (ClusterCrossSlotError, MovedError)  # not ASK, which is temporary: a slot is moving

_SAID_BY_A_CLUSTER = re.compile(r"CROSSSLOT|MOVED \d")
"""The errors of a Cluster, inside the text of another error."""

_ERRORS_BY_WORDS: tuple[tuple[type[StoreUnavailable], tuple[type[Exception], ...], tuple[str, ...]], ...] = (
    (StorePermissionDenied, (AuthenticationError, NoPermissionError), ()),
    (StoreOutOfMemory, (OutOfMemoryError,), ()),
    (StoreRefusesWrites, (ReadOnlyError,), ("MISCONF", "NOREPLICAS")),
    # What a script says if its user lacks a command: up to Redis 7.0, and since 7.2 and in Valkey.
    (StoreCommandDenied, (), ("can't run this command", "ACL failure in script")),
    (
        StoreDataError,
        (),
        (
            "WRONGTYPE", "not an integer", "not a valid float",
            "attempt to perform arithmetic", "attempt to compare", "attempt to index",
        ),
    ),
)  # fmt: skip
"""Our errors, each with the classes of redis-py and the words in an error reply that it is raised for.

redis-py removes the first word of the errors that it has a class for.
"""


def _kind_of(error: BaseException) -> type[StoreUnavailable]:
    if is_cut(error):
        return StoreConnectionLost
    said = str(error) if isinstance(error, ResponseError) else ""
    for kind, classes, words in _ERRORS_BY_WORDS:
        if isinstance(error, classes) or any(word in said for word in words):
            return kind
    return StoreUnavailable


def _said_by(error: BaseException) -> str:
    if isinstance(error, InvalidResponse):
        text = "the server at this address is not a Redis server"  # its words may repeat our password
    elif isinstance(error, _MASTER_NOT_FOUND):
        text = _no_primary(str(error))
    else:
        text = str(error).rpartition("of pipeline caused error: ")[2]  # without the command, which redis-py repeats
    return reason_of(error, without_secrets(text))


def _no_primary(text: str) -> str:
    """Return why no sentinel named a primary, by redis-py's text: "No master ... : <client> - <error>, ...".

    The result shows only the class of an error: the texts of clients show their passwords, and a server may repeat one.
    """
    problem = text.partition(" : ")[0]
    _, failed, error = text.rpartition("> - ")
    if not failed:
        return f"{problem}: each sentinel answers, but knows no primary of this name that is up"
    kind = error.partition("(")[0].rpartition(":")[2]
    return f"{problem}: at least one sentinel failed, the last by {kind}"
