"""What people are told: rates and waits in words, in their language, never too short."""

from __future__ import annotations

import pytest
from django.test import override_settings
from django.utils import translation
from hypothesis import given
from hypothesis import strategies as st

from django_quota.core.algorithms.concurrency import AtOnce
from django_quota.core.rates import UNITS, Rate
from django_quota.web.wording import rate_in_words, wait_in_words

UNIT_SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}


@given(st.integers(0, 10**12), st.sampled_from(sorted(UNITS)), st.integers(1, 400))
def test_in_english_a_rate_reads_as_it_does_in_logs(count: int, unit: str, multiple: int) -> None:
    rate = Rate(count, unit, multiple)
    assert rate_in_words(rate) == rate.in_words()
    assert rate_in_words(AtOnce(count)) == AtOnce(count).in_words()


def test_a_rate_has_the_separators_of_the_language_where_the_site_wants_them() -> None:
    with override_settings(USE_THOUSAND_SEPARATOR=True):
        assert rate_in_words(Rate(1_000, "hour")) == "1,000 per hour"
        with translation.override("de"):
            assert rate_in_words(Rate(1_000, "hour")) == "1.000 pro Stunde"
            assert rate_in_words(Rate(5, "second", 30)) == "5 pro 30 Sekunden"
            assert rate_in_words(AtOnce(10)) == "10 gleichzeitig"


@given(st.integers(1, 10**9))
def test_a_wait_is_one_unit_and_never_shorter_than_it_is_nor_half_as_long_again(seconds: int) -> None:
    number, unit = wait_in_words(seconds).split()
    said = int(number) * UNIT_SECONDS[unit.rstrip("s")]
    assert seconds <= said <= seconds * 1.5
    assert unit.endswith("s") == (number != "1")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1, "1 second"), (119, "119 seconds"), (120, "2 minutes"), (7_200, "2 hours"), (172_801, "3 days")],
)
def test_waits_in_words(seconds: int, words: str) -> None:
    assert wait_in_words(seconds) == words
