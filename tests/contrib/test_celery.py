"""`contrib.celery`: a limit over all workers, on Celery's in-memory broker and with a clock that the tests set."""

import json
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any, cast

import pytest
from celery import Task
from celery.exceptions import Reject
from django.core.checks import run_checks
from hypothesis import given
from hypothesis import strategies as st
from kombu.exceptions import OperationalError
from kombu.utils.functional import fxrange

from django_quota import Decision, Rule, check, peek
from django_quota.contrib import celery as integration
from django_quota.contrib.celery import PLACE_HEADER, QuotaTask, TaskRefused, TaskWouldExpire
from django_quota.exceptions import RuleError
from django_quota.features.usage.days import recent_usage
from django_quota.metrics import observe, unobserve
from django_quota.operating.activity import running_totals
from django_quota.testing import clear
from tests.support.celery_worker import SECOND, Clock, Worker, in_memory_app
from tests.support.inputs import inputs
from tests.support.overridden import override
from tests.support.pages import marked

pytestmark = pytest.mark.usefixtures("memory_store")


class Site:
    """An app with one limited task, which notes when it starts and what it gets, and one worker."""

    def __init__(self, clock: Clock) -> None:
        self.app = in_memory_app(broker_transport_options={"visibility_timeout": 6 * 3600})
        self.clock = clock
        self.moments: list[int] = []
        self.calls: list[Any] = []
        self.worker = Worker(self.app, clock)

    def task(self, **options: Any) -> Any:
        """Make a task that is limited by these options."""

        def work(*args: Any, **kwargs: Any) -> Any:
            self.moments.append(self.clock.passed)
            self.calls.append(args[0] if args else None)
            return args[0] if args else None

        return self.app.task(shared=False, base=QuotaTask, **{"name": "export", **options})(work)

    def run(self, task: Any, *arguments: Any) -> list[float]:
        """Publish the task with each of these arguments, run all, and return when they started."""
        for argument in arguments:
            task.delay(argument)
        self.worker.run_all()
        return self.starts

    @property
    def starts(self) -> list[float]:
        """When tasks started, in seconds to the tenth of a millisecond."""
        return [round(moment / SECOND, 4) for moment in self.moments]

    def most_in(self, seconds: int) -> int:
        """Return the most starts in any window of this length."""
        moments = sorted(self.moments)
        return max(bisect_left(moments, first + seconds * SECOND) - index for index, first in enumerate(moments))

    def error(self, result: Any) -> Any:
        return self.app.AsyncResult(result.id).result


@contextmanager
def new_site(patch: pytest.MonkeyPatch) -> Iterator[Site]:
    clear()
    clock = Clock()
    patch.setattr(integration, "sleep", clock.sleep)
    with clock.running():
        yield Site(clock)


@pytest.fixture
def site(memory_store: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with new_site(monkeypatch) as made:
        yield made


@pytest.mark.parametrize(
    ("options", "arguments", "starts"),
    [
        ({"quota": "10/m", "key": lambda task, args, kwargs: f"org:{args[0]}"}, (1, 2, 1), [(1, 0), (2, 0), (1, 6.06)]),
        ({"quota": "10/m", "cost": 5}, (5, 5), [(5, 0.0), (5, 30.3)]),
        ({"quota": Rule.make("heavy", "10/m", cost=5)}, (5, 5), [(5, 0.0), (5, 30.3)]),
        # A free task starts at once.
        ({"quota": "1/m", "cost": lambda task, args, kwargs: args[0]}, (0, 0, 1), [(0, 0.0), (0, 0.0), (1, 0.0)]),
        ({"quota": Rule.make("trial", "1/m", shadow=True)}, (1, 2), [(1, 0.0), (2, 0.0)]),
        # In a leaky bucket each has its place under all rates.
        ({"quota": Rule.make("line", "10/m; 12/h", algorithm="leaky_bucket")}, (1, 2, 3), [(1, 0), (2, 303), (3, 606)]),
        ({"quota": Rule.make("quotas", "10/m; 12/h")}, (1, 2, 3), [(1, 0.0), (2, 6.06), (3, 12.12)]),
        # Waiting is no refusal that leads to a ban, or that counts.
        ({"quota": Rule.make("strict", "10/m", ban={"after": "1/m", "for": "1h"})}, (1, 2), [(1, 0.0), (2, 6.06)]),
        (
            {"quota": Rule.make("strict", "2/d", ban={"after": "1/d", "for": "7d"})},
            (1, 2, 3, 4),
            [(1, 0.0), (2, 0.0), (3, 86_400.0), (4, 90_763.2)],
        ),
        ({"quota": Rule.make("strict", "2/d", count_refused=True)}, (1, 2, 3), [(1, 0.0), (2, 0.0), (3, 86_400.0)]),
        # A rule that refuses nothing lets all start.
        ({"quota": Rule.make("soft", "1/m", block=False)}, (1, 2), [(1, 0.0), (2, 0.0)]),
        ({"quota": Rule.make("free", None)}, (1, 2), [(1, 0.0), (2, 0.0)]),
        # A bucket of tokens lets as many start as it holds.
        (
            {"quota": Rule.make("bucket", "10/m", algorithm="token_bucket", burst=2)},
            (1, 2, 3),
            [(1, 0.0), (2, 0.0), (3, 6.0)],
        ),
        # Tasks are spaced by one slice of the window more than the rate.
        ({"quota": Rule.make("slices", "10/m", precision=10)}, (1, 2), [(1, 0.0), (2, 6.6)]),
        # An hour is spaced, and a longer window is a quota.
        ({"quota": "2/h"}, (1, 2), [(1, 0.0), (2, 1818.0)]),
        ({"quota": "2/61m"}, (1, 2), [(1, 0.0), (2, 0.0)]),
        ({"quota": "2/3601s"}, (1, 2), [(1, 0.0), (2, 0.0)]),
        ({"quota": ("10/m", "12/h")}, (1, 2), [(1, 0.0), (2, 6.06)]),
        ({"quota": ("10/m", "5/d")}, (1, 2), [(1, 0.0), (2, 6.06)]),
        # What a quota has no room for leaves the room to a task that costs less.
        (
            {"quota": Rule.make("strict", "2/d", count_refused=True), "cost": lambda task, args, kwargs: args[0]},
            (1, 2, 1),
            [(1, 0.0), (1, 0.0), (2, 86_400.0)],
        ),
        # Those that wait for a quota are spaced by what they cost.
        ({"quota": "10/d", "cost": 5}, (1, 2, 3, 4), [(1, 0.0), (2, 0.0), (3, 86_400.0), (4, 90_763.2)]),
        ({"quota": Rule.make("day", "2/d", algorithm="calendar", tz="UTC", daily=True)}, (1, 2), [(1, 0.0), (2, 0.0)]),
    ],
)
def test_a_task_waits_for_its_subject_as_long_as_the_costs_before_it_take(
    site: Site, options: dict[str, Any], arguments: tuple[int, ...], starts: list[tuple[int, float]]
) -> None:
    site.run(site.task(**options), *arguments)
    assert list(zip(site.calls, site.starts, strict=True)) == starts
    assert site.clock.naps == []


@pytest.mark.parametrize(
    ("rule", "seconds", "start"),
    [
        pytest.param("250/s", 0.00404, 0.004, id="a rate"),
        pytest.param(Rule.make("slices", "250/s", precision=4), 0.005, 0.005, id="a window of slices"),
    ],
)
def test_a_short_wait_is_spent_in_the_worker(rule: Any, seconds: float, start: float, site: Site) -> None:
    site.run(site.task(quota=rule), 1, 2)

    assert list(zip(site.calls, site.starts, strict=True)) == [(1, 0.0), (2, start)]
    assert site.clock.naps == [seconds]


def test_tasks_that_come_at_once_start_one_after_the_other(site: Site) -> None:
    starts = site.run(site.task(quota="100/m"), *range(12))
    assert [round(later - earlier, 3) for earlier, later in pairwise(starts)] == [0.606] * 11
    assert site.calls == list(range(12))
    assert len(site.worker.runs) == 12 + 11, "each is published at most once more"


def test_a_task_counts_its_cost_and_a_free_one_counts_nothing(site: Site) -> None:
    site.run(site.task(quota="10/m", cost=lambda task, args, kwargs: args[0]), 0, 1, 1)

    assert peek(Rule.make("export", "10/m"), "global").used == 2


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"quota": "10/m"}, id="a task"),
        pytest.param({"quota": "10/m", "cost": 0}, id="a free one"),
        pytest.param({"quota": "10/d"}, id="one of a quota"),
        pytest.param({"quota": "10/d", "cost": 0}, id="a free one of a quota"),
        pytest.param({"quota": Rule.make("export", None)}, id="one without a limit"),
    ],
)
def test_a_task_of_a_blocked_subject_waits_until_the_block_ends(site: Site, options: dict[str, Any]) -> None:
    override(f"b 0 {site.clock.now + 3_600 * SECOND} -", "export", "org:7")

    starts = site.run(site.task(key="org:7", **options), 1)

    assert starts == [3_600.0]


def test_another_base_of_the_task_hears_that_it_starts(site: Site) -> None:
    heard: list[str] = []

    class Noting(Task):
        abstract = True

        def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
            heard.append(task_id)

    class Both(QuotaTask, Noting):
        abstract = True

    @site.app.task(shared=False, base=Both, quota="10/m", name="both")
    def work() -> None: ...

    work.apply_async(task_id="a-task")
    site.worker.run_all()

    assert heard == ["a-task"]


def test_a_task_that_waits_is_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "django_quota.tasks")
    task = site.task(quota="10/m")
    task.delay(1)
    task.apply_async((2,), task_id="second")
    site.worker.run_all()

    assert [record.getMessage() for record in caplog.records] == ["Task export[second] waits 0:00:07 for its turn."]


@pytest.fixture
def four_tasks_that_start(site: Site) -> None:
    """Four that wait for their places, and one that none is left for."""
    site.run(site.task(quota="10/m", key="org:7"), *range(4))
    site.task(name="none", quota="0/m").apply_async()
    site.worker.run_all()


@pytest.fixture
def heard() -> Iterator[list[Decision]]:
    decisions: list[Decision] = []
    observe(decisions.append)
    yield decisions
    unobserve(decisions.append)


@pytest.mark.usefixtures("four_tasks_that_start")
def test_metrics_count_a_task_when_it_starts() -> None:
    counts = {rule.part: (rule.allowed, rule.refused) for rule in running_totals().rules}

    assert counts == {"export": (4, 0), "none": (0, 1)}


def test_observers_hear_of_a_task_when_it_starts(heard: list[Decision], four_tasks_that_start: None) -> None:
    assert [decision.rule for decision in heard] == ["export"] * 4 + ["none"]


@pytest.mark.parametrize("rate", ["10/m", "2/d"], ids=["spaced", "a quota"])
def test_the_usage_of_a_day_counts_a_task_once(rate: str, site: Site) -> None:
    site.run(site.task(quota=Rule.make("export", rate, daily=True), key="org:7"), 1, 2, 3)

    counts = [count for rules in recent_usage("org:7").values() for name, count in rules.items()]

    assert sum(count.units for count in counts) == 3


def test_a_task_that_is_published_during_an_outage_takes_its_place_afterwards(site: Site, settings: Any) -> None:
    task, here = site.task(quota="10/m"), settings.QUOTA
    settings.QUOTA = {}  # they lead to no server
    for number in (1, 2):
        task.quota_apply_async((number,))

    settings.QUOTA = here
    site.worker.run_all()

    assert site.starts == [0.0, 6.06]


@pytest.mark.usefixtures("four_tasks_that_start")
def test_a_place_takes_no_hit_of_its_own() -> None:
    assert peek(Rule.make("export", "10/m"), "org:7").used == 4


# --- the message ------------------------------------------------------------------------------------------------------


def test_a_message_that_is_published_again_says_what_it_said_before(site: Site) -> None:
    task = site.task(quota="10/m", max_retries=0)
    site.app.conf.task_create_missing_queues = True
    queue = f"{site.app.conf.task_default_queue}-slow"
    options: dict[str, Any] = {
        "link": task.si("linked"), "link_error": task.si("failed"), "chain": [task.si("chained")],
        "chord": task.si("body"), "group_id": "a-group", "group_index": 3, "priority": 5, "expires": 3600,
        "shadow": "a shadow", "kwargsrepr": "{'secret': ***}", "time_limit": 30, "soft_time_limit": 20,
        "ignore_result": True, "headers": {"traceparent": "00-1-2-03"}, "stamped_headers": ["tenant"],
        "tenant": "acme", "retries": 2, "replaced_task_nesting": 1,
    }  # fmt: skip

    @site.app.task(shared=False, name="parent")
    def parent() -> None:
        task.apply_async((0,), queue=queue)
        task.apply_async((1,), {"secret": "x"}, queue=queue, **options)

    first = parent.delay()
    assert site.worker.run_all() == 1
    worker = Worker(site.app, site.clock, queue)

    worker.run_all()

    _, before, after = worker.runs[:3]
    assert after.headers["eta"]
    assert after.headers["quota_place"]["at"] == site.clock.begin + 6_060_000
    changed = {"eta", PLACE_HEADER}
    assert {**after.headers, **dict.fromkeys(changed)} == {**before.headers, **dict.fromkeys(changed)}
    assert after.headers["parent_id"] == after.headers["root_id"] == first.id
    assert json.loads(after.body) == json.loads(before.body)
    said = ("priority", "correlation_id", "reply_to")
    assert {name: after.properties[name] for name in said} == {name: before.properties[name] for name in said}


def test_a_task_that_finds_the_queue_full_when_it_is_published_takes_a_place_when_it_comes(site: Site) -> None:
    task = site.task(quota=Rule.make("short", "10/m", algorithm="leaky_bucket", burst=2))
    for number in (1, 2, 3):
        task.quota_apply_async((number,))

    site.worker.run_all()

    assert site.starts == [0.0, 6.06, 12.12]
    places = [run.headers[PLACE_HEADER]["at"] for run in site.worker.runs]
    assert [place and place - site.clock.begin for place in places] == [0, 6_060_000, None, 12_120_000]


def test_a_task_that_finds_the_queue_full_takes_a_place_when_it_comes_again(site: Site) -> None:
    task = site.task(quota=Rule.make("short", "10/m", algorithm="leaky_bucket", burst=2))

    assert site.run(task, 1, 2, 3) == [0.0, 6.06, 12.12]

    places = [run.headers[PLACE_HEADER]["at"] for run in site.worker.runs if PLACE_HEADER in run.headers]
    assert places == [site.clock.begin + 6_060_000, None, site.clock.begin + 12_120_000]


@pytest.mark.parametrize(
    "place",
    [
        pytest.param({"id": "another", "retries": 0, "at": 0}, id="of another task"),
        pytest.param("soon", id="of another program"),
    ],
)
def test_a_place_that_is_not_its_own_helps_no_task(place: Any, site: Site) -> None:
    task = site.task(quota="10/m")
    task.delay(1)
    task.apply_async((2,), headers={PLACE_HEADER: place})
    site.worker.run_all()

    assert site.starts == [0.0, 6.06]


class TestRetries:
    @pytest.fixture
    def starts(self, site: Site) -> list[tuple[float, int]]:
        """When three tasks started that each retry once, in seconds, with the number of the retry."""
        starts = []

        @site.app.task(shared=False, base=QuotaTask, quota="10/m", bind=True, max_retries=1, name="flaky")
        def flaky(self: Any) -> None:
            starts.append((site.clock.passed / SECOND, self.request.retries))
            if self.request.retries == 0:
                raise self.retry(countdown=0)

        for _ in range(3):
            flaky.delay()
        site.worker.run_all()
        return starts

    def test_waiting_spends_none(self, starts: list[tuple[float, int]]) -> None:
        assert sorted(retries for _, retries in starts) == [0, 0, 0, 1, 1, 1]

    def test_each_waits_for_a_place_of_its_own(self, starts: list[tuple[float, int]]) -> None:
        assert [round(later - earlier, 3) for (earlier, _), (later, _) in pairwise(starts)] == [6.06] * 5


def test_a_wait_beyond_the_visibility_timeout_is_split(site: Site) -> None:
    site.app.conf.broker_transport_options = {"visibility_timeout": 400}
    assert site.run(site.task(quota="6/h"), 1, 2, 3) == [0.0, 606.0, 1212.0]
    etas = [run.headers["eta"] for run in site.worker.runs if run.headers["eta"]]
    ends = [datetime.fromisoformat(eta).timestamp() - site.clock.begin / SECOND for eta in etas]
    assert [round(end) for end in ends] == [300, 300, 600, 600, 606, 900, 1200, 1212]


def test_a_wait_beyond_the_timeout_of_most_brokers_is_split_without_a_setting(site: Site) -> None:
    site.app.conf.broker_transport_options = {}

    site.run(site.task(quota="2/h"), 1, 2)

    etas = [run.headers["eta"] for run in site.worker.runs if run.headers["eta"]]
    ends = [datetime.fromisoformat(eta).timestamp() - site.clock.begin / SECOND for eta in etas]
    assert [round(end) for end in ends] == [1350, 1818]


# --- killed workers and repeated deliveries ---------------------------------------------------------------------------


def test_a_message_that_is_delivered_twice_takes_no_second_place(site: Site) -> None:
    task = site.task(quota="10/m")
    task.delay(1)
    task.delay(2)
    site.worker.step()
    site.worker.step()
    site.worker.fetch()
    _, _, message = site.worker.waiting.pop()
    site.clock.move_to(site.clock.now + 6_060_000)
    site.worker.execute(message)
    site.worker.execute(message)
    assert site.calls == [1, 2, 2]  # as Celery does; a second run counts as one
    assert peek(Rule.make("export", "10/m"), "global").remaining == 7


@pytest.mark.thorough("slow")
@inputs(60)
@given(
    bursts=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 6)), min_size=1, max_size=2),
    deaths=st.lists(st.integers(0, 12), max_size=2),
    lateness=st.integers(0, 200),
)
def test_each_task_runs_once_within_the_limits_whatever_becomes_of_workers(
    bursts: list[tuple[int, int]], deaths: list[int], lateness: int
) -> None:
    """Bursts of tasks come, workers die after some messages, and theirs come back late."""
    with pytest.MonkeyPatch.context() as patch, new_site(patch) as site:
        task = site.task(quota=["2/m", "9/h"])
        worker, sent = site.worker, 0
        for pause, size in bursts:
            site.clock.move_to(site.clock.now + pause * SECOND)
            for _ in range(size):
                task.delay(sent)
                sent += 1
            for steps in deaths:
                for _ in range(steps):
                    worker.step()
                worker.die()
                site.clock.move_to(site.clock.now + lateness * SECOND)
                worker = Worker(site.app, site.clock)
        worker.run_all(2_000)

        assert sorted(site.calls) == list(range(sent))
        assert site.most_in(60) <= 2
        assert site.most_in(3600) <= 9


@pytest.mark.parametrize("acks_late", [False, True])
def test_a_broker_that_takes_no_message_loses_no_task(
    site: Site, monkeypatch: pytest.MonkeyPatch, acks_late: bool
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise OperationalError("no broker")

    task = site.task(quota="10/m", acks_late=acks_late)
    _, second = task.delay(1), task.delay(2)
    site.worker.step()
    monkeypatch.setattr(site.app, "send_task", fail)
    site.worker.fetch()
    (_, _, message), *_ = site.worker.waiting
    result = site.worker.execute(message)
    if acks_late:
        assert isinstance(result.exception.exc, Reject)
        assert result.exception.exc.requeue
    else:
        assert isinstance(site.error(second), OperationalError)


def test_a_worker_tries_for_five_minutes_to_publish_a_task_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []
    task = site.task(quota="10/m")
    task.delay(1)
    task.delay(2)
    monkeypatch.setattr(site.app, "send_task", lambda *args, **options: sent.append(options))

    site.worker.run_all()

    (options,) = sent
    policy = options["retry_policy"]
    waits = cast("Any", fxrange)(
        policy["interval_start"], policy["interval_max"], policy["interval_step"], repeatlast=True
    )
    assert options["retry"] is True
    assert round(sum(islice(waits, policy["max_retries"]))) == 297


# --- quotas -----------------------------------------------------------------------------------------------------------

DAY = 86_400


class TestAQuota:
    @pytest.fixture
    def starts(self, site: Site) -> list[float]:
        return site.run(site.task(quota="3/d"), *range(5))

    def test_it_does_not_space_its_tasks(self, starts: list[float]) -> None:
        assert starts[:3] == [0.0, 0.0, 0.0]

    def test_the_rest_waits_until_it_is_free(self, starts: list[float]) -> None:
        assert starts[3:] == [DAY, DAY + 2_908.8]  # ten times the pace of the quota, and a hundredth slower

    @pytest.mark.usefixtures("starts")
    def test_the_rest_is_refused_once(self) -> None:
        (quota,) = running_totals().rules

        assert (quota.allowed, quota.refused) == (5, 2)

    @pytest.mark.usefixtures("starts")
    def test_the_rest_waits_in_long_steps(self, site: Site) -> None:
        assert len(site.worker.runs) < 5 + 2 * 8  # each waits in steps of four and a half hours


def test_a_task_shares_the_count_of_a_configured_rule_with_views(site: Site, settings: Any) -> None:
    settings.QUOTA = {"STORE": "memory", "RULES": {"exports": "3/d"}}
    task = site.task(quota_rule="exports", key=lambda task, args, kwargs: "org:7")
    assert check("exports", "org:7", 2)

    starts = site.run(task, 1, 2)

    assert (starts[0], starts[1] >= DAY) == (0.0, True)


def test_a_task_is_limited_by_a_rule_for_some_requests(site: Site, settings: Any) -> None:
    rule = {"rate": "10/m", "match": "/api/", "exclude": "/api/v1/"}
    settings.QUOTA = {"STORE": "memory", "RULES": {"api": rule}}

    assert site.run(site.task(quota_rule="api"), 1, 2) == [0.0, 6.06]


@pytest.mark.parametrize(("says", "starts"), [("allow", [0.0] * 3), ("local", [0.0, 60.6, 121.2])])
def test_while_redis_does_not_answer_a_rule_says_when_its_tasks_start(
    site: Site, settings: Any, says: Any, starts: list[float]
) -> None:
    settings.QUOTA = {}  # they lead to no server
    assert site.run(site.task(quota=Rule.make("export", "1/m", on_unavailable=says)), 1, 2, 3) == starts


# --- tasks that never start -------------------------------------------------------------------------------------------


def test_a_task_that_would_expire_before_its_turn_fails_at_once(site: Site) -> None:
    task = site.task(quota="10/m")
    task.delay(1)
    result = task.apply_async((2,), expires=5)
    site.worker.run_all()
    assert site.calls == [1]
    assert isinstance(site.error(result), TaskWouldExpire)
    assert str(site.error(result)).startswith("Task export would wait 0:00:07 for its turn, and expires in 0:00:0")
    with pytest.raises(TaskWouldExpire) as told:
        task.quota_apply_async(expires=5)  # its publisher is told
    assert str(told.value) == "Task export would wait 0:00:13 for its turn, and expires in 0:00:05."


def test_a_task_that_has_expired_is_said_to_expire_at_once(site: Site) -> None:
    with pytest.raises(TaskWouldExpire) as told:
        site.task(quota="10/m").quota_apply_async(expires=-5)

    assert str(told.value) == "Task export would wait 0:00:00 for its turn, and expires in 0:00:00."


def test_a_task_that_no_time_helps_fails(site: Site) -> None:
    never, too_much = site.task(quota="0/m"), site.task(name="huge", quota="10/d", cost=11)
    results = [never.delay(1), too_much.delay(1)]
    site.worker.run_all()
    assert [type(site.error(result)) for result in results] == [TaskRefused] * 2
    with pytest.raises(TaskRefused, match=r"^Task export never starts\. .*admits nothing \(0 per minute\)"):
        never.quota_apply_async()


# --- published with a place -------------------------------------------------------------------------------------------


class TestAPlaceTakenWhenATaskIsPublished:
    @pytest.fixture
    def task(self, site: Site) -> Any:
        task = site.task(quota="10/m")
        for number in (1, 2):
            task.quota_apply_async((number,))
        assert site.worker.run_all() == 2
        return task

    @pytest.mark.usefixtures("task")
    def test_the_message_says_when_the_task_may_start(self, site: Site) -> None:
        assert [bool(run.headers["eta"]) for run in site.worker.runs] == [False, True]

    def test_a_task_without_one_starts_after_them(self, site: Site, task: Any) -> None:
        task.delay(3)  # in the same queue
        site.worker.run_all()

        assert site.starts == [0.0, 6.06, 12.12]

    def test_the_headers_of_the_caller_stay(self, site: Site, task: Any) -> None:
        task.quota_apply_async((3,), headers={"traceparent": "00-1-2-03"})
        site.worker.run_all()

        assert site.worker.runs[-1].headers["traceparent"] == "00-1-2-03"

    def test_its_arguments_say_who_is_limited(self, site: Site) -> None:
        limited = site.task(name="limited", quota="10/m", key=lambda task, args, kwargs: f"{args}{kwargs['org']}")
        for org in (1, 2, 1):
            limited.quota_apply_async((7,), {"org": org})

        site.worker.run_all()

        assert site.starts == [0.0, 0.0, 6.06]

    def test_the_id_of_the_caller_stays(self, task: Any) -> None:
        assert task.quota_apply_async((3,), task_id="a-task").id == "a-task"

    @pytest.fixture(params=[False, True], ids=["in seconds", "as a moment"])
    def publish_third(self, site: Site, request: pytest.FixtureRequest) -> Callable[[float], str]:
        """Publish a task that expires after some seconds, and whose turn is in 12.12; returns its id."""
        limited = site.task(name="limited", quota="10/m")
        for number in (1, 2):
            limited.quota_apply_async((number,))

        def publish(seconds: float) -> str:
            now = datetime.fromtimestamp(site.clock.now / SECOND, UTC)
            expires: Any = now + timedelta(seconds=seconds) if request.param else seconds
            return str(limited.quota_apply_async((3,), expires=expires, task_id="third").id)

        return publish

    def test_a_task_is_published_if_it_expires_after_its_turn(self, publish_third: Any) -> None:
        assert publish_third(12.13) == "third"

    @pytest.mark.parametrize("seconds", [12.12, 12, 0], ids=["at its turn", "before its turn", "at once"])
    def test_a_task_that_expires_before_it_could_start_is_not_published(
        self, seconds: float, publish_third: Any
    ) -> None:
        with pytest.raises(TaskWouldExpire):
            publish_third(seconds)

    def test_a_task_that_never_expires_is_published(self, site: Site) -> None:
        limited = site.task(name="limited", quota="10/m")
        limited.quota_apply_async((1,))

        assert limited.quota_apply_async((2,), expires=None, task_id="second").id == "second"

    def test_the_expiry_of_the_task_itself_counts_too(self, site: Site) -> None:
        limited = site.task(name="limited", quota="10/m", expires=5)
        limited.quota_apply_async((1,))

        with pytest.raises(TaskWouldExpire):
            limited.quota_apply_async((2,))

    def test_a_countdown_or_an_eta_of_the_caller_stays_the_least(self, site: Site, task: Any) -> None:
        task.delay(3)
        site.worker.run_all()
        eta = datetime.fromtimestamp(site.clock.begin / SECOND, UTC) + timedelta(seconds=100)

        task.quota_apply_async((1,), countdown=60)
        task.quota_apply_async((2,), eta=eta)
        task.quota_apply_async((3,), countdown=1)
        site.worker.run_all()

        assert [round(start) for start in sorted(site.starts[3:])] == [30, 72, 100]

    @pytest.mark.parametrize(
        "later",
        [
            pytest.param(lambda now: {"countdown": 60}, id="a countdown"),
            pytest.param(lambda now: {"eta": now + timedelta(seconds=60)}, id="an eta"),
        ],
    )
    def test_a_task_that_could_start_at_once_waits_for_the_moment_of_the_caller(self, later: Any, site: Site) -> None:
        now = datetime.fromtimestamp(site.clock.begin / SECOND, UTC)

        site.task(name="first", quota="10/m").quota_apply_async((1,), **later(now))

        assert site.worker.run_all() == 1, "it is not published again"
        assert site.starts == [60.0]

    def test_a_moment_without_a_zone_is_in_utc_as_for_a_worker(self, site: Site) -> None:
        site.app.conf.timezone = "Asia/Tokyo"
        later = datetime.fromtimestamp(site.clock.begin / SECOND, UTC) + timedelta(seconds=60)

        site.task(name="first", quota="10/m").quota_apply_async((1,), eta=later.replace(tzinfo=None))
        site.worker.run_all()

        assert site.starts == [60.0]

    def test_a_retry_that_is_published_with_a_place_takes_no_second_one(self, site: Site) -> None:
        limited = site.task(name="limited", quota="10/m")
        for number in (1, 2):
            limited.quota_apply_async((number,), retries=1)

        site.worker.run_all()

        assert site.starts == [0.0, 6.06]


@pytest.mark.parametrize(
    ("is_eager_app", "call"),
    [
        pytest.param(False, lambda task, number: task(number), id="called"),
        pytest.param(False, lambda task, number: task.apply((number,)).get(), id="apply"),
        pytest.param(True, lambda task, number: task.delay(number).get(), id="delay of an eager app"),
        pytest.param(
            True, lambda task, number: task.quota_apply_async((number,)).get(), id="published by an eager app"
        ),
    ],
)
class TestAnEagerTask:
    @pytest.fixture(autouse=True)
    def eager(self, is_eager_app: bool, site: Site) -> None:
        site.app.conf.task_always_eager = is_eager_app

    def test_it_runs_at_once_though_the_limit_is_reached(self, call: Any, site: Site) -> None:
        task = site.task(quota="1/m")

        assert [call(task, number) for number in (1, 2)] == [1, 2]

    def test_it_takes_no_place_in_the_queue(self, call: Any, site: Site) -> None:
        task = site.task(quota="1/m")
        call(task, 1)
        site.app.conf.task_always_eager = False

        assert site.run(task, 2) == [0.0, 0.0]

    def test_it_does_not_count(self, call: Any, site: Site) -> None:
        call(site.task(quota="1/m"), 1)

        assert peek(Rule.make("export", "1/m"), "global").remaining == 1


def test_a_rule_that_denies_lets_its_tasks_wait_until_redis_answers(site: Site, settings: Any) -> None:
    task = site.task(quota=Rule.make("export", "10/m", on_unavailable="deny"))
    settings.QUOTA = {}
    task.delay(1)
    task.quota_apply_async((2,))
    while site.clock.passed < 120 * SECOND:
        assert site.worker.step()
    assert site.calls == []
    assert len(site.worker.runs) <= 2 * 13
    settings.QUOTA = {"STORE": "memory"}
    began = site.clock.passed
    site.worker.run_all()
    assert sorted(site.calls) == [1, 2]
    assert site.moments[0] - began <= 20 * SECOND


def test_a_task_keeps_its_place_while_redis_does_not_answer(site: Site, settings: Any) -> None:
    site.task(quota=Rule.make("export", "10/m", on_unavailable="deny")).quota_apply_async((1,))
    settings.QUOTA = {}
    site.worker.step()

    settings.QUOTA = {"STORE": "memory"}
    site.worker.run_all()

    places = [run.headers[PLACE_HEADER]["at"] for run in site.worker.runs]
    assert places == [site.clock.begin] * 2
    assert site.calls == [1]


@pytest.mark.parametrize(("chosen", "seconds"), [(min, 10), (max, 20)], ids=["the earliest", "the latest"])
def test_a_task_asks_again_after_ten_to_twenty_seconds_while_redis_does_not_answer(
    site: Site, settings: Any, monkeypatch: pytest.MonkeyPatch, chosen: Any, seconds: int
) -> None:
    settings.QUOTA = {}
    monkeypatch.setattr(integration, "uniform", chosen)
    site.task(quota=Rule.make("export", "10/m", on_unavailable="deny")).delay(1)

    site.worker.step()
    site.worker.step()

    assert site.clock.passed == seconds * SECOND


# --- options ----------------------------------------------------------------------------------------------------------

EITHER = r"^Task 'export' needs either quota= or quota_rule=\. Use, for example, quota='100/m'\.$"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, EITHER),
        ({"quota": "10/m", "quota_rule": "exports"}, EITHER),
        (
            {"quota": Rule.make("devices", "3/d", distinct=True)},
            "^Rule 'devices' needs a request, so no task can use it",
        ),
        ({"quota": Rule.make("paid", lambda request: "3/d")}, "^Rule 'paid' needs a request, so no task can use it"),
        ({"quota": "10/month"}, "is not a rate"),
    ],
)
def test_a_wrong_option_is_an_error_when_the_task_is_made(site: Site, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(RuleError, match=problem):
        _ = site.task(**options).name  # Celery makes a task when it is first needed


@pytest.fixture
def tasks_of_rules(site: Site, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tasks: the settings have the rule of one of them."""
    settings.QUOTA = {"STORE": "memory", "RULES": {"exports": "10/m"}}
    for name in ("exprots", "exports", "exportz"):
        site.task(name=name, quota_rule=name)
    monkeypatch.setattr(integration, "current_app", site.app)


@pytest.mark.usefixtures("tasks_of_rules")
def test_e026_a_rule_that_the_settings_lack_is_found_before_the_task_runs() -> None:
    found = [each for each in run_checks(tags=["django_quota"]) if each.id == "django_quota.E026"]

    assert [(each.msg, each.hint) for each in found] == [
        (
            f'Task {name!r} has quota_rule={name!r}. There is no rule {name!r} in QUOTA["RULES"].',
            "Did you mean 'exports'?",
        )
        for name in ("exprots", "exportz")
    ]


def test_a_task_follows_the_rule_of_the_settings_when_it_changes(site: Site, settings: Any) -> None:
    task = site.task(quota_rule="exports")

    def rates_under(rate: str) -> list[str]:
        settings.QUOTA = {"STORE": "memory", "RULES": {"exports": rate}}
        return [str(each) for each in task.limits().start.rates]

    assert [rates_under("10/m"), rates_under("20/m")] == [["10/m"], ["20/m"]]


@pytest.mark.usefixtures("tasks_of_rules")
def test_a_task_whose_rule_the_settings_lack_fails_with_its_name(site: Site) -> None:
    result = site.app.tasks["exprots"].delay(1)
    site.worker.run_all()

    assert "There is no rule 'exprots'" in str(site.error(result))


def test_the_tasks_that_the_page_shows_are_limited(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery._state._on_app_finalizers", set())
    monkeypatch.setattr("celery._state._tls.current_app", site.app)
    names: dict[str, Any] = {"__name__": "shop"}
    for mark in ("celery", "reports", "batch"):
        names = marked("docs/tasks.md", mark, **names)
    results = [names["export"].delay(7), names["report"].delay(7)]
    assert site.worker.run_all() == 2
    names["start_exports"]([7, 8])
    assert site.worker.run_all() == 2
    assert [site.error(result) for result in results] == ["7.csv", results[1].id]  # a bound task knows itself
    assert names["export"].name == "shop.export"
    assert peek(Rule.make("shop.export", "100/m", "10000/d"), "org:7").remaining == 98
    assert peek(names["slow"], "org:7").remaining == 4
