"""Bans: so many refusals in a window, and the subject is shut out for a while, each time longer. Pure.

This module reads what a rule says of them; `lua/telling.lua` counts and bans.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from django_quota.algorithms import ALGORITHMS, Options, Parameters
from django_quota.clock import in_words
from django_quota.exceptions import RateError, RuleError, did_you_mean
from django_quota.rates import Rate, parse_rate, parse_span

MOST_SPANS = 16

_EXAMPLE = "{'after': '20/m', 'for': ['10m', '1h', '1d']} would do."
_SLIDING = ALGORITHMS["sliding_window"]


class Ban(NamedTuple):
    """When a subject is banned from a rule, and for how long.

    The refusal that reaches `after` bans for the first of the spans (microseconds); a ban that begins while the last is
    still remembered, for the length of the longest span after its end, is the next in the row.
    """

    after: Rate
    spans: tuple[int, ...]

    @classmethod
    def read(cls, value: object) -> Ban:
        """Read what a rule says: a rate of refusals and one or several spans. Raises `RuleError`."""
        if isinstance(value, Ban):
            return value
        if not isinstance(value, Mapping):
            raise RuleError(f"ban={value!r} is not a dict.", _EXAMPLE)
        for name in value:
            if name not in ("after", "for"):
                raise RuleError(f"ban has no {name!r}.{did_you_mean(str(name), ('after', 'for'))}", _EXAMPLE)
        if "after" not in value or "for" not in value:
            raise RuleError(f"ban={dict(value)!r} must say both 'after' and 'for'.", _EXAMPLE)
        given = value["for"]
        spans = given if isinstance(given, (list, tuple)) else (given,)
        if not 1 <= len(spans) <= MOST_SPANS:
            raise RuleError(f"ban['for']={given!r} does not list 1 to {MOST_SPANS} spans.", _EXAMPLE)
        try:
            return cls(_after(parse_rate(value["after"])), tuple(parse_span(span) for span in spans))
        except RateError as error:
            raise RateError(
                error.text, error.position, error.problem, f"{error.hint} In ban: {_EXAMPLE}", error.what
            ) from None

    @property
    def tally(self) -> Parameters:
        """The sliding window that counts the refusals."""
        return _SLIDING.parameters(self.after, Options(), 0)

    @property
    def wire(self) -> str:
        """The ban as `lua/decide.lua` takes it."""
        capacity, a, b, _, _ = self.tally
        return f"{capacity};{a};{b};{','.join(map(str, self.spans))}"

    def __str__(self) -> str:
        return f"after {self.after.count} refusals in {self.after.window}, for {', '.join(map(in_words, self.spans))}"


def _after(rate: Rate) -> Rate:
    if rate.count == 0:
        raise RateError(str(rate), 0, "a ban after no refusals would never end", "'20/m' would do.")
    _SLIDING.validate(rate, Options())
    return rate
