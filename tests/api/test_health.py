"""Why a site limits nothing now, in a sentence for its operators."""

from typing import Any

import pytest

from django_quota.exceptions import QuotaError, StoreUnavailable
from django_quota.operating.health import nothing_is_limited
from django_quota.testing import freeze
from tests.support.overridden import override
from tests.support.steps import SECOND, START

FAILS = "The store fails, so nothing is limited, except by rules with an on_unavailable of their own."
EXEMPT = "An override exempts everybody from all rules, so nothing is limited."
OFF = "Limits are switched off (ENABLED is false), so everything is allowed."


@pytest.mark.parametrize(
    ("quota", "failure", "said"),
    [
        pytest.param({}, None, "", id="a site that limits"),
        pytest.param({"ENABLED": False}, None, OFF, id="limits are off"),
        pytest.param({"ENABLED": False}, StoreUnavailable("gone"), OFF, id="limits are off and the store fails"),
        pytest.param({}, StoreUnavailable("gone"), FAILS, id="the store fails"),
        pytest.param({"ON_UNAVAILABLE": "deny"}, StoreUnavailable("gone"), "", id="all is refused without the store"),
        pytest.param({"ON_UNAVAILABLE": "local"}, StoreUnavailable("gone"), "", id="each process limits by itself"),
        pytest.param({}, QuotaError("wrong"), "", id="another error"),
    ],
)
def test_a_sentence_says_why_nothing_is_limited(
    quota: dict[str, Any], failure: QuotaError | None, said: str, settings: Any
) -> None:
    settings.QUOTA = quota

    assert nothing_is_limited(failure) == said


@pytest.mark.parametrize(
    ("value", "rule", "subject", "said"),
    [
        pytest.param("x 0 0 ", "*", "*", EXEMPT, id="everybody is exempt from all rules"),
        pytest.param("b 0 0 ", "*", "*", "", id="everybody is blocked"),
        pytest.param("x 0 0 ", "search", "*", "", id="everybody is exempt from one rule"),
        pytest.param("x 0 0 ", "*", "user:*", "", id="users are exempt"),
        pytest.param(f"x {START + SECOND} 0 ", "*", "*", "", id="it has not begun"),
        pytest.param(f"x 0 {START} ", "*", "*", "", id="it has ended"),
    ],
)
def test_a_sentence_says_that_an_override_exempts_everybody(value: str, rule: str, subject: str, said: str) -> None:
    with freeze(START):
        override(value, rule, subject)

        assert nothing_is_limited() == said
