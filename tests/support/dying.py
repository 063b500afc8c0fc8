"""Lets a roll-up die at a step: before or after a statement of the database, or a trip to Redis."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


class Died(BaseException):
    """The death of a process, as a test in one process has it: nothing catches it."""


def raise_died() -> None:
    raise Died


@contextmanager
def dying(step: int, die: Callable[[], object] = raise_died) -> Iterator[None]:
    from django.db import connection

    from django_quota.stores.redis.store import RedisStore

    left = step

    def passes() -> None:
        nonlocal left
        left -= 1
        if left == -1:
            die()

    def around(act: Any) -> Any:
        def stepped(*arguments: Any) -> Any:
            passes()
            reply = act(*arguments)
            passes()
            return reply

        return stepped

    def execute(act: Any, *arguments: Any) -> Any:
        return around(act)(*arguments)

    with patch.object(RedisStore, "try_all", around(RedisStore.try_all)), connection.execute_wrapper(execute):
        yield
