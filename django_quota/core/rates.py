"""Rates as people write them: `10/m`, `5/30s`, `1000 per day`, `10/s; 500/h`.

The parser is strict: it reads the whole string or raises, so `10/month` never becomes ten a minute. Each algorithm
checks which units it can count in.
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import ClassVar, NamedTuple, TypeAlias

from django_quota.core.clock import SECOND, in_words
from django_quota.core.errors import RateError, RuleError, Translatable

MAX_COUNT = 10**12
"""The largest count of a rate, and the largest cost of a hit: sums stay exact in Lua's doubles."""

MAX_PERIOD = 366 * 86_400 * SECOND
"""The longest window, in microseconds: a leap year."""

UNITS: dict[str, int] = {
    "second": SECOND,
    "minute": 60 * SECOND,
    "hour": 3_600 * SECOND,
    "day": 86_400 * SECOND,
    "week": 7 * 86_400 * SECOND,
    # Only the calendar algorithm takes these, and it counts real months and years.
    "month": 30 * 86_400 * SECOND,
    "year": 365 * 86_400 * SECOND,
}
"""The units by their full names, with their lengths in microseconds."""

UNITS_IN_WORDS: dict[str, Translatable] = {
    "second": Translatable("seconds"),
    "minute": Translatable("minutes"),
    "hour": Translatable("hours"),
    "day": Translatable("days"),
    "week": Translatable("weeks"),
    "month": Translatable("months"),
    "year": Translatable("years"),
}
"""The plural of each unit, for errors."""

CALENDAR_ONLY = frozenset({"month", "year"})

_SPELLINGS: dict[str, str] = {
    spelling: unit
    for unit, spellings in {
        "second": "s sec second seconds",
        "minute": "m min minute minutes",
        "hour": "h hr hour hours",
        "day": "d day days",
        "week": "w week weeks",
        "month": "month months",
        "year": "year years",
    }.items()
    for spelling in spellings.split()
}
_SYMBOLS = {
    "second": "s",
    "minute": "m",
    "hour": "h",
    "day": "d",
    "week": "w",
    "month": "month",
    "year": "year",
}

_HINT = Translatable(
    "Write a count in digits alone, a slash and a window: '10/m', '5/30s', '1000 per day', or several: '10/s; 500/h'."
)
_WINDOW = re.compile(r"([0-9]*) *([A-Za-z]+) *")
_PARTS = (
    (re.compile(r" *"), Translatable("")),
    (re.compile(r"[0-9]+(?![0-9.,_])"), Translatable("the count is not a whole number from 0 up")),
    (re.compile(r" */ *| +per +"), Translatable("a slash or ' per ' is missing after the count")),
    (_WINDOW, Translatable("the unit is missing")),
    (re.compile(r"\Z"), Translatable("unexpected text after the unit")),
)
"""The parts of a rate, in order, and what is wrong where one is missing."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A count per window.

    `count`: 0 to 10^12; 0 refuses every hit. `multiple` and `unit`: the window, such as 30 and `"second"`.
    """

    count: int
    unit: str
    multiple: int = 1

    max_count: ClassVar[int] = MAX_COUNT
    """The largest count, and the largest cost of a hit."""

    @property
    def period(self) -> int:
        """The window in microseconds; a month counts as 30 days, a year as 365."""
        return UNITS[self.unit] * self.multiple

    @property
    def window(self) -> str:
        """The window, abbreviated: `"m"`, `"30s"`, `"month"`."""
        symbol = _SYMBOLS[self.unit]
        return symbol if self.multiple == 1 else f"{self.multiple}{symbol}"

    def __str__(self) -> str:
        return f"{self.count}/{self.window}"

    def in_words(self) -> str:
        """Return the rate as people say it: `"10 per minute"`, `"1,000 per 30 seconds"`."""
        return f"{self.count:,} per {self.unit if self.multiple == 1 else f'{self.multiple} {self.unit}s'}"


@lru_cache(maxsize=1024)
def _parse(text: str) -> Rate:
    position, found = 0, list[re.Match[str]]()
    for pattern, problem in _PARTS:
        match = pattern.match(text, position)
        if match is None:
            raise RateError(text, position, problem, _HINT)
        found.append(match)
        position = match.end()
    _, count, _, window, _ = found
    # The length first: int() of a very long string is slow, and raises another error.
    if len(count[0].lstrip("0")) > len(str(MAX_COUNT)) or int(count[0]) > MAX_COUNT:
        raise RateError(text, count.start(), Translatable("the count is above %(most)d", most=MAX_COUNT), _HINT)
    unit = _SPELLINGS.get(window[2])
    if unit is None:
        hint = Translatable("Units, in lower case: s, m, h, d, w (or in full), month, year.")
        problem = Translatable("%(text)s is not a unit", text=reprlib.repr(window[2]))
        raise RateError(text, window.start(2), problem, hint)
    digits, longest = window[1] or "1", MAX_PERIOD // UNITS[unit]
    if len(digits) > len(str(MAX_PERIOD)) or not 1 <= int(digits) <= longest:
        words = {"most": longest, "units": UNITS_IN_WORDS[unit]}
        problem = Translatable("a window is 1 to %(most)d %(units)s long", **words)
        raise RateError(text, window.start(), problem, _HINT)
    return Rate(int(count[0]), unit, int(digits))


def parse_rate(value: object) -> Rate:
    """Read one rate, such as `"10/m"`; return a `Rate` as it is.

    Raises `RateError` with the position of the first wrong character.
    """
    if isinstance(value, Rate):
        return value
    if not isinstance(value, str):
        problem = Translatable("it is %(type)s, not a string", type=type(value).__name__)
        raise RateError(value, None, problem, _HINT)
    return _parse(value)


def parse_rates(*values: object) -> tuple[Rate, ...]:
    """Read several rates: several arguments, or one string with semicolons (`"10/s; 500/h"`).

    None means unlimited and adds no rate. Raises `RateError`; its position counts from the start of the whole string.
    """
    rates: list[Rate] = []
    for value in values:
        if value is None:
            continue
        if not isinstance(value, str) or ";" not in value:
            rates.append(parse_rate(value))
            continue
        position = 0
        for part in value.split(";"):
            try:
                rates.append(_parse(part))
            except RateError as error:
                offset = position + (error.position or 0)
                raise RateError(value, offset, error.problem, error.hint) from None
            position += len(part) + 1
    return tuple(rates)


class RateChange(NamedTuple):
    """How an override changes the rates of a rule, whatever they are."""

    factor: int = 1
    """Multiplies each rate."""
    units: int = 0
    """Added to the count of the rate with the longest period."""

    def __str__(self) -> str:
        return f"x{self.factor}" * (self.factor != 1) + f"+{self.units}" * (self.units != 0)


_CHANGE = re.compile(r"(?:x([1-9][0-9]*))?(?:\+([1-9][0-9]*))?")

MAX_FACTOR = 1_000


def parse_override_rates(text: str) -> RateChange | tuple[Rate, ...]:
    """Read what an override sets: rates, or a change of the rule's own: `"+500"`, `"x2"`. Raises `RateError`."""
    if text.strip()[:1] not in ("+", "x"):
        return parse_rates(text)
    match = _CHANGE.fullmatch(text.strip())
    change = RateChange(int(match[1] or 1), int(match[2] or 0)) if match else RateChange(0)
    if not 1 <= change.factor <= MAX_FACTOR or change.units > MAX_COUNT:
        problem = Translatable(
            "it neither adds 1 to %(most)s units nor multiplies by 1 to %(factor)s",
            most=f"{MAX_COUNT:,}",
            factor=f"{MAX_FACTOR:,}",
        )
        raise RateError(text, None, problem, Translatable("Use, for example, +500, x2 or x2+500."))
    return change


Duration: TypeAlias = float | str | timedelta
"""A duration as people write it: a number of seconds, a timedelta, or a string such as `"10m"` or `"2 hours"`."""


def parse_duration(
    option: str,
    value: object,
    *,
    least: int = 1,
    most: int = MAX_PERIOD,
    examples: str = "30 (seconds), '10m' or timedelta(days=1)",
) -> int:
    """Return a duration in microseconds. Raises `RuleError` unless it is `least` to `most`; `examples` are in range."""
    found = _microseconds(value, most)
    if found is None or not least <= found <= most:
        start = "above 0 and up" if least == 1 else f"from {in_words(least) if least else 0}"
        raise RuleError(
            f"{option}={reprlib.repr(value)} is not a duration {start} to {in_words(most)}.",
            f"Use, for example, {examples}.",
        )
    return found


def _microseconds(value: object, most: int) -> int | None:
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, str):
        match = _WINDOW.fullmatch(value.lstrip(" "))
        unit = _SPELLINGS.get(match[2]) if match else None
        if match is None or unit is None or unit in CALENDAR_ONLY or not 0 < len(match[1]) <= len(str(most)):
            return None
        return int(match[1]) * UNITS[unit]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value * SECOND <= most:
        return None
    return max(int(value * SECOND), int(value > 0))


def validate_cost(cost: object, rule: str) -> int:
    """Return the cost of a hit. Raises `RuleError` unless it is a whole number from 0 to 10^12."""
    if not isinstance(cost, int) or isinstance(cost, bool) or not 0 <= cost <= MAX_COUNT:
        raise RuleError(
            f"cost={cost!r} of rule {rule!r} is not a whole number from 0 to {MAX_COUNT}. Use, for example, 1."
        )
    return int(cost)  # a plain int: str() of an enum member may be its name, which Lua cannot read
