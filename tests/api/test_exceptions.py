"""Errors: one base class, texts that say what to write instead, and they survive pickling."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

import django_quota
from django_quota import Decision, Outcome, QuotaError, QuotaExceeded, RateError, Rule, StoreUnavailable
from django_quota.exceptions import ConfigurationError, RuleError, StoreCommandDenied

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
class TestEveryError:
    def test_is_caught_as_a_quota_error(self, error: QuotaError) -> None:
        with pytest.raises(QuotaError):
            raise error

    def test_survives_pickling(self, error: QuotaError) -> None:
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is type(error)
        assert vars(back) == vars(error)
        assert str(back) == str(error)
        assert vars(back).keys() == vars(error).keys()

    def test_can_be_copied(self, error: QuotaError) -> None:
        assert str(copy.copy(error)) == str(error)


def test_a_rate_error_is_a_rule_error_a_value_error_and_a_configuration_error() -> None:
    assert issubclass(RateError, RuleError)
    assert issubclass(RuleError, (ConfigurationError, ValueError))
    assert issubclass(ConfigurationError, QuotaError)


def test_a_rate_error_names_text_problem_place_and_hint() -> None:
    error = RateError("5/mx", 2, "'mx' is not a unit", "Units: s, m.")
    assert str(error) == "'5/mx' is not a rate: 'mx' is not a unit (at position 2). Units: s, m."
    assert (error.text, error.position, error.problem, error.hint) == ("5/mx", 2, "'mx' is not a unit", "Units: s, m.")


def test_a_rate_error_about_a_wrong_type_names_no_position() -> None:
    assert str(RateError(10, None, "it is an int, not a text", "H.")) == (
        "10 is not a rate: it is an int, not a text. H."
    )


def test_quota_exceeded_names_the_subject_the_rule_and_the_wait() -> None:
    assert str(QuotaExceeded(REFUSED)) == (
        "Rule 'search' admits 10 per minute for user:42; try again in 1 minute 2 seconds."
    )
    assert QuotaExceeded(REFUSED).decision is REFUSED


def test_store_unavailable_names_the_reason() -> None:
    error = StoreUnavailable("ConnectionError: refused")
    assert str(error) == "The quota store is unavailable: ConnectionError: refused"
    assert error.reason == "ConnectionError: refused"


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("algoritm", "Did you mean 'algorithm'?"),
        ("METHODS", "Did you mean 'methods'?"),
        ("zzz", "Known: algorithm, ban,"),
    ],
)
def test_an_unknown_word_gets_the_nearest_one_or_all_that_are_known(option: str, said: str) -> None:
    with pytest.raises(RuleError, match=re.escape(said)):
        Rule.make("search", "10/m", **{option: 1})


def test_every_public_name_exists_and_has_a_docstring() -> None:
    for name in django_quota.__all__:
        assert getattr(django_quota, name).__doc__, name
