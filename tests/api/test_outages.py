"""While Redis does not answer, no call waits long and one log line says so; afterwards everything works by itself."""

import asyncio
import itertools
import logging
import reprlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from io import StringIO
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock, patch

import pytest
import redis
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.test import RequestFactory, override_settings
from hypothesis import given
from hypothesis import strategies as st

from django_quota import Rule, acheck, check, concurrency, counter, peek, quota, refund, reserve, slot
from django_quota.adapters import adecide, decide
from django_quota.core.clock import MAX_GUESSES
from django_quota.core.errors import (
    StoreBusy,
    StoreCommandDenied,
    StoreConnectionLost,
    StoreDataError,
    StoreFull,
    StoreOutOfMemory,
    StoreRefusesWrites,
)
from django_quota.engine.asks import Ask
from django_quota.engine.codec import RETRY_WITH, Adjust
from django_quota.exceptions import QuotaExceeded, RuleError, StoreUnavailable
from django_quota.limiting.outages import OutageReportingStore, Outages
from django_quota.limiting.overrides import overrides
from django_quota.limiting.registry import get_limiter
from django_quota.signals import store_lost
from django_quota.testing import RedisServer, clear, freeze, running_redis
from tests.support.calls import both, calls_of, get
from tests.support.counts import count_what_waits
from tests.support.inputs import inputs
from tests.support.memory import another_process_is_alive, know_of_processes
from tests.support.outages import (
    FAILURES,
    FULL,
    SETTLE_TIME,
    Mute,
    ask,
    fail,
    heard,
    log_everything_again,
    new_outages,
    no_answer,
    with_clock,
)
from tests.support.processes import ended, forks, processes, started
from tests.support.signals import received
from tests.support.steps import SECOND, START, Clock
from tests.support.stores import caches, current_store, spy

SUBJECT = "ip:203.0.113.9"


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("step", [1, -1], ids=["the last rule denies", "the first rule denies"])
def test_a_store_that_is_not_asked_any_more_leaves_the_decision_to_all_rules(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: Any = {"open": "allow", "shut": "deny"}
    rules = [Rule.make(name, "9/m", on_unavailable=way) for name, way in ways.items()][::step]
    with no_answer():
        decide(get(), rules)
        monkeypatch.setattr(current_store(), "is_refusing", lambda: True)

        decision = decide(get(), rules)

    assert (decision.enforced, decision.degraded, decision.rule) == (True, True, "shut")


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("act", "left"),
    [
        pytest.param(lambda **options: peek("3/m", SUBJECT, **options), 2, id="a look takes nothing"),
        pytest.param(lambda **options: refund("3/m", SUBJECT, **options), 3, id="a refund gives back"),
        pytest.param(lambda **options: check("3/m", SUBJECT, 9, force=True, **options), 0, id="a forced hit counts"),
    ],
)
def test_a_process_decides_by_itself_what_a_store_would(act: Any, left: int) -> None:
    with freeze(START), no_answer():
        check("3/m", SUBJECT, on_unavailable="local")
        act(on_unavailable="local")

        assert peek("3/m", SUBJECT, on_unavailable="local").remaining == left


@both
class TestAServerThatHangs:
    @pytest.fixture
    def met(self, kind: str, mute: Mute, clock: Clock) -> int:
        """How many callers have met the server until nobody asked it any more."""
        with_clock(clock)
        assert all(decision.allowed and decision.degraded for decision in ask(kind, 50))
        return mute.met

    @pytest.mark.thorough("slow")
    def test_is_asked_by_few(self, met: int) -> None:
        assert met <= FAILURES

    @pytest.mark.thorough("slow")
    @pytest.mark.parametrize("is_async", [False, True], ids=["by sync code", "by async code"])
    def test_is_not_asked_again_for_a_check(self, is_async: bool, met: int, mute: Mute) -> None:
        decision = asyncio.run(acheck("1/m", SUBJECT)) if is_async else check("1/m", SUBJECT)

        assert (decision.allowed, decision.degraded, decision.rule, decision.subject) == (True, True, "1/m", SUBJECT)
        assert mute.met == met

    @pytest.mark.thorough("slow")
    def test_degrades_no_rule_without_a_limit(self, met: int, mute: Mute) -> None:
        assert not check(Rule.make("unlimited", None), SUBJECT).degraded
        assert not decide(get(), []).degraded
        assert mute.met == met

    @pytest.mark.thorough("slow")
    @pytest.mark.parametrize(("said", "allowed"), [("deny", [False, False]), ("local", [True, False])])
    def test_leaves_the_decision_to_the_rule(self, said: Any, allowed: list[bool], met: int, mute: Mute) -> None:
        assert [check("1/m", SUBJECT, on_unavailable=said).allowed for _ in range(2)] == allowed
        assert mute.met == met

    @pytest.mark.thorough("slow")
    def test_is_not_asked_again_for_a_counter(self, met: int, mute: Mute) -> None:
        with pytest.raises(StoreUnavailable, match="several times in a row"):
            counter("clicks").incr("user:1")
        assert mute.met == met

    @pytest.mark.thorough("slow")
    def test_is_not_asked_again_for_a_request(self, kind: str, met: int, mute: Mute) -> None:
        rules = [Rule.make("a", "1/m"), Rule.make("b", "1/m", on_unavailable="allow")]

        with no_answer(AssertionError("the store was asked")):  # type: ignore[arg-type]
            allowed = decide(get(), rules) if kind == "sync" else asyncio.run(adecide(get(), rules))

        assert (allowed.allowed, allowed.degraded, allowed.rule, allowed.outcomes) == (True, True, "a", ())
        assert mute.met == met

    @pytest.mark.thorough("slow")
    def test_is_probed_by_one_caller_after_a_second(self, kind: str, met: int, mute: Mute, clock: Clock) -> None:
        clock.now += 1
        ask(kind, 10)

        assert mute.met == met + 1


@both
def test_decisions_recover_when_redis_is_back(
    kind: str, redis_cache: RedisServer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    store = with_clock(clock)
    with heard() as reported:
        fail(store.server.breaker)
        assert ask(kind)[0].degraded

        clock.now += 1
        assert not any(decision.degraded for decision in ask(kind, 4))

    assert [what for what, _ in reported] == ["lost", "back"]
    assert "answers again, after" in caplog.text


@both
def test_async_receivers_hear_of_an_outage(kind: str, redis_cache: RedisServer, clock: Clock) -> None:
    store, told = with_clock(clock), list[str]()

    async def lost(**carried: Any) -> None:
        told.append(carried["reason"])

    fail(store.server.breaker)
    with received(store_lost, lost):
        assert ask(kind)[0].degraded

    assert len(told) == 1


def test_a_late_settlement_charges_nothing_in_this_process(redis_server: RedisServer, settings: Any) -> None:
    with running_redis(redis_server.program) as server, freeze(START):
        settings.CACHES = caches(server)
        reservation = reserve("9/m", "user:1", 5, on_unavailable="local")
    with freeze(START + 2 * SECOND):
        assert reservation.settle(7).degraded
        assert check("9/m", "user:1", on_unavailable="local").remaining == 8


@pytest.mark.thorough("slow")
@both
@pytest.mark.parametrize(
    ("rule", "setting", "processes", "admitted"),
    [(None, None, 3, 3), (None, "allow", 1, 9), (None, "deny", 1, 0), ("allow", None, 1, 30), ("deny", None, 1, 0)],
)
def test_a_client_that_fills_the_memory_of_redis_does_not_switch_the_limits_off(
    kind: str, rule: Any, setting: str | None, processes: int, admitted: int, redis_server: RedisServer, settings: Any
) -> None:
    """Each process counts its part unless the rule says otherwise or the setting denies."""
    settings.QUOTA = {"ON_UNAVAILABLE": setting} if setting else {}
    limit = Rule.make("r", "9/m", on_unavailable=rule)

    async def acheck_all() -> list[Any]:
        return [await acheck(limit, "user:1") for _ in range(30)]

    with running_redis(redis_server.program) as server, redis.Redis.from_url(server.url) as client:
        settings.CACHES = caches(server)
        assert not check("9/m", "ip:192.0.2.9").degraded
        know_of_processes(processes)
        client.execute_command(*FULL)
        decisions = asyncio.run(acheck_all()) if kind == "async" else [check(limit, "user:1") for _ in range(30)]
    assert all(decision.degraded for decision in decisions)
    assert sum(decision.allowed for decision in decisions) == admitted
    assert admitted in (0, 30) or decisions[-1].binding is not None  # a real refusal with its wait, and no 503


WITHOUT_SCRIPTS = {
    "renamed": ("--rename-command", "EVALSHA", "", "--rename-command", "EVAL", ""),
    "not permitted": ("--user", "default", "on", "nopass", "~*", "&*", "+@all", "-@scripting"),
}


@pytest.fixture(scope="module", params=WITHOUT_SCRIPTS.values(), ids=list(WITHOUT_SCRIPTS))
def without_scripts(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[RedisServer]:
    with running_redis(redis_server.program, *request.param) as server:
        yield server


@pytest.mark.parametrize("call", [check, lambda *given: asyncio.run(acheck(*given))], ids=["sync", "async"])
class TestAServerThatRunsNoScripts:
    @pytest.fixture(autouse=True)
    def only_server(self, without_scripts: RedisServer, settings: Any) -> None:
        settings.CACHES = caches(without_scripts)

    def test_is_logged(self, call: Any, caplog: pytest.LogCaptureFixture) -> None:
        assert call("5/m", "ip:203.0.113.9").degraded

        (record,) = caplog.records
        assert "this server runs no scripts of ours, so no limit is decided" in record.getMessage()
        assert "Permit EVALSHA and EVAL" in record.getMessage()

    def test_is_reported_by_quota_status(self, call: Any) -> None:
        call("5/m", "ip:203.0.113.9")
        notes = StringIO()

        with pytest.raises(CommandError, match="runs no scripts of ours"):
            call_command("quota_status", "global", stderr=notes)

        assert "so nothing is limited" in notes.getvalue()

    def test_leaves_the_decision_to_on_unavailable(self, call: Any, settings: Any) -> None:
        settings.QUOTA = {"ON_UNAVAILABLE": "deny"}

        assert not call("5/m", "ip:203.0.113.9")


@both
@pytest.mark.parametrize(("said", "admitted"), [(None, 3), ("allow", 3), ("local", 3), ("deny", 0)])
@pytest.mark.usefixtures("redis_cache")
def test_a_client_that_keeps_a_process_busy_does_not_switch_the_limits_off(
    kind: str, said: Any, admitted: int, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    store, rule = with_clock(clock), Rule.make("r", "3/m", on_unavailable=said)

    async def acheck_all() -> list[Any]:
        return [await acheck(rule, "user:1") for _ in range(9)]

    with heard() as reported, no_answer(StoreBusy("all connections are in use")):
        decisions = asyncio.run(acheck_all()) if kind == "async" else [check(rule, "user:1") for _ in range(9)]
    assert sum(decision.allowed for decision in decisions) == admitted
    assert all(decision.degraded for decision in decisions)
    assert (reported, store.server.breaker.has_failed) == ([], False)
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # once a minute


@pytest.mark.parametrize(
    ("setting", "said", "admitted"),
    [(None, None, 2), ("allow", None, 2), (None, "allow", 9), (None, "deny", 0), ("deny", None, 0)],
)
@pytest.mark.parametrize("what", ["a field of the body", "a reservation"])
@pytest.mark.usefixtures("redis_cache")
def test_what_must_not_be_free_counts_in_the_process_while_redis_is_away(
    what: str, setting: str | None, said: Any, admitted: int, settings: Any
) -> None:
    settings.QUOTA = {"ON_UNAVAILABLE": setting} if setting else {}
    key = "post:phone" if what == "a field of the body" else "ip"
    rule = Rule.make("r", "2/m", key=key, on_unavailable=said)

    def take() -> bool:
        if key != "ip":
            return bool(check(rule, "post.phone:1"))
        try:
            reserve(rule, "user:1")
        except QuotaExceeded:
            return False
        return True

    with no_answer():
        assert sum(take() for _ in range(9)) == admitted


# --- reports: one at the start, one at the end, and a key of another type is no outage --------------------------------

GONE, NO_MEMORY = StoreUnavailable("gone"), StoreOutOfMemory("OOM")


@pytest.fixture(autouse=True)
def nothing_was_logged() -> None:
    log_everything_again()


numbers = itertools.count()


def ask_once(error: StoreUnavailable | None = None) -> None:
    """Check a limit that was never asked; where there is an error, the store does not answer."""
    with no_answer(error) if error else nullcontext():
        check("9/m", f"user:{next(numbers)}")


def test_a_store_that_answers_every_other_call_has_one_outage(
    memory_store: None, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    new_outages(clock)
    with heard() as reported:
        for _ in range(100):
            ask_once()
            ask_once(GONE)
            clock.now += SETTLE_TIME / 10
            ask_once()
        assert [(what, carried.get("seconds")) for what, carried in reported] == [("lost", None)]

        clock.now += SETTLE_TIME
        ask_once()

    assert (reported[1][0], reported[1][1]["seconds"]) == ("back", pytest.approx(11 * SETTLE_TIME))
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: check("9/m", "user:1"), id="a check"),
        pytest.param(lambda: counter("downloads", ttl=60).incr("user:1"), id="a counter"),
        pytest.param(lambda: asyncio.run(counter("downloads", ttl=60).aincr("user:1")), id="a counter, async"),
    ],
)
def test_a_full_memory_store_is_no_outage(call: Callable[[], object], memory_store: None) -> None:
    with heard() as reported, no_answer(StoreFull()), suppress(StoreUnavailable):
        call()

    assert reported == []


@both
def test_store_lost_carries_the_reason(kind: str, memory_store: None, clock: Clock) -> None:
    new_outages(clock)
    with heard() as reported, no_answer(GONE):
        ask(kind)

    assert reported == [("lost", {"signal": store_lost, "sender": None, "reason": "gone"})]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        pytest.param(GONE, "Rules decide by on_unavailable until it answers again.", id="no answer"),
        pytest.param(
            NO_MEMORY,
            "Redis is full: until it accepts changes again, each process counts by itself for rules that do not say "
            'on_unavailable, unless ON_UNAVAILABLE says "deny".',
            id="no memory",
        ),
    ],
)
def test_the_log_says_how_rules_decide_in_an_outage(
    error: StoreUnavailable, line: str, memory_store: None, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    new_outages(clock)

    ask_once(error)

    assert caplog.messages == [f"The quota store is unavailable: {error.reason}. {line}"]


def test_the_log_says_how_long_an_outage_was(
    memory_store: None, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    new_outages(clock)
    ask_once(GONE)
    clock.now += 4.2

    ask_once()

    assert caplog.messages[-1] == "The quota store answers again, after 4.2 s."


def test_one_lost_connection_is_no_outage(memory_store: None, clock: Clock) -> None:
    new_outages(clock)
    with heard() as reported:
        for _ in range(3):
            ask_once(StoreConnectionLost("reset by peer"))
            clock.now += SETTLE_TIME * 1.1

    assert reported == []


def test_two_lost_connections_in_a_row_are_an_outage(memory_store: None, clock: Clock) -> None:
    new_outages(clock)
    with heard() as reported:
        ask_once(StoreConnectionLost("reset by peer"))
        ask_once(StoreConnectionLost("reset by peer"))

    assert [what for what, _ in reported] == ["lost"]


@given(st.lists(st.tuples(st.sampled_from(["gone", "full", "wrote", "read"]), st.floats(0, 3))))
def test_each_store_lost_has_one_store_back(happenings: list[tuple[str, float]]) -> None:
    clock, last_failure, is_full = Clock(), 0.0, False
    too_early, by_a_read = [], []

    with override_settings(QUOTA={"STORE": "memory"}), heard() as reported:
        new_outages(clock)
        for what, later in happenings:
            clock.now += later
            before = len(reported)
            match what:
                case "gone" | "full":
                    ask_once(GONE if what == "gone" else NO_MEMORY)
                    last_failure, is_full = clock.now, is_full or what == "full"
                case "wrote":
                    ask_once()
                case "read":
                    peek("9/m", "user:1")
            if reported[before:] and reported[-1][0] == "back":
                too_early.append(clock.now < last_failure + SETTLE_TIME)
                by_a_read.append(what == "read" and is_full)
                is_full = False

    assert [what for what, _ in reported] == (["lost", "back"] * len(reported))[: len(reported)]
    assert not any(too_early)
    assert not any(by_a_read), "a read says nothing of writing"


BAN = {"after": "100/m", "for": "1h"}


@pytest.mark.parametrize("what", ["r:9/m:sw.60s", "s", "day:2025-11-21", "l:export-0"])
@both
class TestAKeyOfAnotherType:
    @pytest.fixture
    def reported(self, what: str, kind: str, redis_cache: RedisServer, raw: Any) -> list[Any]:
        """Five calls meet the key: the outages that they report."""
        subject = "global" if "export" in what else "user:1"
        call = check if kind == "sync" else async_to_sync(acheck)
        degraded = []
        with heard() as reported, freeze(START):
            raw.set(f"quota:1:{{{subject}}}:{what}", "alien")
            for _ in range(5):
                if subject == "global":
                    with pytest.raises(StoreUnavailable):
                        written(kind, "slot", 0)
                else:
                    degraded += [(call("9/m", subject, ban=BAN).degraded, peek("9/m", "user:2", ban=BAN).degraded)]
        assert degraded == [(True, False)] * len(degraded)
        return reported

    def test_is_no_outage(self, reported: list[Any]) -> None:
        assert reported == []

    def test_is_logged_once(self, what: str, reported: list[Any], caplog: pytest.LogCaptureFixture) -> None:
        setup = [record for when in ("setup", "call") for record in caplog.get_records(when)]

        (line,) = [record.getMessage() for record in setup if record.levelno >= logging.WARNING]

        assert ("global" if "export" in what else "user:1") in line
        assert "WRONGTYPE" in line


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(b"OK", id="a string"),
        pytest.param((START, 0, 1, 8, 0, 0, 0), id="a tuple"),
        pytest.param([], id="nothing"),
        pytest.param([START, 0, 1, 8], id="half of it"),
        pytest.param([START, 0, 1, 8, 0, 0, 0, 1, 0, 0], id="a flag of another hit"),
    ],
)
def test_what_is_no_reply_to_a_decision_decides_as_an_outage_would(
    reply: object, memory_store: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A proxy may answer in place of Redis."""
    monkeypatch.setattr(current_store(), "run", lambda *_: reply)

    decision = check("9/m", "user:1", on_unavailable="deny")

    assert (decision.degraded, decision.allowed) == (True, False)
    assert f"the reply to a decision cannot be read: {reprlib.repr(reply)}" in caplog.text


def test_a_store_whose_clock_never_agrees_is_not_asked_for_ever(
    memory_store: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = Mock(return_value=[START, RETRY_WITH])
    monkeypatch.setattr(current_store(), "run", asked)

    decision = check("9/month", "user:1", algorithm="calendar", on_unavailable="deny")

    assert (decision.degraded, decision.allowed, asked.call_count) == (True, False, MAX_GUESSES)
    assert "the store's clock kept crossing the end of a day or period" in caplog.text


@quota("9/m", key="ip", name="exports")
@concurrency(1, key="global", name="export")
def exports(request: Any) -> HttpResponse:
    return HttpResponse()


def test_what_a_refused_request_could_not_give_back_is_logged(
    memory_store: None, rf: RequestFactory, caplog: pytest.LogCaptureFixture
) -> None:
    def lose(operation: Any) -> None:
        if isinstance(getattr(operation, "mode", None), Adjust):
            raise StoreUnavailable("it is gone")

    with slot("export", 1), pytest.MonkeyPatch.context() as patched:
        spy(patched, before=lose)
        response = exports(rf.get("/", REMOTE_ADDR="192.0.2.1"))

    assert response.status_code == 429
    assert "A refused request stays counted under some of its limits: the store did not answer." in caplog.messages
    assert peek("9/m", "ip:192.0.2.1", name="exports").used == 1


WRITES: dict[str, Callable[[int], tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]]] = {
    "counter": lambda _: (counter("hits").incr, counter("hits").aincr, ("user:1",)),
    "unique": lambda n: (counter("seen").unique, counter("seen").aunique, ("user:1", f"{n}")),
    "slot": lambda n: (slot(f"export-{n}", 3).acquire, slot(f"export-{n}", 3).aacquire, ()),
}


def written(kind: str, what: str, number: int) -> None:
    write, awrite, given = WRITES[what](number)
    asyncio.run(awrite(*given)) if kind == "async" else write(*given)


@pytest.mark.parametrize("what", WRITES)
@both
def test_an_outage_that_only_a_service_meets_is_reported_once(
    kind: str, what: str, redis_cache: RedisServer, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    counter("stock").set("sku:1", 9)
    clock, found = Clock(), []
    outages = new_outages(clock)
    written(kind, what, 0)

    raw.config_set("maxmemory", 1)
    try:
        for number in range(3):
            with pytest.raises(StoreUnavailable):
                written(kind, what, number + 1)
            clock.now += 10
            read = counter("stock").get("sku:1")  # which says nothing of writing
            moved = counter("stock").transfer("sku:1", "sku:1", 1)  # nor does this
            found.append((read > 0, bool(moved), outages.is_on))
    finally:
        raw.config_set("maxmemory", 0)
    written(kind, what, 9)

    assert found == [(True, True, True)] * 3
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


class TestWhenAnOutageEnds:
    @pytest.fixture
    def outages(self, clock: Clock) -> Outages:
        return Outages(clock)

    def is_over_after(self, outages: Outages, clock: Clock, seconds: float, *, wrote: bool = True) -> bool:
        clock.now += seconds
        outages.answered(wrote=wrote)
        return not outages.is_on

    def test_a_minute_after_a_denied_command_though_another_failure_follows(
        self, outages: Outages, clock: Clock
    ) -> None:
        outages.failed(StoreCommandDenied("no permission"), [])
        outages.failed(StoreUnavailable("it is gone"), [])

        assert [self.is_over_after(outages, clock, seconds) for seconds in (59.5, 0.5)] == [False, True]

    def test_a_second_after_a_failure_though_a_command_was_denied_in_an_earlier_outage(
        self, outages: Outages, clock: Clock
    ) -> None:
        outages.failed(StoreCommandDenied("no permission"), [])
        assert self.is_over_after(outages, clock, 60)

        outages.failed(StoreUnavailable("it is gone"), [])

        assert self.is_over_after(outages, clock, 1)

    def test_by_an_answer_to_a_read_though_writes_were_refused_in_an_earlier_outage(
        self, outages: Outages, clock: Clock
    ) -> None:
        outages.failed(StoreRefusesWrites("it is a replica"), [])
        assert self.is_over_after(outages, clock, 1)

        outages.failed(StoreUnavailable("it is gone"), [])

        assert self.is_over_after(outages, clock, 1, wrote=False)

    def test_by_an_answer_to_a_write_if_writes_were_refused_before_the_last_failure(
        self, outages: Outages, clock: Clock
    ) -> None:
        outages.failed(StoreRefusesWrites("it is a replica"), [])
        outages.failed(StoreUnavailable("it is gone"), [])

        assert [self.is_over_after(outages, clock, 1, wrote=wrote) for wrote in (False, True)] == [False, True]


def test_the_line_of_an_outage_has_one_full_stop_after_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    Outages(Clock()).failed(StoreUnavailable("it is gone."), [])

    assert caplog.messages == [
        f"{StoreUnavailable('it is gone')}. Rules decide by on_unavailable until it answers again."
    ]


@pytest.mark.parametrize(("seconds", "is_outage"), [(1.0, True), (1.5, False)], ids=["within a second", "later"])
def test_two_lost_connections_are_an_outage_if_they_are_close(clock: Clock, seconds: float, is_outage: bool) -> None:
    outages = Outages(clock)
    outages.failed(StoreConnectionLost("it was cut"), [])
    clock.now += seconds

    outages.failed(StoreConnectionLost("it was cut"), [])

    assert outages.is_on is is_outage


def test_a_lost_connection_makes_an_outage_longer(clock: Clock) -> None:
    outages = Outages(clock)
    outages.failed(StoreUnavailable("it is gone"), [])
    clock.now += 1.5
    outages.failed(StoreConnectionLost("it was cut"), [])
    clock.now += 0.5

    outages.answered()

    assert outages.is_on


@both
def test_a_call_beside_decisions_signals_that_the_store_is_lost_and_back(kind: str, clock: Clock) -> None:
    run = Mock(side_effect=[StoreUnavailable("it is gone"), 1])
    layer = OutageReportingStore(Mock(run=run, arun=AsyncMock(side_effect=run)), Outages(clock))
    operation: Any = Mock(keys=["a"])

    def call() -> Any:
        return layer.run(operation) if kind == "sync" else asyncio.run(layer.arun(operation))

    with heard() as reported:
        with pytest.raises(StoreUnavailable):
            call()
        clock.now += SETTLE_TIME
        call()

    assert [(what, carried.get("reason"), carried.get("seconds")) for what, carried in reported] == [
        ("lost", "it is gone", None),
        ("back", None, SETTLE_TIME),
    ]


def test_a_process_that_stays_too_busy_says_so_once_a_minute(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    outages, logged = Outages(clock), []

    for seconds in (0, 59.5, 0.5):
        clock.now += seconds
        outages.failed(StoreBusy("all connections are in use"), [])
        logged.append(len(caplog.messages))

    assert logged == [1, 1, 2]


@pytest.mark.parametrize(
    ("error", "subjects", "level", "line"),
    [
        pytest.param(
            StoreBusy("all connections are in use."),
            ["user:1"],
            "WARNING",
            "This process has more requests than it can ask the quota store about: all connections are in use. Those "
            'that got no answer are counted in its memory, except for rules with on_unavailable="deny". Run more '
            "processes.",
            id="too many requests",
        ),
        pytest.param(
            StoreDataError("it is a list."),
            ["user:1", "user:2", "user:1"],
            "ERROR",
            "Unexpected data in the store for 'user:1' and 'user:2': it is a list. Rules decide by on_unavailable "
            "until it is deleted.",
            id="data of another program",
        ),
        pytest.param(
            StoreCommandDenied("no permission to run ZADD."),
            ["user:1"],
            "ERROR",
            "Redis does not permit a command: no permission to run ZADD. Calls that need it fail, or are decided by "
            "on_unavailable; everything else works.",
            id="a command that decisions do not need",
        ),
    ],
)
def test_a_failure_that_is_no_outage_has_one_line_in_the_log(
    error: StoreUnavailable, subjects: list[str], level: str, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    outages = Outages(Clock())

    announced = [outages.failed(error, subjects, is_decision=False) for _ in range(2)]

    assert (announced, outages.is_on) == ([[], []], False)
    assert [(each.name, each.levelname, each.getMessage()) for each in caplog.records] == [
        ("django_quota.store", level, line)
    ]


@pytest.mark.usefixtures("memory_store")
def test_data_of_another_program_is_logged_with_the_subject_of_the_decision_that_met_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log_everything_again()

    with patch.object(current_store(), "run", side_effect=StoreDataError("it is a list")):
        check("5/m", "user:77")

    assert "Unexpected data in the store for 'user:77': it is a list. " in caplog.text


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("error", "is_outage"),
    [(StoreUnavailable, True), (StoreFull, False), (StoreCommandDenied, False), (StoreDataError, False)],
)
def test_an_error_that_leaves_a_view_is_an_outage_unless_it_was_reported_where_it_arose(
    error: type[StoreUnavailable], is_outage: bool
) -> None:
    get_limiter().note_failure(error("it has a reason"))

    assert get_limiter().outages.is_on is is_outage


@pytest.mark.usefixtures("redis_cache")
def test_a_look_at_limits_raises_while_the_store_does_not_answer() -> None:
    asks = [Ask(Rule.make("local", "9/m", on_unavailable="local"), "user:1", 0)]

    with no_answer(), pytest.raises(StoreUnavailable, match="did not say what is left"):
        get_limiter().look(asks, overrides.table)


class TestAServiceWhoseCallFails:
    """A counter, for example: it raises the error to its caller."""

    def fail(self, error: StoreUnavailable, keys: list[str]) -> Outages:
        outages = Outages()
        store: Any = Mock(run=Mock(side_effect=error))
        with pytest.raises(StoreUnavailable):
            OutageReportingStore(store, outages).run(cast("Any", SimpleNamespace(keys=keys)))
        return outages

    def test_begins_no_outage_if_a_command_is_denied_that_decisions_do_not_need(self) -> None:
        assert not self.fail(StoreCommandDenied("no permission to run ZADD"), ["a"]).is_on

    def test_names_three_of_its_keys_at_most(self, caplog: pytest.LogCaptureFixture) -> None:
        log_everything_again()

        self.fail(StoreDataError("a wrong type"), ["a", "b", "c", "d"])

        assert "in the store for 'a' and 'b' and 'c': a wrong type." in caplog.text

    def test_names_each_key_once(self, caplog: pytest.LogCaptureFixture) -> None:
        log_everything_again()

        self.fail(StoreDataError("a wrong type"), ["a", "a", "b"])

        assert "in the store for 'a' and 'b': a wrong type." in caplog.text


# --- how many processes share the limits: learned while Redis answers, used when it does not --------------------------

INTERVAL, TTL = 5, 30 * SECOND
"""A process says every five seconds that it is alive, and counts for thirty."""

WORKERS = "quota:1:{!}:workers"


def admitted(rule: str | Rule = "60/m", subject: str = "user:1", hits: int = 61) -> int:
    """Return how many hits this process admits by itself while Redis does not answer."""
    with no_answer():
        return sum(check(rule, subject).allowed for _ in range(hits))


@pytest.fixture
def share(redis_cache: object, clock: Clock) -> Iterator[Any]:
    """Let five seconds pass and a round of the background thread; return this process's share of sixty."""
    with_clock(clock)
    subjects = iter(range(100))

    def after(now: int = START) -> int:
        clock.now += INTERVAL
        with freeze(now):
            count_what_waits()
            return admitted(Rule.make("local", "60/m", on_unavailable="local"), f"user:{next(subjects)}")

    with freeze(START):
        yield after


def test_processes_share_a_limit_until_they_have_been_silent_for_long(share: Any, raw: redis.Redis) -> None:
    assert share() == 60
    another_process_is_alive()
    another_process_is_alive()
    assert [share(), share(START + TTL - 1), share(START + TTL)] == [20, 20, 20]
    assert share(START + TTL) == 60  # a lower number counts when it comes twice
    another_process_is_alive()
    assert share() == 30  # a higher one at once
    raw.delete(WORKERS)  # the others report again within the interval
    assert [share(), share()] == [30, 60]


@forks
def test_a_forked_process_is_one_more(share: Any, raw: redis.Redis) -> None:
    share()
    with processes() as children:
        children.append(started(count_what_waits))
        assert ended(children) == [0]
    assert raw.zcard(WORKERS) == 2
    assert 0 < raw.pttl(WORKERS) <= 30_000 + 3_600_000  # an hour longer, since the test sets the time


@pytest.mark.usefixtures("redis_cache")
def test_a_process_says_every_five_seconds_that_it_is_alive(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    with_clock(clock)
    workers: Any = get_limiter().fallback.workers
    workers.flush()
    asked, found = calls_of(monkeypatch), []

    for seconds in (INTERVAL - 0.5, 0.5):
        clock.now += seconds
        workers.flush()
        found.append(len(asked))

    assert found == [0, 1]


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(
    ("rate", "options", "hits"),
    [
        pytest.param("0/m", {}, 0, id="nothing of nothing"),
        pytest.param("1/m", {}, 1, id="at least one hit"),
        pytest.param("5/m", {}, 2, id="rounded down"),
        pytest.param("600/h", {"algorithm": "token_bucket", "burst": 20}, 10, id="half of a burst"),
        pytest.param("3/300d", {"algorithm": "token_bucket", "burst": 36}, 36, id="all, where half is too slow"),
    ],
)
def test_what_one_of_two_processes_admits_by_itself(rate: str, options: dict[str, Any], hits: int) -> None:
    know_of_processes(2)

    with freeze(START):
        assert admitted(Rule.make("half", rate, on_unavailable="local", **options)) == hits


RATES = st.builds("{}/{}".format, st.integers(0, 50), st.sampled_from(["s", "m", "h", "5m"]))


@inputs(60)
@given(rates=st.lists(RATES, min_size=1, max_size=3), number=st.integers(1, 60))
def test_together_they_admit_no_more_than_the_rule_or_one_each(rates: list[str], number: int) -> None:
    try:
        rule = Rule.make("r", *rates, on_unavailable="local")
    except RuleError:
        return
    know_of_processes(number)
    clear()
    with freeze(START):
        mine = admitted(rule)
    least = min(int(rate.partition("/")[0]) for rate in rates)
    assert mine == max(least // number, min(least, 1))
