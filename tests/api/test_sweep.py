"""The sweep drops what has expired, keeps everything else, and no call takes long."""

import io
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock, patch

import pytest
import redis
from django.core.management import CommandError, call_command
from django.core.management.base import OutputWrapper
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from django_quota import counter, reserve
from django_quota.core.errors import StorePermissionDenied
from django_quota.core.keys import KEY_KINDS, counter_key, key_of, subject_base, system_key
from django_quota.exceptions import StoreUnavailable
from django_quota.management.console import progress
from django_quota.operating import sweep as sweeping
from django_quota.operating.sweep import Sweeper, SweepReport
from django_quota.stores.redis.store import RedisStore
from django_quota.stores.scanning import Patience
from django_quota.testing import freeze
from tests.support.commands import ROOT, Manage, Terminal, json_of, managing, said, wait_until
from tests.support.inputs import inputs
from tests.support.outages import mostly_late, no_answer
from tests.support.steps import SECOND, START
from tests.support.stores import caches, redis_store

HOUR = 3_600

pytestmark = pytest.mark.usefixtures("redis_cache")
POSITION = system_key("quota", "sweep")  # where a sweep was stopped
DROPPED = {"r", "b", "a", "l", "bans"}  # the kinds of keys whose expired entries are dropped


@pytest.fixture
def manage(redis_server: Any, raw: redis.Redis, tmp_path: Path) -> Iterator[Manage]:
    with managing(tmp_path, caches(redis_server, decode_responses=True)) as started:
        yield started


def a_key(kind: str, name: str = "x", *more: str, subject: str = "ip:203.0.113.9") -> str:
    return key_of(subject_base("quota", subject), kind, name, *more)


def swept(
    now: int = START, *, stop: Any = None, advance: Callable[[int], object] = bool, **options: Any
) -> SweepReport:
    """Sweep at a moment, without pauses; `advance` is told how many keys each page had."""
    with freeze(now):
        return Sweeper(redis_store(), "quota", budget_ms=1_000, **options).sweep(stop or threading.Event(), advance)


def put(raw: redis.Redis, key: str, entries: dict[str, int], ttl: int | None = HOUR) -> None:
    raw.zadd(key, cast("Any", entries))
    if ttl is not None:
        raw.expire(key, ttl)


def entries_of(raw: redis.Redis, key: str) -> dict[str, int]:
    found: Any = raw.zrange(key, 0, -1, withscores=True)
    return {member.decode(): int(score) for member, score in found}


def everything(raw: Any) -> dict[bytes, tuple[Any, bool]]:
    """Return every key's content, and whether it has a TTL."""
    return {key: (raw.dump(key), raw.pttl(key) > 0) for key in raw.scan_iter()}


around = st.integers(START - 5, START + 5)
sets = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), around, min_size=1, max_size=12)
FOREIGN = ["other:1:{a}:r:x:1", "quota:2:{a}:r:x:1", "quota:1:{a}:z:x", "quota:1:a", "quota"]


def put_all(raw: redis.Redis, lying: dict[str, dict[str, int]]) -> dict[str, str]:
    """Have only these entries, by the kind of their key, every second one with a TTL; return the keys."""
    raw.flushall()
    keys = {kind: kind if kind in FOREIGN else a_key(kind, "x") for kind in lying}
    keys |= {kind: system_key("quota", kind) for kind in lying if kind == "bans"}
    for number, (kind, entries) in enumerate(lying.items()):
        put(raw, keys[kind], entries, ttl=HOUR if number % 2 else None)
    return keys


@inputs(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from([*KEY_KINDS.keys() - {"leased"}, "bans", *FOREIGN]), sets, max_size=8), around)
def test_exactly_the_expired_entries_are_removed(raw: redis.Redis, lying: dict[str, dict[str, int]], now: int) -> None:
    keys = put_all(raw, lying)

    report = swept(now)

    goes = {
        (kind, member)
        for kind, entries in lying.items()
        for member, score in entries.items()
        if score <= now and kind not in FOREIGN and kind in DROPPED
    }
    assert {kind: entries_of(raw, keys[kind]) for kind in lying} == {
        kind: {member: score for member, score in entries.items() if (kind, member) not in goes}
        for kind, entries in lying.items()
    }
    assert (report.removed, report.complete, raw.exists(POSITION)) == (len(goes), True, 0)


@inputs(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from([*KEY_KINDS.keys() - {"leased"}, "bans", *FOREIGN]), sets, max_size=8), around)
def test_a_dry_run_only_counts_what_a_sweep_removes(
    raw: redis.Redis, lying: dict[str, dict[str, int]], now: int
) -> None:
    put_all(raw, lying)
    before = everything(raw)

    dry = swept(now, dry_run=True)

    assert everything(raw) == before
    report = swept(now)
    assert (dry.keys, dry.sets, dry.removed) == (report.keys, report.sets, report.removed)


@pytest.mark.parametrize("dry_run", [True, False], ids=["a dry run", "a sweep"])
def test_leases_of_a_counter_that_have_ended_are_reported(raw: redis.Redis, dry_run: bool) -> None:
    balance = counter("credits")
    with freeze(START):
        balance.set("org:7", 1_000)
        for minutes in (10, 10, 20):
            reserve(balance, "org:7", 60, lease=f"{minutes}m")

    report = swept(START + 15 * 60 * SECOND, dry_run=dry_run)

    assert (report.sets, report.removed) == (1, 2)


class TestForeignData:
    """A sweep of two counters with ended leases: the first holds data of another program, as text in place of units."""

    LEASED = key_of(subject_base("quota", "org:7"), "leased", "credits")

    @pytest.fixture(autouse=True)
    def counters(self, raw: redis.Redis, redis_cache: object) -> None:
        balance = counter("credits")
        with freeze(START):
            for org in ("org:7", "org:8"):
                balance.set(org, 100)
                reserve(balance, org, 60, lease="10m")
        raw.set(counter_key(self.LEASED), "text")

    def test_the_report_names_it_and_the_other_counter_gets_its_units_back(self) -> None:
        report = swept(START + HOUR * SECOND)

        assert (report.foreign, report.removed, report.complete) == ([self.LEASED], 1, True)
        with freeze(START + HOUR * SECOND):
            assert counter("credits").get("org:8") == 100

    def test_it_stays_as_it_is(self, raw: redis.Redis) -> None:
        swept(START + HOUR * SECOND)

        assert raw.get(counter_key(self.LEASED)) == b"text"
        assert raw.zcard(self.LEASED) == 1

    def test_units_that_are_no_units_stay(self, raw: redis.Redis) -> None:
        raw.zadd(self.LEASED, {"a:b": START})
        raw.set(counter_key(self.LEASED), 40)

        assert swept(START + HOUR * SECOND).foreign == [self.LEASED]
        assert raw.zcard(self.LEASED) == 2

    def test_the_command_says_so(self) -> None:
        with freeze(START + HOUR * SECOND):
            printed = said("quota_sweep")

        assert printed.splitlines()[-1] == (
            f"Note: left 1 counter with data of another program or version, such as {self.LEASED}, or a key beside it."
        )


def test_a_set_that_takes_several_calls_is_counted_once(raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "ENTRIES_PER_CALL", 2)
    put(raw, a_key("r"), {str(number): START - number for number in range(5)})

    report = swept()

    assert (report.keys, report.sets, report.removed) == (1, 1, 5)


@pytest.mark.parametrize("kind", sorted(DROPPED))
def test_expired_entries_are_dropped_from_sets_that_are_scored_by_expiry(raw: redis.Redis, kind: str) -> None:
    key = system_key("quota", "bans") if kind == "bans" else a_key(kind)
    put(raw, key, {"old": START, "new": START + 1})

    swept()

    assert list(entries_of(raw, key)) == ["new"]


@pytest.mark.parametrize("kind", sorted({*KEY_KINDS} - {"leased"} - DROPPED))
def test_keys_of_other_kinds_keep_their_entries(raw: redis.Redis, kind: str) -> None:
    put(raw, key := a_key(kind), {"old": START, "new": START + 1})

    swept()

    assert list(entries_of(raw, key)) == ["old", "new"]


HOUR_MS = 3_600_000
DAY_MS = 86_400_000
SPARE = 3_600_000  # of the tests: keys live an hour longer where time is passed in


@pytest.mark.parametrize(
    ("kind", "entries", "given_ttl"),
    [
        pytest.param(
            "r", {"1:1": START + 5 * SECOND, "2:1": START + 700 * SECOND + 1}, 700_001 + SPARE, id="last entry"
        ),
        pytest.param("l", {"far": 10**18}, 315_360_000_000, id="ten years"),
        pytest.param("day", None, 8 * DAY_MS, id="day"),
        pytest.param("once", None, 400 * DAY_MS, id="once"),
        pytest.param("c", None, 400 * DAY_MS, id="a counter"),
        pytest.param("leased", {"far": 10**18}, 400 * DAY_MS, id="leases of a counter"),
        pytest.param("lately", None, HOUR_MS, id="how long slots were held"),
        pytest.param("sent", None, HOUR_MS, id="the last message of a process"),
        pytest.param("bans", {"x": START + 5 * SECOND}, 5_000 + SPARE, id="the list of bans"),
        pytest.param("events", None, 400 * DAY_MS, id="a key without a subject"),
    ],
)
def test_a_key_without_a_ttl_is_given_one(
    raw: redis.Redis, kind: str, entries: dict[str, int] | None, given_ttl: int
) -> None:
    key = system_key("quota", kind) if kind in {"bans", "events"} else a_key(kind, "x")
    client = cast("Any", raw)
    if entries is None:
        raw.set(key, "1")
    else:
        put(raw, key, entries, ttl=None)

    found = [(swept(dry_run=dry_run).repaired, client.pttl(key) == -1) for dry_run in (True, False)]

    assert found == [(1, True), (1, False)]
    assert given_ttl - 60_000 < client.pttl(key) <= given_ttl


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        pytest.param("quota:1:{ip:203.0.113.9}:r:search:60", "r", id="a limit"),
        pytest.param("quota:1:{!}:bans", "bans", id="the list of bans"),
        pytest.param("quota:1:{!}:refused:2025-11-21", "system", id="another key without a subject"),
        pytest.param("quota:1:{ip:203.0.113.9}:z:search", None, id="of a kind that we do not have"),
        pytest.param("quota:1:{ip:203.0.113.9", None, id="without a closing brace"),
        pytest.param("other:1:{ip:203.0.113.9}:r:search:60", None, id="of another prefix"),
    ],
)
def test_a_key_has_the_kind_that_its_name_says(key: str, kind: str | None) -> None:
    assert sweeping.kind_of("quota", key) == kind


def fill(raw: redis.Redis, sets_: int, entries: int = 3) -> None:
    """Write sorted sets whose entries have expired by the real clock."""
    with raw.pipeline(transaction=False) as pipeline:
        for number in range(sets_):
            key = a_key("r", "a", "60", subject=f"user:{number}")
            pipeline.zadd(key, {f"{entry}:1": entry for entry in range(1, entries + 1)})
            pipeline.expire(key, HOUR)
        pipeline.execute()


def left(raw: redis.Redis) -> int:
    return len(cast("Any", raw).keys("quota:1:{user*"))


def test_the_position_of_a_sweep_that_is_killed_expires(raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "SAVE_INTERVAL", 0.0)
    fill(raw, 4_000, entries=1)
    ttls = set[Any]()

    swept(advance=lambda _: ttls.add(raw.ttl(POSITION)))

    assert -1 not in ttls
    assert 3_590 < max(ttls) <= 3_600


def test_a_resumed_sweep_does_not_repeat_keys(raw: redis.Redis) -> None:
    fill(raw, 4_000, entries=1)
    first = stopped(3)
    assert (first.complete, raw.ttl(POSITION) > 0) == (False, True)
    second = swept()
    assert (second.resumed, second.complete, left(raw)) == (True, True, 0)
    assert first.removed + second.removed == 4_000
    assert first.keys + second.keys <= 4_000 + 1  # the position is a key itself
    raw.set(POSITION, "another-run 17")
    assert not swept().resumed


def stopped(after: int, **options: Any) -> SweepReport:
    """Sweep, and stop after some pages."""
    stop, pages = threading.Event(), list[int]()

    def advance(count: int) -> None:
        pages.append(count)
        if len(pages) == after:
            stop.set()

    return swept(stop=stop, advance=advance, **options)


class TwoServers:
    """The Redis of the test as the two servers of a Cluster, each of which has all keys."""

    def __init__(self) -> None:
        self._store = redis_store()
        self.redis = self

    def servers(self) -> list[str]:
        return ["a", "b"]

    def node_key(self, key: str, server: str) -> str:
        return f"{key}:{server}"

    def commands(self, server: str) -> Any:
        return self._store.commands()

    def run(self, *given: Any) -> Any:
        return self._store.run(*given)


def two_swept(store: Any, advance: Callable[[threading.Event], object] = bool) -> SweepReport:
    """Sweep two servers; `advance` gets what stops the sweep after each page."""
    stop = threading.Event()
    with freeze(START):
        return Sweeper(store, "quota", budget_ms=1_000).sweep(stop, lambda _: advance(stop))


def test_a_sweep_that_goes_on_at_one_of_two_servers_is_resumed(raw: redis.Redis) -> None:
    fill(raw, 4_000, entries=1)
    two_swept(TwoServers(), lambda stop: stop.set())

    report = two_swept(TwoServers())

    assert (report.resumed, report.complete, raw.exists(f"{POSITION}:a")) == (True, True, 0)


def test_a_sweep_that_is_stopped_after_the_first_of_two_servers_is_not_complete(raw: redis.Redis) -> None:
    put(raw, a_key("r"), {"x": START - 1})

    report = two_swept(TwoServers(), lambda stop: stop.set())

    assert (report.removed, report.complete, report.missed) == (1, False, 0)


def test_the_total_is_that_of_all_servers(raw: redis.Redis) -> None:
    fill(raw, 3)

    assert Sweeper(cast("Any", TwoServers()), "quota").total() == 6


class SilentFirst(TwoServers):
    """Two servers, of which the first does not answer."""

    def commands(self, server: str) -> Any:
        if server == "a":
            raise StoreUnavailable("gone")
        return super().commands(server)


@pytest.mark.parametrize("number", [3, 0], ids=["with keys on the other", "without keys"])
def test_a_silent_server_does_not_end_a_sweep_of_the_others(number: int, raw: redis.Redis) -> None:
    fill(raw, number, entries=1)

    report = two_swept(SilentFirst())

    assert (report.removed, report.missed, report.complete) == (number, 1, False)


def test_a_sweep_that_is_stopped_within_a_page_examines_it_again(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(raw, 250, entries=1)
    stop, run = threading.Event(), RedisStore.run

    def run_once(*given: Any) -> Any:
        stop.set()
        return run(*given)

    with monkeypatch.context() as patched:
        patched.setattr(RedisStore, "run", run_once)
        first = swept(stop=stop)

    assert (first.keys, first.complete) == (100, False)
    assert (swept().removed, left(raw)) == (150, 0)


def test_batches_that_are_missed_do_not_end_a_sweep_that_has_examined_others(
    raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of some slots have moved to a server that does not answer."""
    fill(raw, 250, entries=1)
    answers = chain([None], repeat(StorePermissionDenied("no EVAL")))
    run, store = RedisStore.run, TwoServers()

    def run_first(*given: Any) -> Any:
        if (error := next(answers)) is not None:
            raise error
        return run(*given)

    monkeypatch.setattr(RedisStore, "run", run_first)

    report = two_swept(store)

    assert (report.keys, report.complete, report.missed >= 2) == (100, False, True)


def test_a_sweep_after_a_complete_one_begins_at_the_first_key(raw: redis.Redis) -> None:
    fill(raw, 4_000, entries=1)
    stopped(3)
    swept()

    assert (raw.exists(POSITION), swept().resumed) == (0, False)


def test_a_dry_run_begins_at_the_first_key(raw: redis.Redis) -> None:
    fill(raw, 4_000, entries=1)
    stopped(3)
    left_over = left(raw)

    report = swept(dry_run=True)

    assert (report.resumed, report.removed) == (False, left_over)


def test_a_dry_run_that_is_stopped_saves_no_position(raw: redis.Redis) -> None:
    fill(raw, 4_000, entries=1)

    stopped(3, dry_run=True)

    assert (raw.exists(POSITION), raw.dbsize()) == (0, 4_000)


def test_a_dry_run_saves_no_position_on_its_way(raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "SAVE_INTERVAL", 0.0)
    fill(raw, 4_000, entries=1)

    swept(dry_run=True)

    assert raw.dbsize() == 4_000


def report_of(process: Any) -> dict[str, Any]:
    assert process.wait() == 0
    return json.loads(process.stdout.read())  # type: ignore[no-any-return]


@pytest.mark.thorough("processes")
def test_a_killed_sweep_is_resumed(manage: Manage, raw: redis.Redis) -> None:
    fill(raw, 6_000)
    process = manage.start("quota_sweep", "--budget-ms", "30")
    wait_until(lambda: raw.exists(POSITION))
    process.kill()
    process.wait()
    assert left(raw) > 0

    report = report_of(manage.start("quota_sweep", "--budget-ms", "1000", "--json"))

    assert (report["resumed"], report["complete"], left(raw)) == (True, True, 0)


@pytest.mark.thorough("processes")
def test_a_signal_ends_a_sweep_after_a_batch(manage: Manage, raw: redis.Redis) -> None:
    fill(raw, 6_000)
    process = manage.start("quota_sweep", "--budget-ms", "30", "--json")
    wait_until(lambda: raw.dbsize() < 5_900)

    process.send_signal(signal.SIGTERM)

    report = report_of(process)
    assert not report["complete"]
    assert report["removed"] == 3 * (6_000 - left(raw))


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("late", ["info", "get", "scan", "delete", "dbsize", "script"])
def test_late_replies_do_not_end_a_sweep(late: str, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(raw, 300)
    if late == "script":
        store = redis_store()
        monkeypatch.setattr(store, "run", mostly_late(store.run, StoreUnavailable("late")))
    else:
        monkeypatch.setattr(redis.Redis, late, mostly_late(getattr(redis.Redis, late), redis.TimeoutError("late")))
    (report,) = json_of("quota_sweep")
    assert (report["complete"], report["keys"], report["missed"]) == (True, 300, 0)


@pytest.mark.usefixtures("short_pauses")
def test_a_server_that_stays_silent_ends_a_sweep(raw: redis.Redis) -> None:
    fill(raw, 3)
    with no_answer(), pytest.raises(StoreUnavailable):
        swept()


def test_a_job_that_is_stopped_does_not_ask_again() -> None:
    stop, asked = threading.Event(), list[int]()
    stop.set()
    with pytest.raises(StoreUnavailable):
        Patience(stop)(partial(mostly_late(asked.append, StoreUnavailable("late"), done=True), 1))
    assert asked == [1]


def test_no_call_does_more_than_a_fixed_amount(raw: redis.Redis) -> None:
    fill(raw, 300, entries=50)
    client: Any = raw
    client.config_resetstat()
    limit, removed = client.config_get("slowlog-log-slower-than"), 300 * 50
    client.config_set("slowlog-log-slower-than", 0, "slowlog-max-len", 100_000)
    client.slowlog_reset()

    try:
        assert swept().removed == removed
        calls = [entry["command"].split() for entry in client.slowlog_get(100_000)]
    finally:
        client.config_set("slowlog-log-slower-than", limit["slowlog-log-slower-than"])

    scripts = [words for words in calls if words[0] == b"EVALSHA"]
    assert max(int(words[2]) for words in scripts) <= 100
    assert len(scripts) >= removed / 500
    assert client.info("commandstats")["cmdstat_scan"]["calls"] >= 300 / 500


@pytest.mark.parametrize(("budget_ms", "pause"), [(1_000, 0.0), (500, 1.0), (1, 999.0)])
def test_the_pause_after_a_call_of_a_second_keeps_the_budget(budget_ms: int, pause: float) -> None:
    sweeper, stop = Sweeper(redis_store(), "quota", budget_ms=budget_ms), Mock()
    sweeper._stop = stop
    with patch("time.perf_counter", side_effect=[5.0, 6.0]), sweeper._paced():
        pass
    assert [each.args for each in stop.wait.call_args_list] == [(pause,)]


def test_a_sweep_pauses_as_its_budget_says(raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    pause = Mock()
    monkeypatch.setattr(sweeping, "_pause", pause)

    Sweeper(redis_store(), "quota", budget_ms=30).sweep(threading.Event(), lambda _: None)

    assert {call.args[1] for call in pause.call_args_list} == {30}


class TestTheCommand:
    @pytest.fixture
    def run(self, raw: redis.Redis) -> Callable[..., Any]:
        """Sweep 1,505 entries that have expired, and two keys without a TTL."""

        def run(*words: str) -> Any:
            with freeze(START):
                return said("quota_sweep", *words, "--budget-ms", "1000")

        put(raw, a_key("r", "a", "60"), {f"{number}:1": START - number for number in range(-1, 1_500)}, ttl=None)
        put(raw, a_key("b", "a"), dict.fromkeys("abcde", START))
        raw.set(a_key("once", "x"), "1")
        return run

    @pytest.mark.parametrize(
        ("options", "removed", "gave"),
        [
            pytest.param(["--dry-run"], "Would remove", "Would give", id="a dry run"),
            pytest.param([], "Removed", "Gave", id="a sweep"),
        ],
    )
    def test_it_says_what_it_did(self, options: list[str], removed: str, gave: str, run: Callable[..., Any]) -> None:
        printed = run(*options)

        assert re.fullmatch(
            r"Examined 3 keys, 2 of them sorted sets, in [0-9.]+ s\.\n"
            rf"{removed} 1,505 expired entries\.\n{gave} a TTL to 2 keys that had none\.\n",
            printed,
        )

    def test_without_anything_to_do_it_says_no_more(self, raw: redis.Redis) -> None:
        printed = said("quota_sweep", "--budget-ms", "1000")

        assert re.fullmatch(
            r"Examined 0 keys, 0 of them sorted sets, in [0-9.]+ s\.\nRemoved 0 expired entries\.\n", printed
        )

    @pytest.mark.parametrize(
        ("options", "end"),
        [
            pytest.param(["--dry-run"], "\nStopped before the end.\n", id="a dry run"),
            pytest.param([], "\nStopped before the end. The next sweep continues from there.\n", id="a sweep"),
        ],
    )
    def test_it_says_that_it_was_stopped(
        self, options: list[str], end: str, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stop = threading.Event()
        stop.set()
        monkeypatch.setattr("django_quota.management.console.stopping", lambda: nullcontext(stop))

        assert run(*options).endswith(end)

    @pytest.mark.parametrize(
        ("report", "lines"),
        [
            pytest.param(
                SweepReport(keys=1_500, sets=1_200, removed=1, repaired=1, resumed=True, complete=True, seconds=1.26),
                [
                    "Continued where the last sweep stopped.",
                    "Examined 1,500 keys, 1,200 of them sorted sets, in 1.3 s.",
                    "Removed 1 expired entry.",
                    "Gave a TTL to 1 key that had none.",
                ],
                id="a sweep that was resumed",
            ),
            pytest.param(
                SweepReport(keys=1, sets=1, removed=2, missed=0, complete=False, seconds=0.0),
                [
                    "Examined 1 key, 1 of them sorted sets, in 0.0 s.",
                    "Removed 2 expired entries.",
                    "Stopped before the end. The next sweep continues from there.",
                ],
                id="a sweep that was stopped",
            ),
        ],
    )
    def test_it_says_what_a_sweep_has_reported(
        self, report: SweepReport, lines: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Sweeper, "sweep", lambda *_: report)

        assert said("quota_sweep").splitlines() == lines

    @pytest.mark.parametrize(
        ("missed", "parts"), [(1, "1 part"), (2, "2 parts")], ids=["one part of a Cluster", "two parts"]
    )
    def test_it_fails_if_a_part_of_a_cluster_did_not_answer(
        self, missed: int, parts: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Sweeper, "sweep", lambda *_: SweepReport(keys=1, missed=missed))

        with pytest.raises(CommandError) as raised:
            call_command("quota_sweep", stdout=(out := io.StringIO()))

        assert out.getvalue().splitlines()[-1] == "Removed 0 expired entries."
        assert str(raised.value) == (
            f"The quota store is unavailable: {parts} of the Cluster did not answer. The next sweep looks at the "
            'missing keys. It is the Redis of CACHES["default"].'
        )

    def test_on_a_terminal_it_draws_its_progress(self, run: Callable[..., Any]) -> None:
        call_command("quota_sweep", stdout=io.StringIO(), stderr=(terminal := Terminal()))

        assert terminal.getvalue().endswith(f"\rSweeping {'█' * 20} 3 of 3\n")

    @pytest.mark.parametrize(
        ("options", "given"),
        [
            pytest.param([], {"budget_ms": 100, "dry_run": False}, id="by default"),
            pytest.param(["--budget-ms", "1"], {"budget_ms": 1, "dry_run": False}, id="the least"),
            pytest.param(["--budget-ms", "1000", "--dry-run"], {"budget_ms": 1_000, "dry_run": True}, id="the most"),
        ],
    )
    def test_a_sweep_gets_the_options_of_the_command(
        self, options: list[str], given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        swept = Mock(**{"total.return_value": 0, "sweep.return_value": SweepReport(complete=True)})
        made = Mock(return_value=swept)
        monkeypatch.setattr("django_quota.management.commands.quota_sweep.Sweeper", made)

        said("quota_sweep", *options)

        assert made.call_args.kwargs == given

    @pytest.mark.thorough("slow")
    @pytest.mark.parametrize("option", [[], ["--budget-ms", "7"]], ids=["by default", "as given"])
    def test_it_takes_the_part_of_each_second_that_is_chosen(
        self, option: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = Mock(wraps=Sweeper)
        monkeypatch.setattr("django_quota.management.commands.quota_sweep.Sweeper", made)

        said("quota_sweep", *option)

        assert made.call_args.kwargs == {"budget_ms": 7 if option else 100, "dry_run": False}

    def test_json_has_each_number(self, run: Callable[..., Any]) -> None:
        report = run("--json")

        assert 0 < report.pop("seconds") < 60
        assert report == {
            "keys": 3,
            "sets": 2,
            "removed": 1_505,
            "repaired": 2,
            "foreign": [],
            "missed": 0,
            "resumed": False,
            "complete": True,
        }

    def test_a_second_sweep_finds_nothing_more(self, run: Callable[..., Any]) -> None:
        run("--dry-run")
        run()

        report = run("--json")

        assert (report["keys"], report["removed"], report["repaired"], report["complete"]) == (2, 0, 0, True)

    @pytest.mark.thorough("slow")
    @pytest.mark.parametrize("budget_ms", ["1", "1000"])
    def test_it_takes_from_a_thousandth_of_the_time_to_all_of_it(self, budget_ms: str) -> None:
        assert "Examined 0 keys" in said("quota_sweep", "--budget-ms", budget_ms)

    @pytest.mark.parametrize(
        ("option", "value", "error"),
        [
            ("--budget-ms", "0", "--budget-ms 0: use 1 to 1,000, for example 100."),
            ("--budget-ms", "1001", "--budget-ms 1001: use 1 to 1,000, for example 100."),
            ("--every", "0", "--every=0.0 is not a duration"),
            ("--every", "nan", "--every=nan is not a duration"),
        ],
    )
    def test_it_names_a_wrong_option(self, option: str, value: str, error: str) -> None:
        with pytest.raises(CommandError, match=f"^{error}"):
            call_command("quota_sweep", option, value)


class TestEvery:
    """`--every` repeats the sweep, with a pause."""

    @pytest.fixture
    def repeat(self, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
        """Sweep three times; return the reports. What expires in a pause is given."""

        def repeat(in_a_pause: Callable[[], object]) -> list[dict[str, Any]]:
            stop, pauses, written = threading.Event(), list[float](), io.StringIO()

            def wait(seconds: float) -> bool:
                if seconds == 600:  # else it is a pause within a sweep
                    pauses.append(seconds)
                    in_a_pause()
                return stop.is_set() or len(pauses) == 3

            monkeypatch.setattr(stop, "wait", wait)
            monkeypatch.setattr("django_quota.management.console.stopping", lambda: nullcontext(stop))
            call_command("quota_sweep", "--every", "10m", "--json", stdout=written, stderr=io.StringIO())
            return [json.loads(line) for line in written.getvalue().splitlines()]

        return repeat

    def test_each_sweep_is_reported(self, repeat: Callable[..., list[dict[str, Any]]]) -> None:
        assert [report["complete"] for report in repeat(lambda: None)] == [True] * 3

    def test_each_sweep_removes_what_has_expired_since_the_last(
        self, raw: redis.Redis, repeat: Callable[..., list[dict[str, Any]]]
    ) -> None:
        fill(raw, 5)

        reports = repeat(lambda: fill(raw, 2))

        assert [report["removed"] for report in reports] == [15, 6, 6]

    def test_an_outage_does_not_end_it(
        self, raw: redis.Redis, repeat: Callable[..., list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(raw, 5)
        answers = iter([StoreUnavailable("gone"), None, None])
        sweep = Sweeper.sweep

        def sometimes(sweeper: Sweeper, *given: Any) -> SweepReport:
            error = next(answers)
            if error is not None:
                raise error
            return sweep(sweeper, *given)

        monkeypatch.setattr(Sweeper, "sweep", sometimes)

        assert [report["removed"] for report in repeat(lambda: None)] == [15, 0]


@pytest.mark.thorough("processes")
def test_a_signal_ends_a_sweep_that_repeats(manage: Manage, raw: redis.Redis) -> None:
    process = manage.start("quota_sweep", "--every", "0.01", "--json")

    for _ in range(3):
        fill(raw, 5)
        wait_until(lambda: left(raw) == 0)
    reports = [json.loads(line) for line in manage.stop(process, signal.SIGINT).splitlines()]

    assert sum(report["removed"] for report in reports) == 45


@pytest.mark.parametrize(
    ("is_terminal", "total", "last"),
    [
        pytest.param(True, 2000, f"\rSweeping {'█' * 20} 2,000 of 2,000\n", id="with a total"),
        pytest.param(True, None, "\rSweeping 2,000\n", id="without a total"),
        pytest.param(False, 2000, "", id="no terminal"),
    ],
)
def test_progress_is_drawn_on_a_terminal_without_colour(is_terminal: bool, total: int | None, last: str) -> None:
    written = Terminal() if is_terminal else io.StringIO()
    wrapper = OutputWrapper(written)  # as commands have it
    wrapper.style_func = lambda text: f"<red>{text}</red>"

    with progress(wrapper, "Sweeping", total) as advance:
        advance(2000)

    assert written.getvalue().endswith(last)
    assert (bool(written.getvalue()), "red" in written.getvalue()) == (bool(last), False)


IN_A_WAIT = """
import django, signal
django.setup()
from django_quota.management.console import stopping
with stopping() as stop:
    with stop._cond:
        signal.raise_signal(signal.SIGTERM)
    assert stop.wait(60)
"""


@pytest.mark.thorough("slow")
def test_a_signal_that_comes_within_a_wait_stops_a_command(manage: Manage) -> None:
    """The handler runs in the thread that waits, and that may hold the lock of what it waits for."""
    subprocess.run([sys.executable, "-c", IN_A_WAIT], check=True, timeout=60, env=manage.environment, cwd=ROOT)
