"""Rates by tier: `{"anonymous": "10/m", "authenticated": "100/m", "pro": "1000/m"}`. Pure: it must not know users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django_quota.exceptions import RateError, RuleError, did_you_mean
from django_quota.rates import Rate, parse_rates

ANONYMOUS = "anonymous"
AUTHENTICATED = "authenticated"

DEFAULT_TIERS = (ANONYMOUS, AUTHENTICATED)
"""The tiers that need no function to tell them apart."""

_EXAMPLE = "{'anonymous': '10/m', 'authenticated': '100/m'} would do."


@dataclass(frozen=True, slots=True)
class Tiers:
    """The rates of each tier; none at all: the tier is unlimited."""

    rates: tuple[tuple[str, tuple[Rate, ...]], ...]

    @classmethod
    def read(cls, value: object) -> Tiers:
        """Read a dict of rates by tier. Raises `RuleError`, or `RateError` naming the tier."""
        if isinstance(value, Tiers):
            return value
        if not isinstance(value, Mapping) or not value:
            raise RateError(value, None, "it names no tier", _EXAMPLE)
        return cls(tuple((_name(tier), _rates(tier, given)) for tier, given in value.items()))

    def check_default(self) -> None:
        """Raise `RuleError` where the tiers are not those that need no function to tell them apart."""
        names = [name for name, _ in self.rates]
        for name in names:
            if name not in DEFAULT_TIERS:
                raise RuleError(f"There is no tier= to tell who is in {name!r}.", f"A function would do.{_near(name)}")
        for name in DEFAULT_TIERS:
            if name not in names:
                raise RuleError(f"There is no rate for the tier {name!r}.", f"{_EXAMPLE} None is unlimited.")

    def __str__(self) -> str:
        return ", ".join(f"{'; '.join(map(str, rates)) or 'unlimited'} for {name}" for name, rates in self.rates)


def _near(name: str) -> str:
    near = did_you_mean(name, DEFAULT_TIERS)
    return near if "mean" in near else ""


def _name(tier: object) -> str:
    if not isinstance(tier, str) or not tier:
        raise RuleError(f"{tier!r} is not the name of a tier.", _EXAMPLE)
    return tier


def _rates(tier: object, given: object) -> tuple[Rate, ...]:
    if callable(given) or isinstance(given, Mapping):
        raise RuleError(f"The rate of tier {tier!r} is {given!r}.", "'10/m' would do, or None for unlimited.")
    try:
        return parse_rates(*given) if isinstance(given, (list, tuple)) else parse_rates(given)
    except RateError as error:
        raise RateError(error.text, error.position, f"{error.problem}, for tier {tier!r}", error.hint) from None
