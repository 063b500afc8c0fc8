"""How long a request may wait for Redis, by the options of a cache alias. It knows options and no connections."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

ANSWER_WITHIN = 0.25
"""Seconds that a connection may take to be made, and a reply to come, where the alias does not say."""

TIMEOUTS = ("socket_timeout", "socket_connect_timeout")

LONG = 2.0
"""Seconds above which a time-out is warned of: while Redis hangs, every thread that asks it in the same moment stands
still so long before the breaker keeps the next ones from it, and the admin and the commands wait no longer either."""


class Given(NamedTuple):
    """What an alias gives for one option, and where."""

    place: str
    name: str
    value: Any


def with_timeouts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a connection's options with short timeouts where there are none: a request must not hang with Redis."""
    return {**options, **{name: ANSWER_WITHIN for name in TIMEOUTS if options.get(name) is None}}


def missing_timeouts(options: Mapping[str, Any], of_url: Mapping[str, Any] | None = None) -> list[str]:
    """Return which of the timeouts the OPTIONS of a cache alias do not set, as django-redis calls them.

    `of_url`: what its LOCATION sets.
    """
    set_here = {given.name for given in (*_of_options(options), *_of_pool(options), *_of_url(of_url or {}))}
    return [name.upper() for name in TIMEOUTS if name not in set_here]


def given_timeouts(options: Mapping[str, Any], of_url: Mapping[str, Any]) -> list[Given]:
    """Return the timeouts that an alias sets, those of its sentinels too."""
    sentinels = _of_group(options, "SENTINEL_KWARGS")
    return [*_of_options(options), *_of_pool(options), *sentinels, *_of_url(of_url)]


def _of_options(options: Mapping[str, Any]) -> Iterator[Given]:
    for name in TIMEOUTS:
        if options.get(name.upper()) is not None:
            yield Given(f'["OPTIONS"]["{name.upper()}"]', name, options[name.upper()])


def _of_pool(options: Mapping[str, Any]) -> Iterator[Given]:
    return _of_group(options, "CONNECTION_POOL_KWARGS")


def _of_group(options: Mapping[str, Any], group: str) -> Iterator[Given]:
    found = options.get(group)
    if not isinstance(found, Mapping):  # which is said elsewhere
        return
    for name in TIMEOUTS:
        if found.get(name) is not None:
            yield Given(f'["OPTIONS"]["{group}"]["{name}"]', name, found[name])


def _of_url(of_url: Mapping[str, Any]) -> Iterator[Given]:
    for name in TIMEOUTS:
        if of_url.get(name) is not None:
            yield Given(f'["LOCATION"], its {name},', name, of_url[name])


def is_time(value: Any) -> bool:
    """Say whether a value is a time that a socket can wait: not 0, which would be no time at all."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 < value <= threading.TIMEOUT_MAX


def is_long(value: Any) -> bool:
    """Say whether a time keeps threads waiting for long."""
    return is_time(value) and value > LONG
