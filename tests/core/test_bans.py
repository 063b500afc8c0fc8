"""Bans by refusals: when one begins, how long it lasts, and for how long it is remembered."""

import pytest

from django_quota import check
from django_quota.testing import freeze
from tests.support.steps import MINUTE, SECOND, START, SUBJECT

DAY = 86_400 * SECOND
BAN = {"after": "3/m", "for": ["10m", "1h", "1d"]}
EDGE = MINUTE - START % MINUTE
"""Until a minute of the clock ends."""


@pytest.mark.usefixtures("either_store")
@pytest.mark.parametrize(
    ("rate", "steps"),
    [
        # So many refusals in the window ban; one that is allowed is none.
        ("1/m", [(0, 1, "", 0), (0, 1, "", 60), (0, 1, "", 60), (0, 1, "banned", 600), (MINUTE, 1, "banned", 540)]),
        # A rule that would admit again still refuses who is banned.
        ("1/s", [(0, 4, "banned", 600), (2 * SECOND, 1, "banned", 598), (10 * MINUTE, 1, "", 0)]),
        # Refusals that are spread thinner do not ban; those on both sides of a clock minute do.
        ("1/m", [(number * 30 * SECOND + 1, 1, "", number % 2 and 30) for number in range(20)]),
        ("1/m", [(EDGE - 2, 1, "", 0), (EDGE - 1, 1, "", 60), (EDGE + 1, 1, "", 60), (EDGE + 2, 1, "banned", 600)]),
        # Each further ban is longer, and the last length stays.
        ("1/m", [(0, 4, "banned", 600), (10 * MINUTE, 4, "banned", 3_600), (70 * MINUTE, 4, "banned", 86_400),
                 (70 * MINUTE + DAY, 4, "banned", 86_400), (70 * MINUTE + 2 * DAY, 4, "banned", 86_400)]),
        # A ban is remembered for the longest ban, even if it was short; who behaves for that long begins anew.
        ("1/m", [(0, 4, "banned", 600), (10 * MINUTE + DAY - 1, 4, "banned", 3_600)]),
        ("1/m", [(0, 4, "banned", 600), (10 * MINUTE + DAY, 4, "banned", 600)]),
        # Refused requests do not make a ban longer.
        ("1/m", [(0, 4, "banned", 600), (9 * MINUTE, 50, "banned", 60), (10 * MINUTE, 1, "", 0)]),
    ],
    ids=["enough", "still", "thinner", "clock minute", "longer", "remembered", "anew", "not longer"],
)  # fmt: skip
def test_refusals_ban(rate: str, steps: list[tuple[int, int, str, int]]) -> None:
    """Each step: when, how many checks, and what the last of them says: why, and for how many seconds."""
    found: list[tuple[int, str, object]] = []
    for moment, times, _, _ in steps:
        with freeze(START + moment):
            decision = [check(rate, SUBJECT, ban=BAN) for _ in range(times)][-1]
        found.append((moment, decision.outcomes[0].why, decision.retry_after))

    assert found == [(moment, why, pytest.approx(wait, abs=1e-4)) for moment, _, why, wait in steps]


@pytest.mark.usefixtures("either_store")
def test_the_refusals_that_led_to_a_ban_do_not_lead_to_the_next_one() -> None:
    found = []
    for moment in (START, START + MINUTE):
        with freeze(moment):
            found.append([check("0/h", SUBJECT, ban={"after": "3/h", "for": "1m"}).outcomes[0].why for _ in range(3)])

    assert found == [["", "", "banned"]] * 2
