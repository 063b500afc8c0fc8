"""What goes wrong with Redis: what an error of redis-py tells, and the error of ours that it becomes.

All errors of redis-py become ours here, and only here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import TracebackType

from redis.asyncio.sentinel import MasterNotFoundError as AsyncMasterNotFoundError
from redis.exceptions import (
    AuthenticationError,
    ClusterCrossSlotError,
    InvalidResponse,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.sentinel import MasterNotFoundError

from django_quota.core.errors import (
    ConfigurationError,
    QuotaError,
    StoreCommandDenied,
    StoreDataError,
    StoreOutOfMemory,
    StorePermissionDenied,
    StoreRefusesWrites,
    StoreUnavailable,
    without_secrets,
)

MAX_REASON_LENGTH = 400
"""Characters of redis-py's text that are passed on. A server that is no Redis may have sent anything."""


class AllInUseError(RedisConnectionError):
    """All connections are in use, and none came free in time."""


class ConnectFailedError(RedisConnectionError):
    """A new connection was cut: something takes connections there, but no Redis is behind it."""


class GarbledError(RedisConnectionError):
    """A reply is not of the kind that was asked for."""


class NotSentError(RedisConnectionError):
    """A server of a Cluster ran nothing: there is no connection to it, or it still loads its keys."""


# --- what an error tells ----------------------------------------------------------------------------------------------


def is_passthrough(error: BaseException) -> bool:
    """Say whether an error goes on as it is: one of ours, or one that ends the call or the process.

    All others are failures of the server. redis-py's parsers raise whatever they run into, for example `ValueError`.
    """
    return isinstance(error, QuotaError) or not isinstance(error, Exception)


def is_read_only(reply: object) -> bool:
    """Say whether the server has become a replica: then its connection must lead to the new primary next time."""
    # Redis 6 wraps the error of a script.
    return isinstance(reply, ResponseError) and (isinstance(reply, ReadOnlyError) or "READONLY" in str(reply))


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


def is_silence(error: BaseException) -> bool:
    """Say whether the server is gone or does not answer, so that the breaker counts a failure.

    An error reply is an answer. A cut connection tells nothing about the next one.
    """
    return not (isinstance(error, (ResponseError, AllInUseError)) or is_cut(error))


# --- our errors -------------------------------------------------------------------------------------------------------


class translated:  # noqa: N801 — it reads as a function
    """Raise our error in place of one of redis-py.

    `only`: the errors that are redis-py's, if a part of the block is the caller's. The new error has no cause: error
    reports show the variables of each frame, and those of redis-py hold the password.
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
            "The Redis of this alias is a Cluster. Its client knows only one server of it, or the keys of one call are "
            f"in several slots: {error}.",
            'Use OPTIONS = {"CLIENT_CLASS": "django_quota.stores.cluster.ClusterClient"}.',
        )
    return _kind_of(error)(_reason(error))


_OF_A_CLUSTER = (ClusterCrossSlotError, MovedError)  # not ASK, which passes: a slot moves at the moment

_SAID_BY_A_CLUSTER = re.compile(r"CROSSSLOT|MOVED \d")
"""The same inside another error."""

_KINDS: tuple[tuple[type[StoreUnavailable], tuple[type[Exception], ...], tuple[str, ...]], ...] = (
    (StorePermissionDenied, (AuthenticationError, NoPermissionError), ()),
    (StoreOutOfMemory, (OutOfMemoryError,), ("OOM",)),
    (StoreRefusesWrites, (ReadOnlyError,), ("READONLY", "MISCONF", "NOREPLICAS")),
    # What a script runs into whose user lacks a command: up to Redis 7.0, and since 7.2 and in Valkey.
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

redis-py takes the first word off the errors that it has a class for.
"""


def _kind_of(error: BaseException) -> type[StoreUnavailable]:
    said = str(error) if isinstance(error, ResponseError) else ""
    for kind, classes, words in _KINDS:
        if isinstance(error, classes) or any(word in said for word in words):
            return kind
    return StoreUnavailable


def _reason(error: BaseException) -> str:
    if isinstance(error, InvalidResponse):
        text = _not_redis(error)
    elif isinstance(error, _MASTER_NOT_FOUND):
        text = _no_primary(str(error))
    else:
        text = str(error).rpartition("of pipeline caused error: ")[2]  # without the command, which redis-py repeats
    text = "".join(sign if sign.isprintable() else " " for sign in without_secrets(text))
    return f"{type(error).__name__}: {text if len(text) <= MAX_REASON_LENGTH else f'{text[:MAX_REASON_LENGTH]}...'}"


def _not_redis(error: InvalidResponse) -> str:
    """Describe a server that is no Redis, without its words: they may repeat our password."""
    http = re.search(r"HTTP/\d(\.\d)?", str(error))
    guess = "perhaps HTTP" if 'got "H"' in str(error) else ""  # hiredis tells the first letter only
    instead = http[0] if http else guess
    return f"what answers there does not speak the protocol of Redis{f', but {instead}' if instead else ''}"


def _no_primary(text: str) -> str:
    """Return why no sentinel named a primary, by redis-py's text: "No master ... : <client> - <error>, ...".

    Of an error it shows the class only: the clients show their passwords, and a server may repeat one.
    """
    problem = text.partition(" : ")[0]
    _, failed, error = text.rpartition("> - ")
    if not failed:
        return f"{problem}: each sentinel answers, but knows no primary of this name that is up"
    kind = error.partition("(")[0].rpartition(":")[2]
    return f"{problem}: at least one sentinel failed, the last by {kind}"
