"""Which Redis counts: what the settings say of it, and what is wrong with them.

The checks open no connection, and no text shows a password. The checks report what you would otherwise not notice: if a
connection fails, rules only decide by `on_unavailable`.
"""

from __future__ import annotations

import inspect
import reprlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from redis.sentinel import SentinelConnectionPool

from django_quota.core.errors import ConfigurationError, StoreBusy, without_secrets
from django_quota.stores.redis.errors import of_this_process
from django_quota.stores.redis.urls import Address, Options

ANSWER_TIMEOUT = 0.25
"""Seconds to connect, and to wait for a reply, unless the settings say."""

PLAIN_TIMEOUT = 2.0
"""The same for the plain commands of the admin and of `manage.py`."""

LONG_TIMEOUT = 2.0
"""Seconds above which a time-out gets a warning. While Redis hangs, each thread that asks it is blocked that long."""

TIMEOUTS = ("socket_timeout", "socket_connect_timeout")


def with_timeouts(options: Mapping[str, Any], seconds: float = ANSWER_TIMEOUT) -> Options:
    """Return the options of a connection, with short time-outs if there are none."""
    return {**options, **{name: seconds for name in TIMEOUTS if options.get(name) is None}}


class RedisProblem(NamedTuple):
    """Why a Redis cannot serve; `code` is the number of its system check."""

    code: str
    message: str
    hint: str
    is_another_cache: bool = False
    """Whether the alias is a cache of another kind, such as one in memory while you develop or test."""


class WhichRedis:
    """The Redis that the settings name. It opens no connection."""

    name: str
    """How texts name it, such as `CACHES["default"]`."""
    options_hint: str
    """What to write instead of options that redis-py refuses."""
    is_cluster: bool = False

    def place_problem(self) -> RedisProblem | None:
        """Say why it cannot serve, whatever its options are."""
        return None

    def new_pool(self) -> Any:
        """Return a new pool of redis-py; for a Cluster, one of its first server. Raises what redis-py raises."""
        raise NotImplementedError

    def option(self, name: str) -> Any:
        """Return an option of the pool, such as `max_connections`; None if it is not set."""
        raise NotImplementedError

    def cluster(self) -> tuple[Sequence[Address], Options]:
        """Return the servers of a Cluster to ask for all others, and the options of each."""
        raise NotImplementedError

    def problem(self) -> RedisProblem | None:
        """Say why it cannot serve; None if it can."""
        return self.place_problem() or _option_problem(self)

    def raise_problem(self) -> None:
        """Raise `ConfigurationError` if it cannot serve."""
        problem = self.problem()
        if problem is not None:
            raise ConfigurationError(problem.message, problem.hint)


# --- options ----------------------------------------------------------------------------------------------------------


def _option_problem(which: WhichRedis) -> RedisProblem | None:
    """Say why no connection can be made with the options of a Redis.

    redis-py makes a connection object here, and says itself what is wrong. Only time-outs are checked here: redis-py
    takes any value for them, and fails at the first call.
    """
    try:
        pool = which.new_pool()
        pool.connection_class(**with_timeouts(pool.connection_kwargs))
        for place, value in _timeouts(which, pool):
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (is_number and 0 < value <= threading.TIMEOUT_MAX):
                words = f"{place} is {reprlib.repr(value)}, which is not a timeout."
                return RedisProblem("E013", words, f"Use a number of seconds above 0, for example {ANSWER_TIMEOUT:g}.")
    except Exception as error:  # noqa: BLE001 — the first call would raise it too
        if of_this_process(error):  # the options may be right
            raise StoreBusy(f"this process cannot open another file: {error}") from None
        said = without_secrets(f"{type(error).__name__}: {str(error).rstrip('.')}")
        words = f"The options of {which.name} do not make a connection: {said}."
        return RedisProblem("E014", words, which.options_hint)
    return None


def long_timeouts(which: WhichRedis) -> list[tuple[str, float]]:
    """Return the time-outs that keep threads waiting for long, each with its place."""
    return [(place, value) for place, value in _timeouts(which, which.new_pool()) if value > LONG_TIMEOUT]


def _timeouts(which: WhichRedis, pool: Any) -> Iterator[tuple[str, Any]]:
    """Yield the time-outs that are set, and those of sentinels if they differ, each with its place."""
    given = pool.connection_kwargs
    yield from ((f"{name} of {which.name}", given[name]) for name in TIMEOUTS if given.get(name) is not None)
    if isinstance(pool, SentinelConnectionPool):
        theirs: Any = pool.sentinel_manager.sentinel_kwargs
        for name in TIMEOUTS:
            if theirs.get(name) is not None and theirs[name] is not given.get(name):
                yield f"{name} of the sentinels of {which.name}", theirs[name]


def known_options(kind: type) -> set[str]:
    """Return the options that a class of connections takes."""
    makers = [vars(each)["__init__"] for each in kind.__mro__ if inspect.isfunction(vars(each).get("__init__"))]
    named = {name for make in makers for name in inspect.signature(make).parameters}
    return {*named, "max_connections"} - {"self", "args", "kwargs"}
