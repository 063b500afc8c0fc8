"""Errors: one base class, texts that say what to write instead, and they survive pickling."""

from __future__ import annotations

import copy
import pickle

import pytest

from django_quota import Decision, Rule
from django_quota.core.errors import StoreCommandDenied
from django_quota.exceptions import (
    ConfigurationError,
    QuotaError,
    QuotaExceeded,
    RateError,
    RuleError,
    StoreUnavailable,
)
from django_quota.types import Outcome

LIMIT = Rule.make("search", "10/m").limits[0]
REFUSED = Decision.of((Outcome(LIMIT, "user:42", 1, False, 0, 61.2, 90.0),))


@pytest.mark.parametrize(
    "error",
    [
        ConfigurationError("x"),
        RuleError("x"),
        RateError("5/mx", 2, "'mx' is not a unit", "Units: s."),
        StoreUnavailable("no connection"),
        StoreCommandDenied("not permitted"),
        QuotaExceeded(REFUSED),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_caught_as_a_quota_error_and_survives_pickling_and_copying(error: QuotaError) -> None:
    with pytest.raises(QuotaError):
        raise error
    for back in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(back) is type(error)
        assert vars(back) == vars(error)
        assert str(back) == str(error)


def test_an_error_names_what_is_wrong() -> None:
    error = RateError("5/mx", 2, "'mx' is not a unit", "Units: s, m.")
    assert (error.text, error.position, error.problem, error.hint) == ("5/mx", 2, "'mx' is not a unit", "Units: s, m.")
    assert QuotaExceeded(REFUSED).decision is REFUSED
    assert repr(LIMIT) == "<Limit 10/m by sliding_window of 'search'>"
    away = StoreUnavailable("ConnectionError: refused")
    assert away.reason == "ConnectionError: refused"
    assert [str(each) for each in (error, RateError(10, None, "it is an int", "H."), QuotaExceeded(REFUSED), away)] == [
        "'5/mx' is not a rate: 'mx' is not a unit (at position 2). Units: s, m.",
        "10 is not a rate: it is an int. H.",
        "Rule 'search' admits 10 per minute for user:42; try again in 1 minute 2 seconds.",
        "The quota store is unavailable: ConnectionError: refused",
    ]
