"""Metrics for Prometheus: running totals of all processes, read when they are asked for."""

import errno
import json
import re
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission, User
from django.core.exceptions import PermissionDenied
from django.core.management import CommandError, call_command
from django.test import Client, RequestFactory
from django.urls import path
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from django_quota import Rule, check, slot
from django_quota.conf import current
from django_quota.contrib.opentelemetry import instrument, uninstrument
from django_quota.contrib.prometheus import collector
from django_quota.contrib.prometheus.collector import QuotaCollector
from django_quota.contrib.prometheus.management.commands import quota_metrics
from django_quota.contrib.prometheus.views import metrics, registry
from django_quota.core.keys import system_key
from django_quota.engine.system_operations import FIELDS, AddMetrics, MetricsKeys
from django_quota.exceptions import StoreUnavailable
from django_quota.limiting.registry import get_limiter
from django_quota.operating.activity import RuleActivity, RunningTotals
from django_quota.testing import RedisServer, freeze
from tests.admin.operators import have_permissions
from tests.support.commands import ROOT, Reader, managing
from tests.support.pages import blocks, marked
from tests.support.ports import free_port
from tests.support.steps import SECOND, START
from tests.support.stores import caches, current_store

TOKEN = "a-token-of-32-letters-and-digits"

urlpatterns = [path("metrics/", metrics)]


@pytest.fixture(autouse=True)
def these_urls(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.QUOTA = {**settings.QUOTA, "METRICS_TOKEN": TOKEN}
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "django_quota.contrib.prometheus"]


def samples(text: str | None = None) -> dict[tuple[str, ...], float]:
    """Return each value by the name of its metric and its labels."""
    families = QuotaCollector().collect() if text is None else text_string_to_metric_families(text)
    found = [sample for family in families for sample in family.samples if not sample.name.endswith("_created")]
    labels = ("rule", "slot", "outcome")
    return {(each.name, *(each.labels[name] for name in labels if name in each.labels)): each.value for each in found}


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"Authorization": f"Bearer {TOKEN}"}, 200, id="with the token"),
        pytest.param({}, 403, id="without it"),
    ],
)
def test_metrics_answer_on_a_site_where_each_page_needs_a_login(
    headers: dict[str, str], status: int, client: Client, settings: Any
) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]

    assert client.get("/metrics/", headers=headers).status_code == status


@pytest.mark.usefixtures("either_store")
class TestCollector:
    def test_it_sums_up_all_days(self) -> None:
        for day in range(3):
            with freeze(START + day * 86_400 * SECOND):
                for _ in range(2):
                    check("1/m", "user:secret", name="search")
                    check("1/m", "user:1", name="trial", shadow=True)
                found = samples()

        checks = {names[1:]: value for names, value in found.items() if names[0] == "quota_checks_total"}
        assert checks == {
            ("search", "allowed"): 3, ("search", "refused"): 3, ("search", "shadowed"): 0,
            ("trial", "allowed"): 3, ("trial", "refused"): 0, ("trial", "shadowed"): 3,
        }  # fmt: skip

    def test_it_sums_up_each_slot_over_all_subjects(self) -> None:
        for number in range(3):
            slot("export", 2, subject=f"secret:{number}").acquire()
        slot("import", 5, subject="secret:1").acquire()

        found = {names[:2]: value for names, value in samples().items() if names[0].startswith("quota_leases")}

        assert found == {
            ("quota_leases_in_use", "export"): 3, ("quota_leases_limit", "export"): 6,
            ("quota_leases_in_use", "import"): 1, ("quota_leases_limit", "import"): 5,
        }  # fmt: skip

    def test_it_has_the_outages_of_the_store(self) -> None:
        get_limiter().outages.failed(StoreUnavailable("test"), [])
        check("1/m", "user:1")

        assert samples()["quota_outages_total",] == 1

    def test_it_has_nothing_else(self) -> None:
        check("1/m", "user:secret", name="search")
        slot("export", 2, subject="secret:1").acquire()

        assert {names for names in samples() if names[0] != "quota_checks_total"} == {
            *[("quota_store_up",), ("quota_outages_total",), ("quota_bans",)],
            *[("quota_leases_in_use", "export"), ("quota_leases_limit", "export")],
        }

    @pytest.mark.parametrize(
        ("metric", "labels"),
        [
            ("quota_checks_total", {"rule": "hot", "outcome": "allowed"}),
            ("quota_prefetched_total", {"rule": "hot"}),
            ("quota_leases_in_use", {"slot": "export"}),
            ("quota_leases_limit", {"slot": "export"}),
        ],
        ids=str,
    )
    def test_its_labels_name_the_rule_or_the_slot(self, metric: str, labels: dict[str, str]) -> None:
        rule = Rule.make("hot", "1000/m", prefetch=True)
        with freeze(START):
            for _ in range(50):
                check(rule, "user:1")
            slot("export", 2, subject="user:1").acquire()
            found = [sample for family in QuotaCollector().collect() for sample in family.samples]

        assert labels in [sample.labels for sample in found if sample.name == metric]

    def test_each_metric_has_its_type_and_says_what_it_is(self) -> None:
        described = {each.name: (each.type, each.documentation) for each in QuotaCollector().collect()}

        assert described == {
            "quota_store_up": ("gauge", "1 if the store answers, 0 if not."),
            "quota_checks": ("counter", "Checks by rule and outcome."),
            "quota_prefetched": (
                "counter",
                "Allowed checks that asked no store, since a process had taken units ahead.",
            ),
            "quota_outages": ("counter", "Outages of the store, each as often as workers saw it."),
            "quota_bans": ("gauge", "Bans that are in force."),
            "quota_leases_in_use": ("gauge", "Slots in use, of the slots used recently."),
            "quota_leases_limit": ("gauge", "Slots available, of the slots used recently."),
        }

    def test_it_has_no_bans_before_the_first(self) -> None:
        assert samples()["quota_bans",] == 0

    def test_the_store_is_up(self) -> None:
        assert samples()["quota_store_up",] == 1

    def test_it_has_the_checks_that_asked_no_store(self) -> None:
        rule = Rule.make("hot", "1000/m", prefetch=True)
        with freeze(START):
            decisions = [check(rule, "user:1") for _ in range(50)]
            found = samples()
        saved = sum(decision.approximate for decision in decisions)
        assert saved
        assert found["quota_checks_total", "hot", "allowed"] == 50
        assert found["quota_prefetched_total", "hot"] == saved

    def test_it_sums_up_the_rules_of_one_label(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rules = [RuleActivity("other", 3, 2, 1, 1, []), RuleActivity("other", 40, 50, 60, 20, [])]
        totals = RunningTotals(rules, 0, 0, [])
        monkeypatch.setattr("django_quota.contrib.prometheus.collector.running_totals", lambda: totals)

        found = samples()

        checks = {names[2]: value for names, value in found.items() if names[0] == "quota_checks_total"}
        assert checks == {"allowed": 43, "refused": 52, "shadowed": 61}
        assert found["quota_prefetched_total", "other"] == 21

    @pytest.fixture
    def totals(self) -> list[dict[tuple[str, ...], float]]:
        """The metrics while rules are counted: as many as the store counts by name, then further ones."""
        store = current_store()
        keys = MetricsKeys("{!}d", "{!}m", "{!}r", "{!}s", system_key("quota", "totals"), "{!}n")
        rules = {f"rule-{number}:a": 1 for number in range(FIELDS)}
        totals = [samples()]
        for number, counts in enumerate(({**rules, "other:a": 1}, {"late:a": 5}, {"late:a": 5000}), 1):
            store.run(AddMetrics(keys, number, counts, {}, {}))
            totals.append(samples())
        return totals

    def test_rules_past_the_cap_are_counted_together(self, totals: list[dict[tuple[str, ...], float]]) -> None:
        assert totals[-1]["quota_checks_total", "other", "allowed"] == 5006
        assert sum(value for names, value in totals[-1].items() if names[0] == "quota_checks_total") == FIELDS + 5006

    def test_no_total_ever_falls(self, totals: list[dict[tuple[str, ...], float]]) -> None:
        """A counter that falls looks like a restart to Prometheus."""
        fell = [names for before, after in pairwise(totals) for names in before if after[names] < before[names]]

        assert fell == []


@pytest.fixture
def a_ban(redis_cache: RedisServer) -> None:
    rule = Rule.make("login", "1/m", ban={"after": "1/m", "for": ["1h"]})
    for _ in range(3):
        check(rule, "user:1")


@pytest.mark.usefixtures("a_ban")
def test_it_counts_bans() -> None:
    assert samples()["quota_bans",] == 1


@pytest.mark.usefixtures("a_ban")
def test_the_command_prints_the_metrics() -> None:
    text = StringIO()

    call_command("quota_metrics", stdout=text)

    printed = samples(text.getvalue())
    assert (printed["quota_bans",], printed["quota_checks_total", "login", "allowed"]) == (1, 1)
    assert printed == samples()


@pytest.mark.usefixtures("a_ban")
def test_what_the_command_prints_ends_with_one_newline() -> None:
    text = StringIO()

    call_command("quota_metrics", stdout=text)

    assert text.getvalue().endswith("\n")
    assert not text.getvalue().endswith("\n\n")


@pytest.mark.parametrize("given", ["9105", "127.0.0.1:65536", "127.0.0.1:0", "127.0.0.1:http", "127.0.0.1:"])
def test_a_wrong_address_for_the_command_is_a_clear_error(given: str) -> None:
    with pytest.raises(CommandError) as raised:
        call_command("quota_metrics", serve=given)

    assert str(raised.value) == (f"{given!r} is not an address with a port. Use, for example, --serve 127.0.0.1:9105.")


class TestTheServer:
    """What `quota_metrics --serve` starts, and that it is asked to stop at once."""

    @pytest.fixture
    def started(self, monkeypatch: pytest.MonkeyPatch) -> Mock:
        """Stands for the function that starts it; `started.server` and `started.thread` are what that returns."""

        @contextmanager
        def stopping_at_once() -> Iterator[threading.Event]:
            (stop := threading.Event()).set()
            yield stop

        parts = Mock()
        started = Mock(return_value=(parts.server, parts.thread), parts=parts)
        monkeypatch.setattr(quota_metrics, "start_http_server", started)
        monkeypatch.setattr(quota_metrics, "stopping", stopping_at_once)
        return started

    @pytest.mark.parametrize(
        ("words", "address"),
        [
            pytest.param(["--serve"], (9105, "127.0.0.1"), id="by default"),
            pytest.param(["--serve", "192.0.2.1:1"], (1, "192.0.2.1"), id="the lowest port"),
            pytest.param(["--serve", "192.0.2.1:65535"], (65_535, "192.0.2.1"), id="the highest port"),
            pytest.param(["--serve", "[::1]:9105"], (9105, "::1"), id="an IPv6 address in brackets"),
        ],
    )
    def test_listens_at_the_address(self, words: list[str], address: tuple[int, str], started: Mock) -> None:
        call_command("quota_metrics", *words, stdout=StringIO())

        started.assert_called_once_with(*address, registry)

    def test_is_announced_with_its_address(self, started: Mock) -> None:
        call_command("quota_metrics", serve="[::1]:9105", stdout=(said := StringIO()))

        assert said.getvalue() == "Serving the metrics at http://[::1]:9105/metrics. Stop with Ctrl-C.\n"

    def test_is_announced_at_once(self, started: Mock) -> None:
        call_command("quota_metrics", serve="[::1]:9105", stdout=(out := Reader()))

        assert out.read_so_far.startswith("Serving the metrics at ")

    def test_ends_with_its_thread(self, started: Mock) -> None:
        call_command("quota_metrics", serve="[::1]:9105", stdout=StringIO())

        assert started.parts.mock_calls == [call.server.shutdown(), call.server.server_close(), call.thread.join()]

    @pytest.mark.parametrize(
        ("error", "says"),
        [
            pytest.param(OSError(errno.EADDRINUSE, "Address already in use"), "Address already in use", id="a number"),
            pytest.param(OSError("no such host"), "no such host", id="words alone"),
        ],
    )
    def test_that_cannot_listen_says_why(self, error: OSError, says: str, started: Mock) -> None:
        started.side_effect = error

        with pytest.raises(CommandError) as raised:
            call_command("quota_metrics", serve="[::1]:9105")

        assert str(raised.value) == f"Cannot listen on [::1]:9105: {says}."


def test_the_command_does_not_look_into_the_memory_of_another_process(settings: Any) -> None:
    settings.QUOTA = {"STORE": "memory"}

    with pytest.raises(CommandError, match="other processes cannot see"):
        call_command("quota_metrics")


def test_the_app_has_a_name_and_a_label_of_its_own() -> None:
    found = apps.get_app_config("quota_prometheus")

    assert (found.name, found.verbose_name) == ("django_quota.contrib.prometheus", "django_quota for Prometheus")


def test_an_address_that_is_taken_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        with pytest.raises(CommandError, match=f"Cannot listen on {address}: Address already in use."):
            call_command("quota_metrics", serve=address)


def test_without_redis_the_log_says_that_metrics_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    samples()

    assert ("django_quota.metrics", "WARNING", "The store did not answer, so its metrics are left out") in [
        (record.name, record.levelname, record.getMessage().partition(": The quota store is unavailable: ")[0])
        for record in caplog.records
    ]


def test_a_collector_is_registered_without_a_look_at_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "running_totals", asked := Mock())

    CollectorRegistry(auto_describe=True).register(QuotaCollector())

    asked.assert_not_called()


def test_without_redis_all_but_the_state_of_the_store_is_left_out() -> None:
    assert samples() == {("quota_store_up",): 0}


def test_without_redis_the_command_prints_the_state_of_the_store() -> None:
    call_command("quota_metrics", stdout=(text := StringIO()))

    assert samples(text.getvalue()) == {("quota_store_up",): 0}


def test_without_redis_the_view_answers_with_the_state_of_the_store(client: Client) -> None:
    reply = client.get("/metrics/", headers={"Authorization": f"Bearer {TOKEN}"})

    assert (reply.status_code, samples(reply.content.decode())) == (200, {("quota_store_up",): 0})


# --- the view ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("memory_store", "database")
class TestView:
    def test_the_token_opens_it(self, client: Client) -> None:
        check("9/m", "user:1", name="search")
        reply = client.get("/metrics/", headers={"Authorization": f"Bearer {TOKEN}"})
        assert reply.status_code == 200
        assert reply["Content-Type"].startswith("text/plain; version=")
        assert "no-store" in reply["Cache-Control"]
        assert samples(reply.content.decode())["quota_checks_total", "search", "allowed"] == 1

    @pytest.mark.parametrize("token", [pytest.param(TOKEN, id="a token"), pytest.param(None, id="no token")])
    @pytest.mark.parametrize(
        "given", ["", "Bearer ", "Bearer wrong", TOKEN, f"Basic {TOKEN}", "Bearer é", "Bearer None"]
    )
    def test_nothing_else_does(self, client: Client, token: str | None, given: str, settings: Any) -> None:
        settings.QUOTA = {"STORE": "memory", **({} if token is None else {"METRICS_TOKEN": token})}

        assert client.get("/metrics/", headers={"Authorization": given}).status_code == 403

    def test_a_user_without_the_permission_is_refused(self, client: Client) -> None:
        client.force_login(User.objects.create_user("ann"))

        assert client.get("/metrics/").status_code == 403

    @pytest.mark.parametrize(
        ("permission", "status"),
        [
            pytest.param("view_overview", 200, id="of the overview"),
            pytest.param("view_dailycounter", 403, id="of another page"),
        ],
    )
    def test_a_user_with_the_permission_is_answered(self, permission: str, status: int, client: Client) -> None:
        have_permissions()
        ann = User.objects.create_user("ann")
        ann.user_permissions.add(Permission.objects.get(codename=permission))
        client.force_login(ann)

        assert client.get("/metrics/").status_code == status

    def test_a_request_of_a_site_without_users_is_refused(self, rf: RequestFactory) -> None:
        with pytest.raises(PermissionDenied):
            metrics(rf.get("/metrics/"))

    @pytest.mark.parametrize(
        ("accept", "content_type"),
        [
            pytest.param({}, "text/plain; version=", id="by default"),
            pytest.param(
                {"Accept": "application/openmetrics-text"}, "application/openmetrics-text; ", id="OpenMetrics"
            ),
        ],
    )
    def test_the_format_is_what_the_client_accepts(
        self, accept: dict[str, str], content_type: str, client: Client
    ) -> None:
        reply = client.get("/metrics/", headers={"Authorization": f"Bearer {TOKEN}", **accept})

        assert reply["Content-Type"].startswith(content_type)

    def test_a_user_who_is_not_active_is_refused(self, rf: RequestFactory) -> None:
        request = rf.get("/metrics/")
        request.user = Mock(is_active=False)  # a backend of the site may grant permissions to those, too

        with pytest.raises(PermissionDenied):
            metrics(request)


@pytest.mark.thorough("processes")
def test_the_command_serves_them_until_it_is_stopped(tmp_path: Path, redis_server: RedisServer, raw: Any) -> None:
    address = f"127.0.0.1:{free_port()}"
    with managing(tmp_path, caches(redis_server)) as manage:
        with (tmp_path / "settings_of_a_process.py").open("a") as chosen:
            chosen.write("INSTALLED_APPS.append('django_quota.contrib.prometheus')")
        process = manage.start("quota_metrics", "--serve", address)
        assert process.stdout is not None
        assert address in process.stdout.readline()
        with urllib.request.urlopen(f"http://{address}/metrics") as reply:
            assert samples(reply.read().decode())["quota_store_up",] == 1
        manage.stop(process, signal.SIGINT)


# --- the page, the dashboard and the alerts ---------------------------------------------------------------------------

DASHBOARD: dict[str, Any] = json.loads((ROOT / "docs/grafana/django_quota.json").read_text())
ALERTS = [text for language, text in blocks("docs/monitoring.md") if language == "yaml" and "alert:" in text]


def test_the_url_that_the_page_shows_is_of_the_metrics() -> None:
    names = marked("docs/monitoring.md", "prometheus")

    assert [str(each.pattern) for each in names["urlpatterns"]] == ["metrics/"]


def test_the_settings_that_the_page_shows_have_a_token(settings: Any) -> None:
    settings.QUOTA = marked("docs/monitoring.md", "prometheus")["QUOTA"]

    assert current().metrics_token


@pytest.mark.parametrize("name", ["checks_total", "outages_total", "bans", "leases_in_use", "leases_limit", "store_up"])
def test_the_page_names_every_metric(name: str) -> None:
    assert f"`quota_{name}`" in (ROOT / "docs/monitoring.md").read_text()


def expressions() -> list[str]:
    """Every query of the dashboard, of its variables, and of the alerts."""
    variables = [each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [*queries, *variables, *re.findall(r"expr: (.*)", "".join(ALERTS))]


@pytest.fixture
def known_names() -> set[str]:
    """The names of all metrics of both exporters, and of their labels."""
    reader = InMemoryMetricReader()
    instrument(MeterProvider([reader]))
    check("0/m", "user:1", name="search")
    uninstrument()
    slot("export", 2).acquire()
    known = {
        name for each in QuotaCollector().collect() for sample in each.samples for name in (sample.name, *sample.labels)
    }
    data: Any = reader.get_metrics_data()
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        if metric.unit == "s":  # a histogram; a collector for Prometheus names it so
            names = f"{metric.name}_seconds_bucket", *metric.data.data_points[0].attributes
            known |= {name.replace(".", "_") for name in names}
    return known


@pytest.mark.usefixtures("redis_cache", "database")
def test_each_query_names_metrics_that_exist(known_names: set[str]) -> None:
    unknown = {}
    for query in expressions():
        named = re.sub(r'"[^"]*"|\$\w+', "", query)
        used = re.findall(r"\bquota_\w+|\w+(?=[=!]~?[,}])|(?<=by \()\w+|\w+(?=\)$)", named)
        unknown[query] = set(used) - known_names - {"job", "le"}

    assert {query: names for query, names in unknown.items() if names} == {}


def test_the_dashboard_works_with_any_data_source() -> None:
    sources = {target["datasource"]["uid"] for panel in DASHBOARD["panels"] for target in panel["targets"]}

    assert sources == {"${datasource}"}
