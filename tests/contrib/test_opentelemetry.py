"""Metrics and events of traces for OpenTelemetry."""

import asyncio
import re
from collections.abc import Iterator
from io import StringIO
from itertools import pairwise
from typing import Any

import pytest
from django.apps import apps
from django.test import RequestFactory
from opentelemetry.metrics import _internal as metrics_api
from opentelemetry.metrics import get_meter_provider, set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import DropAggregation, View
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from django_quota import Rule, __version__, acheck, check, check_all, peek, refund, slot
from django_quota.adapters import decide
from django_quota.contrib.opentelemetry import BUCKETS, instrument, uninstrument
from django_quota.engine.system_operations import FIELDS
from django_quota.exceptions import QuotaExceeded
from django_quota.limiting import limiter, metrics
from django_quota.metrics import counted, observe, unobserve
from django_quota.testing import freeze
from tests.support.outages import no_answer
from tests.support.pages import marked, read
from tests.support.steps import START

pytestmark = pytest.mark.usefixtures("memory_store")
APP = "django_quota.contrib.opentelemetry"


class Meters:
    """What was recorded since `instrument`."""

    def __init__(self, *views: Any) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], views=views)

    def points(self, name: str, value: str) -> dict[tuple[str, str], Any]:
        """Return this value of the points of an instrument, by rule and outcome."""
        return {
            (point.attributes["quota.rule"], point.attributes["quota.outcome"]): getattr(point, value)
            for point in self._points(name)
        }

    def of_rules(self, name: str) -> dict[str, int]:
        """Return the points of a counter by rule alone."""
        return {point.attributes["quota.rule"]: point.value for point in self._points(name)}

    def _points(self, name: str) -> Iterator[Any]:
        return (point for metric in self.metrics() if metric.name == name for point in metric.data.data_points)

    def metrics(self) -> Iterator[Any]:
        for scope in self.scopes():
            yield from scope.metrics

    def scopes(self) -> Iterator[Any]:
        data: Any = self.reader.get_metrics_data()
        for resource in [] if data is None else data.resource_metrics:
            yield from resource.scope_metrics

    @property
    def checks(self) -> dict[tuple[str, str], int]:
        return self.points("quota.checks", "value")

    @property
    def durations(self) -> dict[tuple[str, str], int]:
        return self.points("quota.check.duration", "count")


@pytest.fixture
def meters() -> Iterator[Meters]:
    found = Meters()
    instrument(found.provider)
    yield found
    uninstrument()
    found.provider.shutdown()


class TestEachCheck:
    @pytest.fixture(autouse=True)
    def checked(self, memory_store: None, meters: Meters) -> None:
        """Twelve checks; neither a slot, a look at a limit nor a refund is one."""
        for _ in range(5):
            check("3/m", "user:secret", name="search", cache_refusals=9)
            asyncio.run(acheck("1/m", "user:1", name="trial", shadow=True))
        for _ in range(2):
            check_all([("9/m", "user:1"), (Rule.make("b", "1/m"), "user:1"), (Rule.make("b", "1/m"), "user:2")])
        with slot("export", 1):
            peek("1/m", "user:1")
        refund("1/m", "user:1")

    def test_counts_for_the_outcome_of_each_rule(self, meters: Meters) -> None:
        assert meters.checks == {
            ("search", "allowed"): 3, ("search", "refused"): 2, ("trial", "allowed"): 1, ("trial", "shadowed"): 4,
            ("9/m", "allowed"): 1, ("b", "allowed"): 2, ("b", "refused"): 2,
        }  # fmt: skip

    def test_has_its_time_taken_once(self, meters: Meters) -> None:
        assert meters.durations == {
            ("search", "allowed"): 3, ("search", "refused"): 2, ("trial", "allowed"): 5,
            ("b", "allowed"): 1, ("b", "refused"): 1,
        }  # fmt: skip

    def test_never_shows_its_subject(self, meters: Meters) -> None:
        data: Any = meters.reader.get_metrics_data()
        assert "secret" not in data.to_json()


def test_checks_that_asked_no_store_are_counted_by_rule(meters: Meters) -> None:
    rule = Rule.make("hot", "1000/m", prefetch=True)
    with freeze(START):
        decisions = [check(rule, "user:1") for _ in range(50)]
    saved = sum(decision.approximate for decision in decisions)
    assert saved
    assert meters.of_rules("quota.prefetched") == {"hot": saved}


def test_checks_of_several_rules_that_asked_no_store_are_counted_by_their_rules(meters: Meters) -> None:
    rules = [Rule.make(name, rate, prefetch=True) for name, rate in (("hot", "1000/m"), ("hotter", "2000/m"))]
    with freeze(START):
        decisions = [check_all([(rule, "user:1") for rule in rules]) for _ in range(50)]

    saved = sum(decision.approximate for decision in decisions)

    assert saved
    assert meters.of_rules("quota.prefetched") == {"hot": saved, "hotter": saved}


def test_a_shadow_that_would_refuse_beside_one_that_asked_no_store_is_not_among_them(meters: Meters) -> None:
    hot = Rule.make("hot", "1000/m", prefetch=True)
    shut = Rule.make("shut", "0/m", key="post:phone", shadow=True)  # by the body, so it is decided in a second step
    with freeze(START):
        decisions = [decide(RequestFactory().post("/", {"phone": "1"}), [hot, shut]) for _ in range(50)]

    assert any(decision.approximate for decision in decisions)
    assert list(meters.of_rules("quota.prefetched")) == ["hot"]


def test_each_instrument_has_its_unit_and_says_what_it_counts(meters: Meters) -> None:
    for _ in range(50):
        check("1000/m", "user:1", prefetch=True)

    described = {metric.name: (metric.unit, metric.description) for metric in meters.metrics()}

    assert described == {
        "quota.checks": ("{check}", "Checks by rule and outcome: each rule of a decision."),
        "quota.prefetched": (
            "{check}",
            "Allowed checks that asked no store, since a process had taken units ahead.",
        ),
        "quota.check.duration": ("s", "How long decisions took, each under the rule that binds."),
    }


def test_the_instruments_are_those_of_this_version_of_the_package(meters: Meters) -> None:
    check("9/m", "user:1")

    assert [(each.scope.name, each.scope.version) for each in meters.scopes()] == [("django_quota", __version__)]


def test_a_second_call_of_instrument_replaces_the_first(meters: Meters) -> None:
    second = Meters()

    instrument(second.provider)
    check("3/m", "user:1", name="search")

    assert (meters.checks, second.checks) == ({}, {("search", "allowed"): 1})


def test_the_bounds_of_the_histogram_suit_checks(meters: Meters) -> None:
    check("3/m", "user:1", name="search")

    assert meters.points("quota.check.duration", "explicit_bounds") == {("search", "allowed"): BUCKETS}


def test_a_check_that_takes_no_time_is_one_too(meters: Meters, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (limiter, metrics):
        monkeypatch.setattr(module, "perf_counter_ns", lambda: 1_000_000_000)

    check("3/m", "user:1", name="search")

    assert meters.points("quota.check.duration", "sum") == {("search", "allowed"): 0.0}


def test_the_bounds_of_the_histogram_rise_from_a_refusal_from_memory_to_four_timeouts() -> None:
    """No bucket is wider than the decades around it: 5 to 10, 10 to 25, 25 to 50."""
    steps = [above / below for below, above in pairwise(BUCKETS)]

    assert (BUCKETS[0], BUCKETS[-1]) == (0.000_05, 1.0)
    assert all(1.99 < step < 2.51 for step in steps)


def test_the_duration_is_recorded_in_seconds(meters: Meters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter, "perf_counter_ns", lambda: 1_000_000_000)
    monkeypatch.setattr(metrics, "perf_counter_ns", lambda: 3_500_000_000)

    check("3/m", "user:1", name="search")

    assert meters.points("quota.check.duration", "sum") == {("search", "allowed"): 2.5}


def test_what_a_view_answers_itself_is_refused_all_the_same(meters: Meters) -> None:
    check("0/m", "user:1", name="own answer", block=False)

    assert meters.durations == {("own answer", "refused"): 1}


def test_a_rule_with_a_very_long_name_is_prefetched_under_the_label_of_its_checks(meters: Meters) -> None:
    for _ in range(50):
        check("1000/m", "user:1", name="x" * 300, prefetch=True)

    assert set(meters.of_rules("quota.prefetched")) == {rule for rule, _ in meters.checks} != {"x" * 300}


@pytest.mark.parametrize("chosen", ["allow", "deny", "local"])
def test_what_the_store_did_not_decide_is_degraded(chosen: Any, meters: Meters) -> None:
    with no_answer():
        assert check("5/m", "user:1", name="search", on_unavailable=chosen).degraded

    assert meters.checks == meters.durations == {("search", "degraded"): 1}


def test_rules_past_the_cap_are_one(meters: Meters) -> None:
    labels = FIELDS // 3
    for number in (*range(labels + 5), 0):
        check("9/m", "user:1", name=f"rule-{number}")
    found = meters.checks
    assert len(found) == labels + 1
    assert (found["rule-0", "allowed"], found["other", "allowed"]) == (2, 5)


def test_a_refusal_is_an_event_of_the_current_span(meters: Meters) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer(__name__)
    with tracer.start_as_current_span("a request"):
        check("1/m", "user:secret", name="search")
        wait = check("1/m", "user:secret", name="search").retry_after
        with pytest.raises(QuotaExceeded), slot("export", 1), slot("export", 1):
            pass
        check("0/m", "user:1", shadow=True)
        check("0/m", "user:1", name="own answer", block=False)

    events: list[Any] = [(span.name, event) for span in exporter.get_finished_spans() for event in span.events]
    provider.shutdown()
    assert {event.name for _, event in events} == {"quota.refused"}
    found = [(name, dict(event.attributes)) for name, event in events]
    waits = [attributes.pop("quota.retry_after", None) for _, attributes in found]
    assert (waits[0], waits[1] > 0, waits[2]) == (wait, True, None)
    assert found == [("a request", {"quota.rule": rule}) for rule in ("search", "export", "own answer")]


@pytest.fixture
def no_provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process in which no meter provider is set yet."""
    monkeypatch.setattr(metrics_api, "_METER_PROVIDER", None)
    monkeypatch.setattr(metrics_api, "_METER_PROVIDER_SET_ONCE", type(metrics_api._METER_PROVIDER_SET_ONCE)())
    monkeypatch.setattr(metrics_api, "_PROXY_METER_PROVIDER", metrics_api._ProxyMeterProvider())
    yield
    uninstrument()


def test_a_meter_provider_that_fails_does_not_stop_the_site(settings: Any, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(f"{APP}.get_meter", lambda *_: 1 / 0)
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, APP]
    assert check("5/m", "user:1")
    (record,) = [each for each in caplog.records if each.name == "django_quota.metrics"]
    assert (record.levelname, record.exc_info[0]) == ("ERROR", ZeroDivisionError)
    assert record.getMessage() == "The decisions are not recorded for OpenTelemetry: its meter provider failed"


@pytest.mark.usefixtures("no_provider")
class TestTheApp:
    @pytest.fixture
    def later(self, no_provider: None, settings: Any) -> Iterator[Meters]:
        """The app is installed, one check is made, and then a provider is set."""
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, APP]
        check("9/m", "user:1", name="search")
        later = Meters()
        set_meter_provider(later.provider)
        yield later
        later.provider.shutdown()

    def test_has_a_name_and_a_label_of_its_own(self, settings: Any) -> None:
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, APP]

        found = apps.get_app_config("quota_opentelemetry")

        assert (found.name, found.verbose_name) == (APP, "django_quota for OpenTelemetry")

    def test_counts_for_a_provider_that_is_set_later(self, later: Meters) -> None:
        check("9/m", "user:1", name="search")

        assert later.checks == later.durations == {("search", "allowed"): 1}

    def test_counts_nothing_twice_if_it_is_turned_on_again(self, later: Meters) -> None:
        instrument()
        check("9/m", "user:1", name="search")

        assert later.checks["search", "allowed"] == 1

    def test_leaves_nothing_when_it_is_turned_off(self, settings: Any) -> None:
        before = list(metrics.receivers)
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, APP]

        uninstrument()

        assert metrics.receivers == before


def test_an_observer_that_asks_for_the_duration_is_told() -> None:
    heard = list[Any]()

    def timed(decision: Any, seconds: float | None) -> None:
        heard.append((counted(decision), seconds))

    observe(timed, duration=True)
    check_all([(Rule.make("a", "1/m"), "user:1"), (Rule.make("s", "0/m", shadow=True), "user:2")])
    with slot("export", 1):
        pass
    assert unobserve(timed)
    (asked, seconds), (_, of_slot) = heard
    assert asked == [("a", "user:1", "allowed"), ("s", "user:2", "shadowed")]
    assert (seconds > 0, of_slot) == (True, None)


def test_an_observer_gets_the_duration_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = list[float]()

    def timed(_: Any, seconds: float) -> None:
        heard.append(seconds)

    monkeypatch.setattr(limiter, "perf_counter_ns", lambda: 1_000_000_000)
    monkeypatch.setattr(metrics, "perf_counter_ns", lambda: 3_500_000_000)
    observe(timed, duration=True)
    check("1/m", "user:1")
    unobserve(timed)

    assert heard == [2.5]


def test_the_duration_leaves_out_the_time_in_which_a_client_sends_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, seconds = list[float](), iter([1, 2, 7])  # the decision begins at 1; the body is read from 2 to 7

    def timed(_: Any, seconds: float) -> None:
        heard.append(seconds)

    monkeypatch.setattr(limiter, "perf_counter_ns", lambda: next(seconds) * 1_000_000_000)
    monkeypatch.setattr(metrics, "perf_counter_ns", lambda: 8_000_000_000)
    observe(timed, duration=True)
    request = RequestFactory().post("/", {"phone": "1"})
    decide(request, [Rule.make("site", "9/m", key="ip"), Rule.make("codes", "9/m", key="post:phone")])
    unobserve(timed)

    assert heard == [2.0]


@pytest.mark.usefixtures("no_provider")
def test_the_page_works_as_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    names, written = marked("docs/monitoring.md", "provider"), StringIO()
    instrument()
    check("9/m", "user:1", name="shop")
    monkeypatch.setattr(names["exporter"], "out", written)
    provider: Any = get_meter_provider()
    provider.shutdown()
    assert '"quota.rule": "shop"' in written.getvalue()
    (view,) = re.findall(r"`(View\(.*\))`", read("docs/monitoring.md"))
    dropping = Meters(eval(view, {"View": View, "DropAggregation": DropAggregation}))
    instrument(dropping.provider)
    check("9/m", "user:1", name="shop")
    assert (dropping.checks, dropping.durations) == ({}, {("shop", "allowed"): 1})
    dropping.provider.shutdown()
