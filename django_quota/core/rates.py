"""Rates as people write them: `10/m`, `5/30s`, `1000 per day`, `10/s; 500/h`.

The parser is strict: it reads the whole text or raises, so `10/month` never becomes ten a minute. Which units an
algorithm takes is up to the algorithm.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TypeAlias, cast

from django_quota.core.clock import SECOND, in_words
from django_quota.core.errors import RateError, RuleError

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
MAX_UNIT_LENGTH = 12
"""How many characters of a wrong unit the search for a similar one reads."""

_HINT = "Write a count, a slash and a window, such as '10/m', '5/30s' or '1000 per day'."
_COUNT = re.compile(r"[0-9]+")
_SEPARATOR = re.compile(r" */ *| +per +")
_WINDOW = re.compile(r"([0-9]*) *([A-Za-z]+)")
_GROUPED = re.compile(r"([1-9][0-9]{0,2}(?:[,._' ][0-9]{3}){1,4}|[1-9][0-9]{0,8})([kKM]?)(?= */| +per )")
"""A count as people write it elsewhere: `1,000`, `1_000`, `1k`."""
_FACTORS = {"": "", "k": "000", "K": "000", "M": "000000"}


@dataclass(frozen=True, slots=True)
class Rate:
    """A count per window.

    `count`: 0 to 10^12; 0 refuses every hit. `multiple` and `unit`: the window, such as 30 and `"second"`.
    """

    count: int
    unit: str
    multiple: int = 1

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
    start = len(text) - len(text.lstrip(" "))
    count, position = _read_count(text, start)
    separator = _SEPARATOR.match(text, position)
    if separator is None:
        grouped = _GROUPED.match(text, start)
        if grouped is not None:
            digits = re.sub("[^0-9]", "", grouped[1]) + _FACTORS[grouped[2]]
            hint = f"Write {reprlib.repr(digits + text[grouped.end() :])}."
            raise RateError(text, position, "a count has only digits", hint)
        raise RateError(text, position, "a slash or ' per ' is missing after the count", _HINT)
    rate, position = _read_window(text, separator.end(), count)
    rest = text[position:].lstrip(" ")
    if rest:
        raise RateError(text, len(text) - len(rest), f"unexpected {reprlib.repr(rest)}", _hint_for(rest, rate))
    return rate


def _hint_for(rest: str, rate: Rate) -> str:
    """Return what to write instead of the text after a rate: other packages write other separators there, or keys."""
    if rest[0] in ",|" or (rest[0].isdigit() and _SEPARATOR.search(rest)):
        return "Put a semicolon between rates: '10/s; 500/h'."
    if rest in ("/ip", "/user", "/key"):
        return f"Write {str(rate)!r}, and say who is limited by key=, such as key='ip'."
    return _HINT


def _read_count(text: str, start: int) -> tuple[int, int]:
    match = _COUNT.match(text, start)
    if match is None:
        problem = "it is empty" if start == len(text) else "the count is not a whole number from 0 up"
        raise RateError(text, start, problem, _HINT)
    # The length first: int() of a very long text is slow, and raises an error of its own.
    if len(match[0].lstrip("0")) > len(str(MAX_COUNT)) or int(match[0]) > MAX_COUNT:
        raise RateError(text, start, f"the count is above {MAX_COUNT}", _HINT)
    return int(match[0]), match.end()


def _read_window(text: str, start: int, count: int) -> tuple[Rate, int]:
    match = _WINDOW.match(text, start)
    if match is None:
        bare = _COUNT.fullmatch(text, start)  # django-ratelimit reads it as seconds
        hint = f"For seconds, write '{count}/{bare[0]}s'." if bare and len(bare[0]) < MAX_UNIT_LENGTH else _HINT
        raise RateError(text, start, "the unit is missing", hint)
    unit = _SPELLINGS.get(match[2])
    if unit is None:
        lower = "" if match[2].islower() else ", in lower case"
        hint = f"Units: s, m, h, d, w (or in full), month, year{lower}.{_nearest_unit(match[2].lower())}"
        raise RateError(text, match.start(2), f"{reprlib.repr(match[2])} is not a unit", hint)
    digits = match[1] or "1"
    longest = MAX_PERIOD // UNITS[unit]
    if len(digits) > len(str(MAX_PERIOD)) or not 1 <= int(digits) <= longest:
        raise RateError(text, start, f"a window is 1 to {longest} {unit}s long", _HINT)
    return Rate(count, unit, int(digits)), match.end()


def _nearest_unit(word: str) -> str:
    # Never suggest a single letter: "10/mo" must not become ten a minute.
    names = [name for name in _SPELLINGS if len(name) > 1]
    begun = [name for name in UNITS if len(word) > 1 and name.startswith(word)]
    near = begun or difflib.get_close_matches(word[:MAX_UNIT_LENGTH], names, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def parse_rate(value: object) -> Rate:
    """Read one rate, such as `"10/m"`; return a `Rate` as it is.

    Raises `RateError` with the position of the first wrong character.
    """
    if isinstance(value, Rate):
        return value
    if not isinstance(value, str):
        # django-ratelimit has pairs of a count and seconds.
        is_pair = isinstance(value, tuple) and list(map(type, value)) == [int, int]
        hint = "Write '{}/{}s'.".format(*cast("tuple[int, int]", value)) if is_pair else _HINT
        raise RateError(value, None, f"it is {_article(type(value).__name__)}, not a text", hint)
    return _parse(value)


def parse_rates(*values: object) -> tuple[Rate, ...]:
    """Read several rates: several arguments, or one text with semicolons (`"10/s; 500/h"`).

    None means unlimited and adds no rate. Raises `RateError`; its position counts from the start of the whole text.
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


Duration: TypeAlias = float | str | timedelta
"""A duration as people write it: a number of seconds, a timedelta, or a text such as `"10m"` or `"2 hours"`."""


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
        match = _WINDOW.fullmatch(value.strip(" "))
        unit = _SPELLINGS.get(match[2]) if match else None
        if match is None or unit is None or unit in CALENDAR_ONLY or not 0 < len(match[1]) <= len(str(most)):
            return None
        return int(match[1]) * UNITS[unit]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value * SECOND <= most:
        return None
    return max(int(value * SECOND), int(value > 0))


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def validate_cost(cost: object, rule: str) -> int:
    """Return the cost of a hit. Raises `RuleError` unless it is a whole number from 0 to 10^12."""
    if not isinstance(cost, int) or isinstance(cost, bool) or not 0 <= cost <= MAX_COUNT:
        raise RuleError(
            f"cost={cost!r} of rule {rule!r} is not a whole number from 0 to {MAX_COUNT}. Use, for example, 1."
        )
    return int(cost)  # str() of an IntEnum member is its name, which Lua cannot read
