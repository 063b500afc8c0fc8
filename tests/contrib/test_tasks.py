"""`contrib.tasks`: tasks are enqueued at the pace of a limit: those of Django 6.0, and a stand-in everywhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_quota import Rule
from django_quota.contrib.tasks import TaskQuota
from django_quota.exceptions import ConfigurationError, QuotaExceeded, RuleError
from django_quota.signals import near_limit
from django_quota.testing import clear, freeze
from tests.support.pages import marked

tasks: Any = import_module("django.tasks") if find_spec("django.tasks") else None
"""None before Django 6.0."""
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


@dataclass(frozen=True)
class StandIn:
    """What `TaskQuota` uses of a task of Django, with the results of its backend."""

    results: list[Any] = field(default_factory=list)
    awaited: list[Any] = field(default_factory=list)
    run_after: datetime | None = None
    priority: int = 0
    backend: str = "default"
    name: str = "export"

    def get_backend(self) -> Any:
        return SimpleNamespace(supports_defer=self.backend == "default", results=self.results)

    def using(self, **options: Any) -> StandIn:
        return replace(self, **options)

    def enqueue(self, *args: Any, **kwargs: Any) -> Any:
        self.results.append(SimpleNamespace(task=self, args=list(args), kwargs=kwargs))
        return self.results[-1]

    async def aenqueue(self, *args: Any, **kwargs: Any) -> Any:
        self.awaited.append(args)
        return self.enqueue(*args, **kwargs)


as_task: Any = tasks.task if tasks else lambda function: function


@as_task
def export_report(org: int, file_format: str = "csv") -> None:
    """Each backend imports it by its path."""


@pytest.fixture(params=["stand-in", *(["django"] if tasks else [])])
def export(request: pytest.FixtureRequest) -> Any:
    return StandIn() if request.param == "stand-in" else export_report


@pytest.fixture(autouse=True)
def at_noon(memory_store: None, settings: Any) -> Iterator[None]:
    settings.TASKS = {
        "default": {"BACKEND": "django.tasks.backends.dummy.DummyBackend"},
        "immediate": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"},
    }
    clear()
    with freeze(NOON):
        yield


def waits(*results: Any) -> list[float]:
    return [((result.task.run_after or NOON) - NOON).total_seconds() for result in results]


THIRTY_DAYS = 30 * 86_400


def monday(subject: str) -> date:
    return date(2026, 11, 16)


BY_ORG: Any = {"key": lambda task, args, kwargs: f"org:{args[0]}", "cost": lambda task, args, kwargs: args[0]}


@pytest.mark.parametrize(
    ("limit", "orgs", "expected"),
    [
        (TaskQuota("10/m", **BY_ORG), [1, 2, 1, 2], [0.0, 0.0, 6.0, 12.0]),
        (TaskQuota(Rule.make("exports", "10/m", "1440/d")), [7, 7, 7], [0.0, 60.0, 120.0]),
        (TaskQuota("exports", key="org:7"), [7, 7, 7], [0.0, 6.0, 12.0]),
        (TaskQuota(Rule.make("watched", "10/m", shadow=True)), [7, 7], [0.0, 0.0]),
        (TaskQuota(Rule.make("watched", "1/7d", shadow=True)), [7] * 6, [0.0] * 6),  # only four have a place
        (TaskQuota(Rule.make("reported", "1/7d", block=False)), [7] * 6, [0.0] * 6),
        # The options of another algorithm are left out.
        (TaskQuota(Rule.make("slices", "10/m", precision=5, count_refused=True)), [7, 7], [0.0, 6.0]),
        (TaskQuota(Rule.make("day", "1440/d", algorithm="calendar", tz="Asia/Tokyo")), [7, 7], [0.0, 60.0]),
        (TaskQuota(Rule.make("bucket", "10/m", algorithm="token_bucket", burst=1)), [7, 7, 7], [0.0, 6.0, 12.0]),
        (TaskQuota(Rule.make("billing", "10080/w", algorithm="calendar", starts=monday)), [7, 7], [0.0, 60.0]),
        (TaskQuota("10/m", cost=2), [7, 7], [0.0, 12.0]),
        (TaskQuota("4/s"), [7, 7, 7], [0.0, 0.25, 0.5]),
        (TaskQuota("1000000/s"), [7], [0.0]),  # in thirty days as many as no limit may have
    ],
)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_tasks_run_one_after_the_other(
    export: Any, kind: str, limit: TaskQuota, orgs: list[int], expected: list[float], settings: Any
) -> None:
    rules = {"exports": {"rate": "10/m", "ban": {"after": "1/m", "for": "1h"}}}  # to wait is no refusal
    settings.QUOTA = {"STORE": "memory", "RULES": rules}
    enqueue = limit.enqueue if kind == "sync" else async_to_sync(limit.aenqueue)
    assert waits(*(enqueue(export, org) for org in orgs)) == expected


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_arguments_of_the_task_stay(export: Any, kind: str) -> None:
    limit = TaskQuota("10/m")
    enqueue = limit.enqueue if kind == "sync" else async_to_sync(limit.aenqueue)
    enqueue(export, 1)

    result = enqueue(export, 7, file_format="pdf")  # it waits for its place

    assert (result.args, result.kwargs) == ([7], {"file_format": "pdf"})


def test_the_keyword_arguments_of_the_task_tell_its_key_and_its_cost(export: Any) -> None:
    limit = TaskQuota(
        "10/m",
        key=lambda task, args, kwargs: f"format:{kwargs['file_format']}",
        cost=lambda task, args, kwargs: {"pdf": 2, "csv": 1}[kwargs["file_format"]],
    )

    found = [limit.enqueue(export, 7, file_format=name) for name in ("pdf", "csv", "pdf")]

    assert waits(*found) == [0.0, 0.0, 12.0]


def test_a_task_that_need_not_wait_has_no_moment(export: Any) -> None:
    assert TaskQuota("10/m").enqueue(export, 7).task.run_after is None


def test_the_options_of_the_task_stay(export: Any) -> None:
    limit = TaskQuota("10/m")
    limit.enqueue(export, 1)

    assert limit.enqueue(export.using(priority=5), 7).task.priority == 5


def test_a_later_moment_of_the_task_stays(export: Any) -> None:
    limit = TaskQuota("10/m")
    for number in range(2):
        limit.enqueue(export, number)
    later = export.using(run_after=NOON + timedelta(hours=1))
    soon = export.using(run_after=NOON + timedelta(seconds=1))  # it waits for its place

    assert waits(*(limit.enqueue(task, 7) for task in (later, soon))) == [3600.0, 18.0]


def test_without_room_or_a_backend_that_can_defer_nothing_is_enqueued(export: Any) -> None:
    limit = TaskQuota(Rule.make("exports", "10/m", algorithm="leaky_bucket", burst=2))
    at_once = export.using(backend="immediate")
    with pytest.raises(ConfigurationError) as raised:
        limit.enqueue(at_once, 7)
    assert str(raised.value) == (
        f"The backend 'immediate' of task {at_once.name!r} cannot defer tasks (supports_defer is False). "
        "Use a backend in TASKS that can."
    )
    assert waits(*(limit.enqueue(export, 7) for _ in range(2))) == [0.0, 6.0]
    for refusing in (limit, TaskQuota("0/m")):
        with pytest.raises(QuotaExceeded):
            refusing.enqueue(export, 7)
    assert len(export.get_backend().results) == 2


@pytest.mark.parametrize(
    ("rate", "number"),
    [
        pytest.param("1/7d", 4, id="four weeks"),
        pytest.param("2/15d", 4, id="thirty days"),
        pytest.param("1/31d", 1, id="a rate with a longer window"),
        pytest.param(Rule.make("exports", "1/s", "1/7d"), 4, id="the slower of two rates"),
    ],
)
def test_a_task_gets_a_place_at_most_thirty_days_ahead(export: Any, rate: Any, number: int) -> None:
    limit = TaskQuota(rate)
    for _ in range(number):
        limit.enqueue(export, 7)

    with pytest.raises(QuotaExceeded):
        limit.enqueue(export, 7)


@pytest.mark.parametrize(
    "option",
    [
        pytest.param({"count_refused": True}, id="count_refused"),
        pytest.param({"ban": {"after": "1/m", "for": "30d"}}, id="ban"),
    ],
)
def test_a_refused_task_takes_nothing_of_the_next_place(export: Any, option: dict[str, Any]) -> None:
    limit = TaskQuota(Rule.make("exports", "1/7d", **option))
    for _ in range(4):
        limit.enqueue(export, 7)
    for _ in range(3):
        with pytest.raises(QuotaExceeded):
            limit.enqueue(export, 7)

    with freeze(NOON + timedelta(days=7)):
        limit.enqueue(export, 7)

    assert len(export.get_backend().results) == 5


def test_a_refused_task_leaves_the_last_place_to_one_that_costs_less(export: Any) -> None:
    limit = TaskQuota(Rule.make("exports", "1/7d", count_refused=True), cost=lambda task, args, kwargs: args[0])
    limit.enqueue(export, 3)
    with pytest.raises(QuotaExceeded):
        limit.enqueue(export, 2)

    limit.enqueue(export, 1)

    assert len(export.get_backend().results) == 2


def test_the_async_form_awaits_the_backend() -> None:
    export = StandIn()

    async_to_sync(TaskQuota("10/m").aenqueue)(export, 7)

    assert export.awaited == [(7,)]


def test_a_task_may_cost_thirty_days_of_a_rate(export: Any) -> None:
    TaskQuota("1/s", cost=THIRTY_DAYS).enqueue(export, 7)

    assert len(export.get_backend().results) == 1


def test_a_task_that_costs_more_than_thirty_days_of_a_rate_is_refused(export: Any) -> None:
    with pytest.raises(QuotaExceeded):
        TaskQuota("1/s", cost=THIRTY_DAYS + 1).enqueue(export, 7)

    assert export.get_backend().results == []


def test_no_warning_comes_before_the_queue_is_full(export: Any) -> None:
    heard: list[object] = []

    def hear(**carried: object) -> None:
        heard.append(carried)

    limit = TaskQuota(Rule.make("exports", "1/7d", warn_at=0.1))
    near_limit.connect(hear)

    for _ in range(4):
        limit.enqueue(export, 7)

    near_limit.disconnect(hear)
    assert heard == []


class TestWhileRedisDoesNotAnswer:
    @pytest.fixture(autouse=True)
    def no_server(self, export: Any, settings: Any) -> None:
        settings.QUOTA = {}  # the settings of the tests lead to no server

    def test_tasks_are_enqueued_at_once(self, export: Any) -> None:
        limit = TaskQuota("1/m")

        assert waits(*(limit.enqueue(export, 7) for _ in range(2))) == [0.0, 0.0]

    def test_a_rule_may_deny_tasks(self, export: Any) -> None:
        with pytest.raises(QuotaExceeded):
            TaskQuota(Rule.make("exports", "1/m", on_unavailable="deny")).enqueue(export, 7)

    @pytest.mark.parametrize(
        "rule",
        [
            pytest.param(Rule.make("devices", "3/d", distinct=True), id="counts different values"),
            pytest.param(Rule.make("devices", lambda request: "3/d"), id="a function says the rate"),
        ],
    )
    def test_a_rule_that_needs_a_request_is_an_error(self, export: Any, rule: Rule) -> None:
        with pytest.raises(RuleError) as raised:
            TaskQuota(rule).enqueue(export, 7)

        assert str(raised.value) == "Rule 'devices' needs a request, so no task can use it. Use a rule with a rate."


@pytest.mark.skipif(tasks is None, reason="Django 6.0 brought django.tasks")
def test_the_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = ModuleType("shop")  # Django 6.1 imports a task from its module when it copies the task
    monkeypatch.setitem(sys.modules, "shop", shop)
    names = marked("docs/tasks.md", "tasks", __name__="shop")
    vars(shop).update(names)
    assert waits(*(names["start_export"](7) for _ in range(2))) == [0.0, 0.6]
