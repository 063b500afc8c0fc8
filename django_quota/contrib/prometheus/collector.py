"""The collector: it reads the figures of all processes when Prometheus asks."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from django_quota.exceptions import QuotaError
from django_quota.metrics import running_totals
from django_quota.types import RunningTotals

logger = logging.getLogger("django_quota.metrics")


class QuotaCollector(Collector):
    """Yields the metrics of django_quota; register it with a registry of `prometheus_client`.

    If the store does not answer, `quota_store_up` is 0 and all other metrics are left out.
    """

    def collect(self) -> Iterator[Metric]:
        try:
            totals = running_totals()
        except QuotaError as error:
            logger.warning("The store did not answer, so its metrics are left out: %s", error)
            yield _gauge("quota_store_up", "1 if the store answers, 0 if not.", 0)
        else:
            yield _gauge("quota_store_up", "1 if the store answers, 0 if not.", 1)
            yield from _of_store(totals)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: registering a collector must not ask the store."""
        return ()


def _of_store(totals: RunningTotals) -> Iterator[Metric]:
    counts, prefetched = Counter[tuple[str, str]](), Counter[str]()
    for rule in totals.rules:
        if rule.spent:
            prefetched[rule.label] += rule.spent
        counts[rule.label, "allowed"] += rule.allowed
        counts[rule.label, "refused"] += rule.refused
        counts[rule.label, "shadowed"] += rule.shadowed
    checks = CounterMetricFamily("quota_checks", "Checks by rule and outcome.", labels=("rule", "outcome"))
    for labels, count in counts.items():
        checks.add_metric(labels, count)
    yield checks
    words = "Allowed checks that asked no store, since a process had taken units ahead."
    ahead = CounterMetricFamily("quota_prefetched", words, labels=("rule",))
    for name, count in prefetched.items():
        ahead.add_metric((name,), count)
    yield ahead
    outages = CounterMetricFamily("quota_outages", "Outages of the store, each as often as workers saw it.")
    outages.add_metric((), totals.outages)
    yield outages
    yield _gauge("quota_bans", "Bans that are in force.", totals.banned)
    held, limits = Counter[str](), Counter[str]()
    for slot in totals.slots:
        held[slot.label] += slot.held
        limits[slot.label] += slot.limit
    used = GaugeMetricFamily("quota_leases_in_use", "Slots in use, of the slots used recently.", labels=("slot",))
    most = GaugeMetricFamily("quota_leases_limit", "Slots available, of the slots used recently.", labels=("slot",))
    for name in held:
        used.add_metric((name,), held[name])
        most.add_metric((name,), limits[name])
    yield used
    yield most


def _gauge(name: str, description: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, description, value=value)
