"""Metrics and trace events for OpenTelemetry, on the current meter provider and the current span.

`INSTALLED_APPS += ["django_quota.contrib.opentelemetry"]` turns it on. No attribute names a subject.
"""

from __future__ import annotations

from opentelemetry.metrics import Meter, MeterProvider, get_meter
from opentelemetry.trace import get_current_span

from django_quota import Decision, __version__
from django_quota.metrics import RuleLabels, counted, observe, unobserve

__all__ = ["instrument", "uninstrument"]

BUCKETS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Upper bounds of buckets, in seconds. A refusal from memory is in the first bucket, most checks in the second to the
sixth. A check that waits for the timeout of Redis (0.25 s unless set) is in one of the last."""

DEGRADED = "degraded"
"""The outcome of a decision without the store. The metrics that all processes share do not count it."""


class DecisionRecorder:
    """An observer: it records each decision on the instruments of a meter."""

    def __init__(self, meter: Meter) -> None:
        self._checks = meter.create_counter(
            "quota.checks", unit="{check}", description="Checks by rule and outcome: each rule of a decision."
        )
        self._prefetched = meter.create_counter(
            "quota.prefetched",
            unit="{check}",
            description="Allowed checks that asked no store, since a process had taken units ahead.",
        )
        self._duration = meter.create_histogram(
            "quota.check.duration",
            unit="s",
            description="How long decisions took, each under the rule that binds.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self._labels = RuleLabels()

    def __call__(self, decision: Decision, seconds: float | None) -> None:
        """Record a decision; `seconds` is None for a slot, which is not a check."""
        if not decision.allowed:
            _add_event(decision)
        if decision.degraded:
            self._checks.add(1, self._attributes(decision.rule, DEGRADED))
        else:
            for rule, _, outcome in counted(decision):
                self._checks.add(1, self._attributes(rule, outcome))
                if decision.approximate and outcome == "allowed":
                    self._prefetched.add(1, {"quota.rule": self._labels.of(rule)})
        if seconds is not None:
            word = DEGRADED if decision.degraded else "allowed" if decision.allowed else "refused"
            self._duration.record(seconds, self._attributes(decision.rule, word))

    def _attributes(self, rule: str, outcome: str) -> dict[str, str]:
        return {"quota.rule": self._labels.of(rule), "quota.outcome": outcome}


def _add_event(decision: Decision) -> None:
    """Add an event to the current span for a refusal, if the span is recorded."""
    span = get_current_span()
    if span.is_recording():
        wait = decision.retry_after
        seconds = {} if wait is None else {"quota.retry_after": wait}
        span.add_event("quota.refused", {"quota.rule": decision.rule, **seconds})


_recorders: list[DecisionRecorder] = []
"""The recorder that observes, if any."""


def instrument(meter_provider: MeterProvider | None = None) -> None:
    """Record the decisions of this process from now on; the app in `INSTALLED_APPS` calls it.

    `meter_provider`: by default the current one, even if it is set later. A second call replaces the first.
    """
    uninstrument()
    _recorders.append(DecisionRecorder(get_meter("django_quota", __version__, meter_provider)))
    observe(_recorders[0], duration=True)


def uninstrument() -> None:
    """Stop recording decisions."""
    while _recorders:
        unobserve(_recorders.pop())
