"""The functions for exporters of metrics: each decision of this process, and the totals of all processes."""

from __future__ import annotations

from django_quota.limiting.metrics import RuleLabels, counted, observe, unobserve
from django_quota.operating.activity import running_totals

__all__ = ["RuleLabels", "counted", "observe", "running_totals", "unobserve"]
