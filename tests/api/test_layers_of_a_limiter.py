"""What a limiter consists of: its stores, its memory, its clock, its observers, its cleaning and its workers."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from unittest.mock import Mock, patch

import pytest
from django.test import RequestFactory

from django_quota import Rule, check, check_all, peek, reserve, slot
from django_quota.adapters import decide
from django_quota.conf import current
from django_quota.core.clock import DAY, machine_now
from django_quota.core.errors import ConfigurationError, StoreUnavailable
from django_quota.core.overrides import OverrideTable
from django_quota.engine.asks import Ask
from django_quota.engine.codec import RETRY_WITH
from django_quota.engine.events import AppendEvents
from django_quota.limiting import fallback, metrics, stores
from django_quota.limiting import limiter as limiter_module
from django_quota.limiting.fallback import Workers
from django_quota.limiting.flusher import flusher
from django_quota.limiting.limiter import Limiter, scope_of
from django_quota.limiting.registry import clear_memory, counting_stores, force_store, get_limiter
from django_quota.limiting.stores import Cleaning
from django_quota.metrics import observe, unobserve
from django_quota.operating.activity import running_totals
from django_quota.runtime import runtime
from django_quota.signals import refused
from django_quota.stores.memory import MemoryStore
from django_quota.testing import freeze
from tests.support.calls import calls_of, operations_of
from tests.support.counts import units_of
from tests.support.memory import metrics_that_wait, remembered_refusals
from tests.support.outages import no_answer
from tests.support.overridden import override
from tests.support.signals import received
from tests.support.steps import SECOND, START, Clock
from tests.support.stores import current_store

SUBJECT = "ip:203.0.113.9"

pytestmark = pytest.mark.usefixtures("memory_store")


@contextmanager
def forced(store: MemoryStore | None) -> Iterator[None]:
    before = force_store(store)
    try:
        yield
    finally:
        force_store(before)


def test_the_keys_in_the_database_have_no_prefix_of_a_cache(settings: Any) -> None:
    settings.CACHES = {"default": {**settings.CACHES["default"], "KEY_PREFIX": "shop"}}
    settings.QUOTA = {"PREFIX": "limits"}

    scope = scope_of(current())

    assert (scope.prefix, scope.database_prefix) == ("shop:limits", "limits")


# --- two stores -------------------------------------------------------------------------------------------------------


@pytest.fixture
def a_rule_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has made a rule with `store="database"`."""
    monkeypatch.setattr(Rule, "any_in_database", True)


@pytest.fixture
def two(a_rule_of_the_database: None) -> Iterator[tuple[Limiter, MemoryStore, MemoryStore]]:
    """A limiter with a second store for the rules with `store="database"`; yields both stores, too."""
    first, second = MemoryStore(), MemoryStore()
    with closing(Limiter(first, lambda: second)) as limiter:
        yield limiter, first, second


BURST, MONTH = Rule.make("burst", "5/m"), Rule.make("month", "5/d", store="database")
ASKS = [Ask(rule, SUBJECT, 1) for rule in (BURST, MONTH)]


def left(limiter: Limiter, rule: Rule) -> int | None:
    return limiter.decide([Ask(rule, SUBJECT, 1)], "peek").remaining


def test_an_error_of_the_second_store_gives_back_what_the_first_one_took(two: Any) -> None:
    limiter, _, second = two
    with (
        patch.object(second, "run", side_effect=ConfigurationError("The database is not configured.")),
        pytest.raises(ConfigurationError, match="not configured"),
    ):
        limiter.decide(ASKS, "check")

    assert left(limiter, BURST) == 5


def test_an_error_of_the_second_store_gives_nothing_back_of_a_forced_hit(two: Any) -> None:
    limiter, _, second = two
    with (
        patch.object(second, "run", side_effect=ConfigurationError("The database is not configured.")),
        pytest.raises(ConfigurationError),
    ):
        limiter.decide(ASKS, "force")

    assert left(limiter, BURST) == 4


def test_a_forced_hit_that_the_second_store_has_no_room_for_stays_counted_in_the_first(two: Any) -> None:
    limiter, _, _ = two
    full = Rule.make("full", "0/m", store="database")

    limiter.decide([Ask(BURST, SUBJECT, 1), Ask(full, SUBJECT, 1)], "force")

    assert left(limiter, BURST) == 4


def test_an_error_of_the_second_store_takes_no_day_from_a_rule_without_a_limit(two: Any) -> None:
    limiter, _, second = two
    free = Ask(Rule.make("free", None, daily=True), SUBJECT, 1)
    with (
        patch.object(second, "run", side_effect=ConfigurationError("The database is not configured.")),
        pytest.raises(ConfigurationError),
    ):
        limiter.decide([free, *ASKS], "check")

    assert len(limiter.unasked) == 0


def test_the_counts_of_a_process_are_shared_once_the_second_store_is_used(two: Any) -> None:
    limiter, _, _ = two
    before = limiter.stores.is_shared

    limiter.decide(ASKS, "check")

    assert (before, limiter.stores.is_shared) == (False, True)


def test_two_threads_that_need_the_second_store_at_once_open_it_once() -> None:
    opened, faster = Mock(side_effect=MemoryStore), []
    with closing(Limiter(MemoryStore(), opened)) as limiter, pytest.MonkeyPatch.context() as patched:

        @contextmanager
        def after_another_thread() -> Iterator[None]:
            patched.undo()
            faster.append(limiter.stores.counting_in(database=True))
            yield

        patched.setattr(runtime, "changing", after_another_thread())
        found = limiter.stores.counting_in(database=True)

    assert ([found], opened.call_count) == (faster, 1)


@pytest.mark.usefixtures("a_rule_of_the_database")
def test_without_a_second_store_rules_of_the_database_count_in_the_first_in_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with forced(MemoryStore()):
        asked = calls_of(monkeypatch)
        assert check_all([(BURST, SUBJECT), (MONTH, SUBJECT)])

    assert len(asked) == 1


def test_a_forced_store_decides_whatever_the_settings_say() -> None:
    with forced(store := MemoryStore()):
        assert current_store() is store


def test_force_store_returns_the_store_that_was_forced_before() -> None:
    with forced(store := MemoryStore()):
        assert force_store(None) is store


@pytest.mark.usefixtures("states_on_sqlite")
def test_the_stores_of_a_process_are_those_of_the_rules_in_its_settings(settings: Any) -> None:
    rules = {"month": {"rate": "5/d", "store": "database"}}
    settings.QUOTA = {**settings.QUOTA, "RULES": rules, "DATABASE": "states"}

    assert [each.of_rules for each in counting_stores()] == [None, "database"]


def test_a_limiter_that_is_closed_closes_both_stores_and_the_memory_of_outages(two: Any) -> None:
    limiter, *both = two
    limiter.decide(ASKS, "check")

    with patch.object(MemoryStore, "close", autospec=True) as closed:
        limiter.close()

    assert [each.args[0] for each in closed.mock_calls] == [*both, limiter.fallback.local]


def test_a_limiter_that_is_closed_leaves_no_job_in_the_background() -> None:
    before = set(flusher._jobs)

    with closing(Limiter(Shared())) as limiter:
        during = set(flusher._jobs) - before

    assert during == {limiter.metrics, limiter.unasked, limiter.refusals, limiter.fallback.workers}
    assert set(flusher._jobs) == before


def test_a_limiter_that_is_closed_sends_nothing() -> None:
    store = MemoryStore()
    override("b 0 0 ", "*", "user:1")
    with closing(Limiter(store)) as limiter:
        for subject in (SUBJECT, "user:1"):
            limiter.decide([Ask(Rule.make("api", "5/m", daily=True), subject, 1)], "check")

    with patch.object(MemoryStore, "run", autospec=True) as asked:
        flusher.flush()

    assert [each for each in asked.call_args_list if each.args[0] is store] == []


def test_a_limiter_that_is_closed_deletes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithTables(MemoryStore):
        database: Any = Mock()

    with closing(Limiter(WithTables())) as limiter:
        cleaning = limiter.stores.first.cleaning
    assert cleaning is not None
    monkeypatch.setattr(cleaning, "_next", 0.0)

    with patch.object(stores, "delete_expired", return_value=[0]) as deleted:
        flusher.flush()

    assert not deleted.called


class Shared(MemoryStore):
    """A memory that claims to be shared between processes."""

    is_shared = True


def test_the_counts_of_a_process_are_shared_in_a_store_of_several_processes() -> None:
    with closing(Limiter(Shared())) as limiter:
        assert limiter.stores.is_shared


def test_a_limiter_that_is_closed_does_not_report_the_process_alive() -> None:
    store = Shared()
    Limiter(store).close()

    with patch.object(Shared, "run", autospec=True) as asked:
        flusher.flush()

    assert [each for each in asked.call_args_list if each.args[0] is store] == []


# --- memory -----------------------------------------------------------------------------------------------------------


def test_cleared_memory_forgets_what_the_store_has_counted() -> None:
    check("1/m", SUBJECT)

    clear_memory()

    assert peek("1/m", SUBJECT).remaining == 1


def test_cleared_memory_forgets_what_was_counted_in_an_outage() -> None:
    rule = Rule.make("local", "1/m", on_unavailable="local")
    allowed = []
    with no_answer():
        for _ in range(2):
            allowed += [check(rule, SUBJECT).allowed for _ in range(2)]
            clear_memory()

    assert allowed == [True, False] * 2


def test_cleared_memory_forgets_refusals() -> None:
    check("0/m", SUBJECT, cache_refusals=60)
    assert remembered_refusals() == 1

    clear_memory()

    assert remembered_refusals() == 0


def test_cleared_memory_forgets_what_was_taken_ahead() -> None:
    rule = Rule.make("hot", "1000/m", prefetch=True)
    with freeze(START):
        while not check(rule, SUBJECT).approximate:
            pass

        clear_memory()

        assert not check(rule, SUBJECT).approximate


def test_cleared_memory_forgets_metrics_that_wait() -> None:
    check("0/m", SUBJECT)

    clear_memory()

    assert metrics_that_wait() == (0, 0)


def test_a_shared_store_gets_the_metrics_that_wait_when_memory_is_cleared() -> None:
    with forced(Shared()):
        check("0/m", SUBJECT)
        clear_memory()

        assert metrics_that_wait() == (1, 1)


def test_memory_that_was_never_used_is_not_made_to_be_cleared() -> None:
    with forced(None), patch("django_quota.limiting.registry.Limiter", side_effect=AssertionError("it was made")):
        clear_memory()


def test_the_memory_of_outages_has_room_for_as_many_keys_as_the_settings_say(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "MEMORY_KEYS": 1_234}

    with (
        patch("django_quota.limiting.fallback.MemoryStore") as local,
        patch("django_quota.limiting.registry.MemoryStore", wraps=MemoryStore) as store,
    ):
        get_limiter()

    assert (local.call_args.kwargs, store.call_args.kwargs) == ({"max_keys": 1_234},) * 2


# --- outages ----------------------------------------------------------------------------------------------------------


def test_an_outage_that_a_decision_meets_is_counted() -> None:
    with no_answer():
        check("5/m", SUBJECT)
    check("5/m", SUBJECT)

    assert running_totals().outages == 1


def test_in_an_outage_a_rule_that_does_not_block_is_refused_beside_one_that_counts_here() -> None:
    soft = Rule.make("soft", "9/m", on_unavailable="deny", block=False)
    local = Rule.make("local", "9/m", on_unavailable="local")

    with no_answer():
        decision = check_all([(soft, SUBJECT), (local, SUBJECT)])

    assert (decision.allowed, decision.enforced, decision.rule, decision.degraded) == (False, False, "soft", True)
    assert [(each.rule, each.allowed, each.remaining) for each in decision.outcomes] == [("local", True, 8)]


def test_in_an_outage_the_rate_of_an_override_holds_and_is_named() -> None:
    override("r 0 0 5/m", "local", SUBJECT)

    with no_answer():
        [outcome] = check(Rule.make("local", "9/m", on_unavailable="local"), SUBJECT).outcomes

    assert (outcome.limit, outcome.remaining, outcome.why) == (5, 4, "override")


def test_a_memory_that_does_not_accept_its_own_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_limiter().fallback.local, "run", lambda *_: [START, RETRY_WITH])

    with no_answer(), pytest.raises(RuntimeError, match="did not accept the day or period of its own time"):
        check(Rule.make("local", "9/month", algorithm="calendar", on_unavailable="local"), SUBJECT)


def test_an_outage_goes_on_while_one_server_of_the_store_is_down(clock: Clock) -> None:
    outages = get_limiter().outages
    outages._clock = clock
    states = []
    with no_answer():
        check("5/m", SUBJECT)
    for is_healthy in (False, True):
        clock.now += 60.0
        with patch.object(MemoryStore, "all_nodes_healthy", is_healthy):
            check("5/m", SUBJECT)
        states.append(outages.is_on)

    assert states == [True, False]


# --- the clock of the store -------------------------------------------------------------------------------------------


def test_a_clock_that_differs_from_the_stores_is_corrected_by_its_first_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limiter = get_limiter()
    limiter.stores.skew = -2 * DAY
    asked = calls_of(monkeypatch)
    rule = Rule.make("api", "9/m", daily=True)

    for _ in range(2):
        assert check(rule, "user:1")

    assert len(asked) == 3
    assert abs(limiter.stores.skew) < DAY // 2


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda rule, _: check(rule, "user:1"), id="a check"),
        pytest.param(lambda _, reservation: reservation.settle(3), id="a settlement"),
        pytest.param(lambda rule, _: get_limiter().look([Ask(rule, "user:1", 1)], OverrideTable()), id="a look"),
    ],
)
def test_a_clock_that_differs_is_known_after_the_first_answer_for(
    ask: Callable[[Rule, Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each call would be made twice: for the wrong period, and for that of the store."""
    rule, store = Rule.make("api", "9/d", algorithm="calendar"), current_store()
    run = store.run
    monkeypatch.setattr(store, "run", lambda operation, _=None: run(operation, machine_now() + 2 * DAY))
    reservation = reserve(rule, "user:1", 5)
    asked = calls_of(monkeypatch)

    ask(rule, reservation)

    assert len(asked) == 1


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda rule: check(rule, "user:1"), id="a check"),
        pytest.param(lambda rule: peek(rule, "user:1"), id="a look"),
        pytest.param(lambda rule: reserve(rule, "user:1", 1), id="a reservation"),
    ],
)
def test_a_time_that_a_test_has_set_is_not_corrected_by(
    ask: Callable[[Rule], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    get_limiter().stores.skew = -2 * DAY
    asked = calls_of(monkeypatch)

    with freeze(START):
        ask(Rule.make("api", "9/m", daily=True))

    assert len(asked) == 1


def test_a_settlement_at_a_time_that_a_test_has_set_is_not_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    with freeze(START):
        reservation = reserve(Rule.make("api", "9/m", daily=True), "user:1", 5)
        get_limiter().stores.skew = -2 * DAY
        asked = calls_of(monkeypatch)

        reservation.settle(3)

    assert len(asked) == 1


def test_the_state_of_a_subject_is_looked_at_in_one_call_at_a_time_that_a_test_has_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limiter = get_limiter()
    limiter.stores.skew = -2 * DAY
    asked = calls_of(monkeypatch)

    with freeze(START):
        [standing] = limiter.look([Ask(Rule.make("api", "9/m", daily=True), "user:1", 1)], OverrideTable())

    assert standing.outcome.remaining == 9
    assert len(asked) == 1


def test_a_settlement_is_corrected_by_the_clock_of_the_store_too() -> None:
    reservation = reserve(Rule.make("api", "9/m", daily=True), "user:1", 5)
    get_limiter().stores.skew = -2 * DAY

    reservation.settle(3)

    assert units_of("user:1") == {"api": 3}


def test_a_settlement_that_comes_near_a_limit_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    written = operations_of(monkeypatch, AppendEvents)
    reservation = reserve("10/m", "user:1", 1, name="api", warn_at=0.8)

    reservation.settle(9)

    assert [(each.kind, each.share, each.remaining) for message in written for each in message.events] == [
        ("near", 800, 1)
    ]


def test_the_log_names_only_shadows_as_those_that_would_have_refused(caplog: pytest.LogCaptureFixture) -> None:
    trial = Rule.make("trial", "9/m", shadow=True)

    with caplog.at_level("INFO", logger="django_quota.rules"):
        check_all([(trial, SUBJECT), (Rule.make("full", "0/m"), SUBJECT)])

    assert caplog.messages == []


# --- observers and signals --------------------------------------------------------------------------------------------


@pytest.fixture
def heard() -> Iterator[list[Any]]:
    """The decisions that an observer gets, with the seconds that they took."""
    found: list[Any] = []

    def note(decision: Any, seconds: float | None) -> None:
        found.append((decision.allowed, seconds))

    observe(note, duration=True)
    yield found
    unobserve(note)


def request() -> Any:
    return RequestFactory().post("/", {"phone": "1"}, REMOTE_ADDR="192.0.2.7")


SITE, CODES = Rule.make("site", "9/m", key="ip"), Rule.make("codes", "9/m", key="post:phone")


@pytest.mark.parametrize(
    ("rate", "allowed"), [("9/m", True), ("0/m", False), (None, True)], ids=["allowed", "refused", "without a limit"]
)
def test_a_request_whose_body_is_read_is_one_decision(rate: Any, allowed: bool, heard: list[Any]) -> None:
    decide(request(), [SITE, Rule.make("codes", rate, key="post:phone")])

    assert [each for each, _ in heard] == [allowed]


def test_the_time_to_read_a_body_is_not_that_of_the_decision(heard: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([1_000_000_000, 2_000_000_000, 7_000_000_000])
    monkeypatch.setattr(limiter_module, "perf_counter_ns", lambda: next(moments))
    monkeypatch.setattr(metrics, "perf_counter_ns", lambda: 8_000_000_000)

    decide(request(), [SITE, CODES])

    assert heard == [(True, 2.0)]


@pytest.mark.parametrize("rules", [[], [Rule.make("free", None, key="ip")]], ids=["no rule", "a tier without a limit"])
def test_observers_are_not_called_for_what_nothing_limits(rules: list[Rule], heard: list[Any]) -> None:
    decide(request(), rules)

    assert heard == []


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda: decide(request(), [SITE]), id="a request"),
        pytest.param(lambda: decide(request(), [SITE, CODES]), id="a request whose body is read"),
    ],
)
def test_observers_and_receivers_of_signals_are_called_for_a_block(ask: Callable[[], object], heard: list[Any]) -> None:
    override("b 0 0 ", "*", "ip:192.0.2.7")
    with received(refused, signal := Mock()):
        ask()

    assert [each for each, _ in heard] == [False]
    assert [each.kwargs["subject"] for each in signal.mock_calls] == ["ip:192.0.2.7"]


def test_observers_are_not_called_for_a_look(heard: list[Any]) -> None:
    peek("9/m", SUBJECT)

    assert heard == []


def test_observers_are_called_once_for_a_slot(heard: list[Any]) -> None:
    with slot("export", 1):
        pass

    assert heard == [(True, None)]


# --- cleaning ---------------------------------------------------------------------------------------------------------


class TestCleaning:
    @pytest.fixture
    def deleted(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """The arguments of each batch; it deletes as many rows as `done` says."""
        found: list[Any] = []

        def delete(store: Any, now: int, events: Any, batch: int) -> tuple[int, int]:
            found.append((store, now, events, batch))
            return self.done

        monkeypatch.setattr(stores, "delete_expired", delete)
        monkeypatch.setattr("random.uniform", lambda low, high: high)
        self.done = (0, 0)
        return found

    @pytest.fixture
    def cleaning(self, deleted: list[Any], clock: Clock) -> Iterator[Cleaning]:
        cleaning = Cleaning(Mock(), clock)
        yield cleaning
        flusher.remove(cleaning)

    @pytest.mark.parametrize(("seconds", "batches"), [(44.5, 0), (45.0, 1)], ids=["before", "then"])
    def test_a_batch_is_due_after_at_most_45_seconds(
        self, seconds: float, batches: int, cleaning: Cleaning, clock: Clock, deleted: list[Any]
    ) -> None:
        clock.now += seconds

        cleaning.flush()

        assert len(deleted) == batches

    @pytest.mark.parametrize(
        ("done", "batches"),
        [((999, 0), 1), ((999, 999), 1), ((0, 1_000), 2)],
        ids=["no full batch", "two that are not full", "a full batch"],
    )
    def test_a_full_batch_is_followed_by_the_next_in_the_next_round(
        self, done: tuple[int, int], batches: int, cleaning: Cleaning, clock: Clock, deleted: list[Any]
    ) -> None:
        clock.now += 45.0
        self.done = done
        for _ in range(2):
            cleaning.flush()

        assert len(deleted) == batches

    def test_a_batch_has_a_thousand_rows_and_keeps_the_events_of_the_settings(
        self, cleaning: Cleaning, clock: Clock, deleted: list[Any]
    ) -> None:
        clock.now += 45.0
        with freeze(START):
            cleaning.flush()

        [(_, now, events, batch)] = deleted
        assert (now, batch) == (START, 1_000)
        assert tuple(events) == (current().events, current().event_days * DAY)

    def test_a_limiter_that_is_closed_deletes_nothing(
        self, deleted: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("random.uniform", lambda low, high: 0.0)
        store: Any = MemoryStore()
        store.database = Mock()

        with closing(Limiter(store)):
            flusher.flush()
        while_open = len(deleted)
        flusher.flush()

        assert (while_open, len(deleted)) == (1, 1)

    def test_the_process_cleans_in_its_rounds(self, cleaning: Cleaning, clock: Clock, deleted: list[Any]) -> None:
        clock.now += 45.0

        flusher.flush()

        assert len(deleted) == 1


# --- how many processes share the limits ------------------------------------------------------------------------------


class TestWorkers:
    @pytest.fixture
    def store(self) -> Mock:
        return Mock()

    @pytest.fixture
    def workers(self, store: Mock, clock: Clock) -> Iterator[Workers]:
        workers = Workers(store, clock)
        yield workers
        flusher.remove(workers)

    def known(self, workers: Workers, clock: Clock, rounds: int) -> list[int]:
        """Return how many processes are known after each round, five seconds apart."""
        found = []
        for _ in range(rounds):
            workers.flush()
            found.append(workers.number)
            clock.now += 5.0
        return found

    def test_a_process_is_alone_until_the_store_has_answered(self, workers: Workers, clock: Clock, store: Mock) -> None:
        store.run.side_effect = StoreUnavailable("it is away")

        assert self.known(workers, clock, 2) == [1, 1]

    def test_more_processes_are_known_at_once_and_fewer_after_two_answers(
        self, workers: Workers, clock: Clock, store: Mock
    ) -> None:
        store.run.side_effect = [3, 5, 2, 2, 0, 0]

        assert self.known(workers, clock, 6) == [3, 5, 5, 2, 2, 1]

    def test_in_an_outage_the_last_number_stays(self, workers: Workers, clock: Clock, store: Mock) -> None:
        store.run.side_effect = [4, StoreUnavailable("it is away"), 4]

        assert self.known(workers, clock, 3) == [4, 4, 4]

    def test_a_process_says_every_five_seconds_that_it_is_alive_for_thirty(
        self, workers: Workers, clock: Clock, store: Mock
    ) -> None:
        store.run.return_value = 1
        asked = []
        for seconds in (0.0, 4.75, 0.25, 0.0):
            clock.now += seconds
            workers.flush()
            asked.append(store.run.call_count)

        assert asked == [1, 1, 2, 2]
        _, ttl = store.run.call_args.args[0].arguments()
        assert ttl == 30 * SECOND

    def test_a_message_without_an_answer_is_repeated_in_the_next_round(
        self, workers: Workers, clock: Clock, store: Mock
    ) -> None:
        store.run.side_effect = [StoreUnavailable("it is away"), 2]
        for _ in range(2):
            workers.flush()

        assert workers.number == 2

    def test_a_forked_process_is_counted_beside_its_parent_at_once(
        self, workers: Workers, clock: Clock, store: Mock
    ) -> None:
        store.run.return_value = 1
        workers.flush()
        workers.after_fork()
        workers.flush()

        parent, child = (each.args[0].arguments()[0] for each in store.run.mock_calls)
        assert parent != child

    def test_a_process_says_that_it_is_alive_in_its_rounds(self, workers: Workers, store: Mock) -> None:
        store.run.return_value = 7

        flusher.flush()

        assert workers.number == 7


@pytest.mark.parametrize(
    ("options", "workers", "rates", "burst"),
    [
        pytest.param({}, 1, ["10/m", "101/h"], None, id="one process"),
        pytest.param({}, 3, ["3/m", "33/h"], None, id="three"),
        pytest.param({}, 11, ["1/m", "9/h"], None, id="more than hits"),
        pytest.param({"algorithm": "token_bucket", "burst": 7}, 2, ["5/m"], 3, id="a burst"),
        pytest.param({"algorithm": "token_bucket", "burst": 7}, 9, ["1/m"], 1, id="more than the burst"),
    ],
)
def test_the_part_of_a_rule_for_a_process_is(options: Any, workers: int, rates: list[str], burst: int | None) -> None:
    rule = Rule.make("parts", "10/m", *([] if options else ["101/h"]), **options)

    part = fallback.part_of(rule, workers)

    assert ([str(rate) for rate in part.rates], part.burst) == (rates, burst)


def test_a_process_that_is_alone_decides_by_the_rule_itself() -> None:
    rule = Rule.make("api", "9/m")

    assert fallback.part_of(rule, 1) is rule


def test_the_part_of_a_rate_of_nothing_is_nothing() -> None:
    assert [str(rate) for rate in fallback.part_of(Rule.make("closed", "0/m"), 3).rates] == ["0/m"]
