"""Durations in words, as refusals, errors and pages say them. What `freeze` does is in `tests/api/test_testing.py`."""

import pytest

from django_quota.core.clock import SECOND, in_words

MINUTE, HOUR, DAY = 60, 3_600, 86_400


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1, "now"),
        (0, "now"),
        (0.000_001, "1 second"),
        (1, "1 second"),
        (1.000_001, "2 seconds"),
        (59, "59 seconds"),
        (59.5, "1 minute"),
        (MINUTE + 1, "1 minute 1 second"),
        (2 * MINUTE + 30, "2 minutes 30 seconds"),
        (HOUR - 1, "59 minutes 59 seconds"),
        (HOUR - 0.5, "1 hour"),
        (HOUR, "1 hour"),
        (HOUR + 1, "1 hour 1 minute"),
        (2 * HOUR + 5 * MINUTE, "2 hours 5 minutes"),
        (DAY - 1, "1 day"),
        (DAY, "1 day"),
        (DAY + 1, "1 day 1 hour"),
        (366 * DAY, "366 days"),
    ],
)
def test_a_duration_in_words_is_rounded_up_to_the_smaller_of_two_units(seconds: float, words: str) -> None:
    assert in_words(seconds * SECOND) == words
