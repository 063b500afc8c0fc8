"""What goes wrong with Redis, as our errors: the one place that makes those of redis-py ours, and reads what they tell.

It must not know what was asked, nor of whom.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

from redis.asyncio.sentinel import MasterNotFoundError as AsyncMasterNotFoundError
from redis.exceptions import (
    AuthenticationError,
    ClusterCrossSlotError,
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

from django_quota.exceptions import ConfigurationError, QuotaError, StoreUnavailable, without_secrets
from django_quota.operations.base import Operation
from django_quota.stores.connections import AllInUseError
from django_quota.stores.wire import CutAtOnceError, MisfitError, has_answered, is_of_caller, out_of_step

_OF_A_CLUSTER = (ClusterCrossSlotError, MovedError)  # not ASK: it says that a slot moves just now, which passes
"""What a server of a Cluster says to a client that knows of none; by their names before redis-py 6."""

_TOLD_BY_A_CLUSTER = re.compile(r"CROSSSLOT|MOVED \d")
"""The same where redis-py has not made it one of these."""


def is_read_only(error: ResponseError) -> bool:
    """Say whether this server has become a replica: its connection must lead to the new primary next time."""
    return isinstance(error, ReadOnlyError) or "READONLY" in str(error)  # Redis 6 wraps what a script ran into


_WRITE_ERRORS = (ReadOnlyError, OutOfMemoryError)  # redis-py takes the word off those that it knows

_OF_WRITES = ("READONLY", "OOM", "MISCONF", "NOREPLICAS")
"""What they say where only what changes nothing is answered, such as a refusal."""


_CUT = ("closed by server", "reset by peer", "broken pipe", "connection lost")
"""What redis-py says of a connection that was cut."""


def is_silence(error: BaseException) -> bool:
    """Say whether the server is there no longer, or does not answer: so that asking it again would be in vain.

    An error reply is an answer, and none had to wait for it. A connection that was cut says nothing of the next one:
    where the server is gone, connecting fails, or, where a proxy takes the connection, it is cut before it answers.
    """
    return not (isinstance(error, (ResponseError, AllInUseError, MisfitError)) or is_cut(error))


_OF_NO_CONNECTION = (CutAtOnceError, MasterNotFoundError, AsyncMasterNotFoundError)
"""What may repeat such words of another connection than that to Redis."""


def is_cut(error: BaseException) -> bool:
    """Say whether a connection was cut that there was."""
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return True
    is_of_a_connection = isinstance(error, RedisConnectionError) and not isinstance(error, _OF_NO_CONNECTION)
    return is_of_a_connection and any(word in str(error).lower() for word in _CUT)


def raise_cut_at_once(error: BaseException, connection: Any = None) -> None:
    """Raise `CutAtOnceError` where a connection was cut before it had brought anything; None: there was none yet."""
    if is_cut(error) and not has_answered(connection):
        raise CutAtOnceError(f"cut before an answer: {error}") from error


def is_of_redis_py(error: BaseException) -> bool:
    """Say whether redis-py raised an error, or stumbled over what a server said; and not who used its client."""
    if is_of_caller(error):
        return False
    if isinstance(error, (RedisError, OSError)):
        return True
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return any(frame.f_globals.get("__name__", "").partition(".")[0] == "redis" for frame in frames)


def ours(error: BaseException) -> QuotaError:
    """Return our error for one of redis-py or of the socket, which loses what may hold the password."""
    _without_frames(error)
    if isinstance(error, _OF_A_CLUSTER) or _TOLD_BY_A_CLUSTER.search(str(error)):
        return ConfigurationError(
            "The Redis of this alias is a Cluster, and its client knows one server of it only, or the keys of one call "
            f"lie in several slots: {error}.",
            'A Cluster takes OPTIONS = {"CLIENT_CLASS": "django_quota.stores.cluster.ClusterClient"}.',
        )
    return StoreUnavailable(
        _in_short(error),
        only_writes=_is_of_writes(error),
        only_here=_is_of_a_key(error) or _lacks_a_command(error),
        not_permitted=_is_not_permitted(error),
        out_of_memory=_is_out_of_memory(error),
    )


_OF_A_KEY = (
    "WRONGTYPE", "not an integer", "not a valid float",
    "attempt to perform arithmetic", "attempt to compare", "attempt to index",
)  # fmt: skip
"""What Redis says of a script that met what it did not put there."""


def _is_of_a_key(error: BaseException) -> bool:
    by_word = isinstance(error, ResponseError) and any(word in str(error) for word in _OF_A_KEY)
    return by_word or isinstance(error, MisfitError)


@contextmanager
def translated(
    into: Callable[[BaseException], QuotaError] = ours, *, is_theirs: Callable[[BaseException], bool] | None = None
) -> Iterator[None]:
    """Let what redis-py raises leave the block as ours.

    `is_theirs`: says which errors are redis-py's, where a part of the block is the caller's.
    """
    try:
        yield
    except BaseException as error:
        if is_of_caller(error) or not (is_theirs is None or is_theirs(error)):
            raise
        raise into(error) from error


def check_replies(operations: Sequence[Operation], replies: Sequence[Any]) -> None:
    """Raise redis-py's `ConnectionError` where a reply cannot be that of its operation."""
    for operation, reply in zip(operations, replies, strict=True):
        if not operation.fits(reply):
            raise out_of_step(reply, operation.replies)


def _without_frames(error: BaseException) -> None:
    """Take the tracebacks, and what of a text is a secret, off an error and all that it came from.

    Reports of errors show what frames hold. What redis-py says may hold the client that it was said of, with its
    password. An error that the caller is about to handle, which may be among them, is left alone.
    """
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if each is None or id(each) in seen or (each is not error and _is_of_the_caller(each)):
            continue
        seen.add(id(each))
        each.__traceback__ = None
        if isinstance(each, InvalidResponse):
            each.args = (_spoken(each),)
        elif _is_a_kind_of_redis_py(each):
            each.args = tuple(
                part if part is None or isinstance(part, int) else without_secrets(str(part)) for part in each.args
            )
        left += [each.__cause__, each.__context__]


def _spoken(error: InvalidResponse) -> str:
    """Return what to say of one who is no Redis, instead of what it has said: that may repeat our password."""
    spoken = re.search(r"HTTP/\d(\.\d)?", str(error))
    perhaps = "perhaps HTTP" if 'got "H"' in str(error) else ""  # hiredis says no more than the first letter
    instead = spoken[0] if spoken else perhaps
    return f"what answers there does not speak the protocol of Redis{f', but {instead}' if instead else ''}"


def _is_a_kind_of_redis_py(error: BaseException) -> bool:
    return any(kind.__module__.partition(".")[0] == "redis" for kind in type(error).__mro__)


_OF_THE_CALL = frozenset({"django_quota", "redis", "django_redis", "asyncio", "async_timeout", "socket", "ssl"})
"""Packages that an error has come from which was raised within a call."""


def _is_of_the_caller(error: BaseException) -> bool:
    """Say whether an error was there before the call, by who has caught it."""
    if _is_a_kind_of_redis_py(error):
        return False
    caught = error.__traceback__
    module = "" if caught is None else str(caught.tb_frame.f_globals.get("__name__", ""))
    return caught is not None and module.partition(".")[0] not in _OF_THE_CALL


def _is_not_permitted(error: BaseException) -> bool:
    return _lacks_a_command(error) or isinstance(error, (AuthenticationError, NoPermissionError))


_OF_A_COMMAND = ("can't run this command", "ACL failure in script")
"""What Redis says of a script whose user lacks a command: up to 7.0, and since 7.2 and in Valkey."""


def _lacks_a_command(error: BaseException) -> bool:
    return isinstance(error, ResponseError) and any(words in str(error) for words in _OF_A_COMMAND)


LONGEST_REASON = 400
"""Characters of what redis-py says that are passed on: a server that is none may have said anything."""


def _in_short(error: BaseException) -> str:
    words = str(error).rpartition("of pipeline caused error: ")[2]  # without the command, which redis-py repeats
    said = "".join(sign if sign.isprintable() else " " for sign in words)
    shown = said if len(said) <= LONGEST_REASON else f"{said[:LONGEST_REASON]}..."
    return f"{type(error).__name__}: {shown}"


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, OutOfMemoryError) or (isinstance(error, ResponseError) and "OOM" in str(error))


def _is_of_writes(error: BaseException) -> bool:
    if not isinstance(error, ResponseError):
        return False
    return isinstance(error, _WRITE_ERRORS) or any(word in str(error) for word in _OF_WRITES)
