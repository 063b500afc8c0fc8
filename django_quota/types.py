"""The classes of what calls return and take, for your annotations: `def view(request: QuotaRequest) -> HttpResponse`.

You do not make any of them yourself. `Decision`, `Rule` and `Subject` are in `django_quota`.
"""

from __future__ import annotations

from django_quota.core.decisions import Outcome
from django_quota.core.rates import Rate
from django_quota.core.rules import RuleOptions
from django_quota.features.counters.calls import Counter, Grant
from django_quota.features.reservations.calls import Reservation
from django_quota.features.slots.calls import Lease, Slot
from django_quota.features.usage.lines import UsageLine
from django_quota.http.limited_requests import QuotaRequest
from django_quota.http.view_lookup import Endpoint
from django_quota.http.wording import RefusalDetails
from django_quota.operating.activity import RunningTotals

__all__ = [
    "Counter",
    "Endpoint",
    "Grant",
    "Lease",
    "Outcome",
    "QuotaRequest",
    "Rate",
    "RefusalDetails",
    "Reservation",
    "RuleOptions",
    "RunningTotals",
    "Slot",
    "UsageLine",
]
