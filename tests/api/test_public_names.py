"""The public names: a site calls what is in `django_quota`, an integration also what is in `adapters`."""

from __future__ import annotations

from types import ModuleType

import pytest

import django_quota
from django_quota import adapters, exceptions, metrics, types

NAMES = {
    django_quota: """
        Decision Rule Subject aacquire aban acheck acheck_all acquire alimits_of aonce apeek apeek_all arefund areserve
        areserve_all areset aunban ban check check_all concurrency counter limits_of lock once peek peek_all quota
        raise_limit refund reserve reserve_all reset reset_subject slot unban usage
    """,
    adapters: """
        RequestSlot adecide apply_decision arefusal asettle checks_views client_ip decide decides_later digest
        dotted_path endpoints finds_rules has_middleware in_words limits_view now refusal refusal_details rule_of
        set_body_parser settle subject_of take_place take_waiting_rules take_waiting_slots
        write_headers
    """,
    exceptions: """
        ConfigurationError CounterError LeaseLost QuotaError QuotaExceeded RateError RuleError StoreUnavailable
    """,
    metrics: "RuleLabels counted observe running_totals unobserve",
    types: """
        Counter Endpoint Hold Lease Outcome QuotaRequest Rate RefusalDetails ResetReport RuleOptions RunningTotals Slot
    """,
}
"""A name more is a promise more: each needs a user of the guides, or an integration."""


@pytest.mark.parametrize("module", NAMES, ids=lambda module: module.__name__)
def test_a_module_has_these_public_names(module: ModuleType) -> None:
    assert module.__all__ == sorted(NAMES[module].split())
    assert all(hasattr(module, name) for name in module.__all__)
