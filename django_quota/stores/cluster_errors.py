"""What goes wrong with a Redis Cluster, as our errors. It must not know what was sent, nor where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

from redis import RedisError
from redis.exceptions import AskError

from django_quota.exceptions import ConfigurationError, QuotaError, StoreUnavailable
from django_quota.operations.base import Operation
from django_quota.stores.errors import ours
from django_quota.stores.wire import is_of_caller, out_of_step


@contextmanager
def translated() -> Iterator[None]:
    """Let what redis-py raises leave the block as ours, as `errors.translated` does."""
    try:
        yield
    except BaseException as error:
        if is_of_caller(error):
            raise
        raise ours_of_cluster(error) from error


@contextmanager
def translated_around_caller() -> Iterator[None]:
    """Let what redis-py raises leave the block as ours, but nothing that is of who does things in it."""
    try:
        yield
    except BaseException as error:
        if is_of_caller(error) or not (isinstance(error, (RedisError, OSError)) or _was_in_redis_py(error)):
            raise
        raise ours_of_cluster(error) from error


def _was_in_redis_py(error: BaseException) -> bool:
    """Say whether code of redis-py had a part in an error: its parsers raise whatever they stumble over."""
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return any(frame.f_globals.get("__name__", "").partition(".")[0] == "redis" for frame in frames)


def ours_of_cluster(error: BaseException) -> QuotaError:
    """Return our error for one of redis-py or of the socket."""
    if isinstance(error, AskError):  # and MOVED: of a plain command, which is not sent on
        return StoreUnavailable(f"a slot is on the move: {error}")
    if "ClusterCrossSlot" in type(error).__name__ or "CROSSSLOT" in str(error):
        return ConfigurationError(
            "What is asked lies in several slots of a Redis Cluster, and is done in one of them or not at all.",
            "Keys with the same part in braces lie in one slot.",
        )
    return ours(error)


def check_replies(operations: Sequence[Operation], replies: Sequence[Any]) -> None:
    """Raise redis-py's `ConnectionError` where a reply cannot be that of its operation."""
    for operation, reply in zip(operations, replies, strict=True):
        if not isinstance(reply, operation.replies):
            raise out_of_step(reply)
