"""Copies of states: how Redis keeps what the other stores keep, and the operations that read and write many keys.

A specification keeps Python values; Redis has strings, hashes, sorted sets and HyperLogLogs. What a key holds in Redis
follows from its name, see `core.keys.KEY_KINDS`. A HyperLogLog cannot be read back: Redis has forgotten the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from django_quota.core.algorithms import DISTINCT, REGISTRY, SUBSCRIPTION, Algorithm
from django_quota.core.algorithms.fixed_window import WindowCount
from django_quota.core.algorithms.sliding_window import WindowEntry
from django_quota.core.algorithms.subscription import PeriodCount
from django_quota.core.algorithms.token_bucket import Bucket
from django_quota.core.clock import DAY
from django_quota.core.errors import StoreDataError
from django_quota.core.keys import part_of_key
from django_quota.engine.operations import Operation, Script, States, script, text

LONGEST = 400 * DAY
"""How long a key without a TTL is kept, in microseconds, as the sweep gives it one."""

_SETS = frozenset({"r", "b", "a", "grants", "leased", "l", "refused", "slots", "workers", "bans"})
"""The kinds whose mappings are sorted sets in Redis. Others are hashes."""

_BY_CODE: Mapping[str, Algorithm[Any]] = {algorithm.code: algorithm for algorithm in REGISTRY.values()}
"""The algorithm by its short name in the keys of limits. The two buckets have states of one form."""


class StateCopy(NamedTuple):
    """The value of a key, as specifications keep it."""

    value: Any
    expires: int
    """When the key expires, in microseconds."""


NotCopied = Literal["distinct", "foreign"]
"""Why a key cannot be copied: it is a HyperLogLog, or it holds data of another program or version."""


class ReadStates(Operation):
    """Read keys; the reply has a `StateCopy` for each key, `NotCopied`, or None if it is empty."""

    script: ClassVar[Script] = script("clock", "read_states")
    is_reading: ClassVar[bool] = True
    is_slow: ClassVar[bool] = True

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(keys)

    def only(self, places: Sequence[int]) -> ReadStates:
        """Return the operation for some of the keys."""
        return ReadStates([self.keys[place] for place in places])

    def read_reply(self, reply: Any) -> list[StateCopy | NotCopied | None]:
        """Return what the keys hold. A key expires when its content does, or else up to 2 ms after it did in Redis."""
        now, grace, *found = reply
        return [
            _read(key, *_texts(state), int(now), int(ttl) - int(grace))
            for key, ttl, state in zip(self.keys, found[::2], found[1::2], strict=True)
        ]

    def run(self, states: States, now: int) -> list[StateCopy | NotCopied | None]:
        """Return what the keys hold."""
        return [_found(states, key, now) for key in self.keys]


class WriteStates(Operation):
    """Put copies under keys that hold nothing yet, or drop what a key holds (None).

    The reply has 0 for each key that holds something already, so that nothing was put there, else 1.
    """

    script: ClassVar[Script] = script("clock", "lifetimes", "write_states")
    is_slow: ClassVar[bool] = True

    def __init__(self, states: Mapping[str, StateCopy | None]) -> None:
        super().__init__(list(states))
        self._copies = states

    def arguments(self) -> Sequence[str | int]:
        """Return the arguments that the head of the script lists."""
        return [word for key, state in self._copies.items() for word in _words(key, state)]

    def only(self, places: Sequence[int]) -> WriteStates:
        """Return the operation for some of the keys."""
        return WriteStates({key: self._copies[key] for key in (self.keys[place] for place in places)})

    def run(self, states: States, now: int) -> list[int]:
        """Put what was copied, unless it has expired."""
        reply = []
        for key, state in self._copies.items():
            is_free = state is None or state.expires <= now or states.get(key, now) is None
            if state is None:
                states.drop(key)
            elif is_free and state.expires > now:
                states.put(key, *state)
            reply.append(int(is_free))
        return reply


def _found(states: States, key: str, now: int) -> StateCopy | NotCopied | None:
    try:
        value = states.get(key, now)
    except StoreDataError:
        return "foreign"
    return None if value is None else StateCopy(value, states.expiry(key))


def _texts(state: Sequence[Any]) -> tuple[str, list[str]]:
    """Return the form and the words of a reply as strings."""
    form, words = state
    return text(form), list(map(text, words))


# --- what Redis keeps -------------------------------------------------------------------------------------------------


def _words(key: str, state: StateCopy | None) -> Iterator[str | int]:
    """Yield the words of a key for the script."""
    if state is None:
        yield from ("none", 0, 0)
        return
    form, words = _in_redis(key, state.value)
    yield from (form, state.expires, len(words), *words)


def _in_redis(key: str, value: Any) -> tuple[str, Sequence[str | int]]:
    """Return the form in which Redis keeps a value, and its words."""
    if type(value) is tuple:
        return "zset", [word for total, cost, expiry in value for word in (expiry, f"{total}:{cost}")]
    if isinstance(value, Mapping):
        if _kind(key) in _SETS:
            return "zset", [word for member, score in value.items() for word in (score, member)]
        return "hash", [word for pair in value.items() for word in pair]
    if isinstance(value, frozenset):
        return "distinct", sorted(value)
    if isinstance(value, (WindowCount, PeriodCount, Bucket)):
        return "string", [" ".join(map(str, value))]
    return "string", [value]


def _read(key: str, form: str, words: Sequence[str], now: int, ttl: int) -> StateCopy | NotCopied | None:
    """Return what a key holds in Redis. `ttl`: in milliseconds, below 0 if it has none."""
    if form == "none":
        return None
    if form == "distinct":
        return "distinct"
    try:
        value = _from_redis(key, form, words)
        ends = _expiry(key, value)
    except (ValueError, TypeError):
        return "foreign"
    expires = ends if ends is not None else now + (ttl * 1_000 if ttl >= 0 else LONGEST)
    return StateCopy(value, expires) if expires > now else None


def _from_redis(key: str, form: str, words: Sequence[str]) -> Any:
    """Return a value as specifications keep it. Raises `ValueError` or `TypeError` for data that we do not write."""
    kind = _kind(key)
    if form == "zset" and kind in _SETS:
        scores = {member: int(float(score)) for member, score in zip(words[::2], words[1::2], strict=True)}
        return _entries(scores) if kind == "b" or _algorithm(key) is REGISTRY["sliding_window"] else scores
    if form == "hash" and kind not in _SETS:
        fields = dict(zip(words[::2], words[1::2], strict=True))
        if kind == "s":
            for name, each in fields.items():
                if name.startswith("b:"):
                    int(each.partition(" ")[0])  # when the ban ends
            return fields
        return {name: each if name.endswith(":t") else int(each) for name, each in fields.items()}
    if form != "string":
        raise ValueError(f"{form} is not the form of {kind}")
    (word,) = words
    if kind == "r":
        return _state(_algorithm(key))(*map(int, word.split(" ")))
    return word if kind in ("settled", "granted") else int(word)


def _entries(scores: Mapping[str, int]) -> tuple[WindowEntry, ...]:
    """Return the entries of a sliding window."""
    pairs = sorted((expiry, *map(int, member.split(":"))) for member, expiry in scores.items())
    return tuple(WindowEntry(total, cost, expiry) for expiry, total, cost in pairs)


def _state(algorithm: Algorithm[Any] | None) -> type[WindowCount | PeriodCount | Bucket]:
    """Return the state of an algorithm that Redis keeps in a string."""
    if algorithm is SUBSCRIPTION:
        return PeriodCount
    if algorithm is None or algorithm in (DISTINCT, REGISTRY["sliding_window"]):
        raise ValueError("this algorithm keeps a sorted set")
    return WindowCount if algorithm.counts_units else Bucket


def _expiry(key: str, value: Any) -> int | None:
    """Return when a value expires, if it says so itself, to the microsecond."""
    kind, algorithm = _kind(key), _algorithm(key)
    if kind == "b":
        return REGISTRY["sliding_window"].expiry(value)
    if kind == "r" and algorithm is not None:
        return algorithm.expiry(value)
    return value if kind == "once" and isinstance(value, int) else None


def _kind(key: str) -> str:
    return part_of_key(key).partition(":")[0]


def _algorithm(key: str) -> Algorithm[Any] | None:
    """Return the algorithm of a limit by the name of its state; None for another key."""
    kind, _, rest = part_of_key(key).partition(":")
    return _BY_CODE.get(rest.partition(":")[2].partition(".")[0]) if kind == "r" else None
