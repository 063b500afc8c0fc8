"""The sweep drops what has expired, keeps everything else, and no call takes long."""

from __future__ import annotations

import io
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from django.core.management import CommandError, call_command
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from django_quota import check, peek
from django_quota.core.keys import KINDS, field, key_of, subject_base, system_key
from django_quota.engine.operations import DictStates
from django_quota.engine.system_operations import Sweep
from django_quota.services import sweep as sweeping
from django_quota.services.sweep import (
    ENTRIES_PER_CALL,
    KEYS_PER_CALL,
    LONG,
    SCAN_COUNT,
    SWEPT,
    Report,
    Sweeper,
    SweepTarget,
    target_of,
)
from django_quota.stores.redis.store import RedisStore
from django_quota.testing import freeze
from tests.support.commands import Manage, managing, wait_until
from tests.support.inputs import inputs
from tests.support.specifications import specify
from tests.support.steps import SECOND, START
from tests.support.stores import caches

HOUR = 3_600
BASE = subject_base("quota", "ip:203.0.113.9")
POSITION = system_key("quota", "sweep")

one_server = inputs(60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def store(redis_cache: object) -> Iterator[RedisStore]:
    store = RedisStore("default")
    yield store
    store.close()


@pytest.fixture
def manage(redis_server: Any, raw: redis.Redis, tmp_path: Path) -> Iterator[Manage]:
    with managing(tmp_path, caches(redis_server, decode_responses=True)) as started:
        yield started


def put(raw: redis.Redis, key: str, entries: dict[str, int], ttl: int | None = HOUR) -> None:
    """Write a sorted set."""
    raw.zadd(key, cast("Any", entries))
    if ttl is not None:
        raw.expire(key, ttl)


def entries_of(raw: redis.Redis, key: str) -> dict[str, int]:
    found: Any = raw.zrange(key, 0, -1, withscores=True)
    return {member.decode(): int(score) for member, score in found}


def swept(store: RedisStore, now: int = START, *, stop: threading.Event | None = None, **options: Any) -> Report:
    """Sweep at a moment, without pauses."""
    with freeze(now):
        sweeper = Sweeper(store, "quota", budget_ms=1_000, **options)
        return sweeper.sweep(stop or threading.Event(), lambda count: None)


def everything(raw: redis.Redis) -> dict[bytes, tuple[Any, bool]]:
    """Return every key's content, and whether it has a TTL."""
    keys: Any = raw.keys()
    return {key: (cast("Any", raw).dump(key), cast("Any", raw).pttl(key) > 0) for key in keys}


def expired(count: int, live: int = 0) -> dict[str, int]:
    """Return entries of a sorted set, some of which have expired at START."""
    scores = [START - number for number in range(count)] + [START + 1 + number for number in range(live)]
    return {f"{number}:1": score for number, score in enumerate(scores)}


# --- the operation ----------------------------------------------------------------------------------------------------

around = st.integers(START - 5, START + 5)
sets = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), around, max_size=12)


@one_server
@given(st.lists(st.tuples(sets, st.booleans()), min_size=1, max_size=4), around, st.integers(0, 20))
def test_script_and_specification_are_one(
    store: RedisStore, raw: redis.Redis, given_sets: list[tuple[dict[str, int], bool]], now: int, most: int
) -> None:
    raw.flushall()
    states = DictStates()
    keys = [key_of(BASE, "l", str(number)) for number in range(len(given_sets))]
    for key, (entries, _) in zip(keys, given_sets, strict=True):
        if entries:
            put(raw, key, entries)
            states.put(key, entries, START + HOUR * SECOND)
    operation = Sweep(keys, [flag for _, flag in given_sets], [1] * len(keys), most, repairs=True)
    # Where nothing lies the script can tell no sorted set, nor can the specification.
    assert store.run(operation, now) == specify(operation, states, now)
    for key in keys:
        assert entries_of(raw, key) == (states.get(key) or {})


@one_server
@given(sets.filter(bool), around, st.integers(0, 20))
def test_no_live_entry_is_removed_and_no_more_than_allowed(
    store: RedisStore, raw: redis.Redis, entries: dict[str, int], now: int, most: int
) -> None:
    raw.flushall()
    put(raw, BASE, entries)
    (found,) = Sweep.read(store.run(Sweep([BASE], [True], [1], most, repairs=False), now))
    dead = {member for member, score in entries.items() if score <= now}
    left = entries_of(raw, BASE)
    assert {member: score for member, score in entries.items() if score > now}.items() <= left.items()
    assert found.removed == len(entries) - len(left) == min(most, len(dead))
    assert found.left == len(dead) - found.removed


# --- which keys -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_key_is_handled_and_in_the_table(kind: str) -> None:
    target = target_of("quota", key_of(BASE, kind, "x"))
    assert target == SweepTarget(key_of(BASE, kind, "x"), kind)
    assert target.lifetime > 0
    rows = [line for line in (sweeping.__doc__ or "").splitlines() if line.startswith("| `")]
    (row,) = [line for line in rows if f"`{kind}`" in line.split("|")[1]]
    assert target.is_swept == (" go" in row)


def test_a_subject_cannot_pass_for_the_system() -> None:
    assert target_of("quota", system_key("quota", "bans")) == SweepTarget("quota:1:{!}:bans", "bans")
    assert target_of("quota", system_key("quota", "events")) == SweepTarget("quota:1:{!}:events", "system")
    assert target_of("quota", key_of(subject_base("quota", "!"), "h", "x")) == SweepTarget("quota:1:{%21}:h:x", "h")


@pytest.mark.parametrize("key", ["other:1:{a}:r:x:1", "quota:2:{a}:r:x:1", "quota:1:{a}:z:x", "quota:1:a", "quota"])
def test_keys_of_others_are_left_alone(key: str) -> None:
    assert target_of("quota", key) is None


def test_keys_of_one_rule_are_not_those_of_another() -> None:
    def is_of(rule: str, key: str) -> bool:
        return target_of("quota", key, rule) is not None

    assert is_of("a:b", f"{BASE}}}:r:{field('a:b')}:60")
    assert is_of("a:b", key_of(BASE, "b", "a:b"))
    assert is_of("a:b", key_of(BASE, "h", "a:b"))
    assert not is_of("a", key_of(BASE, "r", "a:b"))
    assert not is_of("a", key_of(BASE, "l", "a"))
    assert not is_of("a", system_key("quota", "bans"))


# --- a whole sweep ----------------------------------------------------------------------------------------------------


@one_server
@given(st.dictionaries(st.sampled_from([*KINDS, "bans", "foreign"]), sets.filter(bool), max_size=8), around)
def test_expired_entries_are_removed_and_all_else_stays(
    store: RedisStore, raw: redis.Redis, lying: dict[str, dict[str, int]], now: int
) -> None:
    raw.flushall()
    keys = {kind: key_of(BASE, kind, "x") for kind in lying}
    keys |= {kind: system_key("quota", kind) for kind in lying if kind == "bans"}
    keys |= {kind: "foreign:1:{a}:r:x:1" for kind in lying if kind == "foreign"}
    for kind, entries in lying.items():
        put(raw, keys[kind], entries)
    report = swept(store, now)
    removed = 0
    for kind, entries in lying.items():
        goes = {member for member, score in entries.items() if score <= now and kind in SWEPT}
        assert entries_of(raw, keys[kind]) == {name: score for name, score in entries.items() if name not in goes}
        removed += len(goes)
    assert report.removed == removed
    assert report.complete
    assert raw.exists(POSITION) == 0


hits = st.lists(st.tuples(st.integers(0, 8 * SECOND), st.integers(1, 3), st.booleans()), min_size=1, max_size=12)


@one_server
@given(hits)
def test_a_sweep_changes_no_decision(store: RedisStore, raw: redis.Redis, made: list[tuple[int, int, bool]]) -> None:
    raw.flushall()
    now = START
    for step, cost, is_swept in made:
        now += step
        with freeze(now):
            if is_swept:
                swept(store, now, rule="swept")
            one, other = (check("5/10s", "ip:203.0.113.9", cost, name=name) for name in ("swept", "kept"))
            assert (one.allowed, one.remaining, one.retry_after) == (other.allowed, other.remaining, other.retry_after)
            one, other = (peek("5/10s", "ip:203.0.113.9", cost, name=name) for name in ("swept", "kept"))
            assert (one.remaining, one.reset_after) == (other.remaining, other.reset_after)


def test_a_report_says_what_was_done(store: RedisStore, raw: redis.Redis) -> None:
    put(raw, key_of(BASE, "r", "a", "60"), expired(10, live=2))
    put(raw, key_of(BASE, "r", "b", "60"), expired(10))
    put(raw, key_of(BASE, "r", "c", "60"), expired(0, live=3))
    put(raw, key_of(BASE, "h", "a"), expired(5))
    raw.set(key_of(BASE, "r", "d", "60"), "1 2", ex=HOUR)
    keys: Any = raw.keys()
    before = sum(cast("Any", raw).memory_usage(key) for key in keys)
    report = swept(store)
    keys = raw.keys()
    assert report.freed == before - sum(cast("Any", raw).memory_usage(key) for key in keys) > 0
    assert (report.keys, report.sets, report.removed, report.changed, report.emptied) == (5, 3, 20, 2, 1)
    assert report.repaired == {}
    assert swept(store).removed == 0


def test_a_large_set_is_removed_in_small_batches(store: RedisStore, raw: redis.Redis) -> None:
    key = key_of(BASE, "r", "a", "60")
    put(raw, key, expired(20_000, live=7))
    cast("Any", raw).config_resetstat()
    report = swept(store)
    assert (report.removed, report.changed, report.emptied) == (20_000, 1, 0)
    assert len(entries_of(raw, key)) == 7
    calls = raw.info("commandstats")["cmdstat_zremrangebyrank"]["calls"]
    assert calls >= 20_000 / ENTRIES_PER_CALL


@pytest.mark.parametrize("options", [{}, {"rule": "a"}])
def test_a_dry_run_changes_nothing_and_counts_what_a_real_one_does(
    store: RedisStore, raw: redis.Redis, options: dict[str, Any]
) -> None:
    put(raw, key_of(BASE, "r", "a", "60"), expired(10, live=2))
    put(raw, key_of(BASE, "b", "a"), expired(5), ttl=None)
    put(raw, key_of(BASE, "l", "slot"), expired(5), ttl=None)
    raw.hset(key_of(BASE, "s"), "b:a", "1")
    before = everything(raw)
    dry = swept(store, dry_run=True, **options)
    assert everything(raw) == before
    real = swept(store, **options)
    assert (dry.keys, dry.sets, dry.removed, dry.changed) == (real.keys, real.sets, real.removed, real.changed)
    assert dry.repaired == real.repaired
    assert everything(raw) != before


# --- keys without a TTL -----------------------------------------------------------------------------------------------

DAY_MS = 86_400_000
SPARE = 3_600_000  # of the tests: keys live an hour longer where time is passed in


@pytest.mark.parametrize(
    ("kind", "entries", "given_ttl"),
    [
        ("r", {"1:1": START + 5 * SECOND, "2:1": START + 7 * SECOND + 1}, 7_001 + SPARE),
        ("r", {"1:1": START}, 400 * DAY_MS),
        ("r", None, 400 * DAY_MS),
        ("l", {"token": START + SECOND}, 1_000 + SPARE),
        ("l", {"token": START - SECOND}, 3_600_000),
        ("h", {"token 3": START + SECOND}, 400 * DAY_MS),
        ("day", None, 8 * DAY_MS),
        ("q", None, 3_600_000),
        ("once", None, 400 * DAY_MS),
        ("a", {"far": 10**18}, 315_360_000_000),
    ],
)
def test_a_key_without_a_ttl_is_given_one(
    store: RedisStore, raw: redis.Redis, kind: str, entries: dict[str, int] | None, given_ttl: int
) -> None:
    key = key_of(BASE, kind, "x")
    if entries is None:
        raw.set(key, "1")
    else:
        put(raw, key, entries, ttl=None)
    target = target_of("quota", key)
    assert target is not None
    for repairs in (False, True):
        operation = Sweep([key], [target.is_swept], [target.lifetime], 0, repairs=repairs)
        (found,) = Sweep.read(store.run(operation, START))
        assert found.given == given_ttl
        assert (cast("Any", raw).pttl(key) == -1) is not repairs
    (found,) = Sweep.read(store.run(operation, START))
    assert found.given == 0


def test_every_key_of_ours_has_a_ttl_after_a_sweep(store: RedisStore, raw: redis.Redis) -> None:
    for kind in KINDS:
        raw.set(key_of(BASE, kind, "x"), "1")
    raw.set(system_key("quota", "events"), "1")
    raw.set("foreign", "1")
    report = swept(store)
    assert report.repaired == dict.fromkeys([*KINDS, "system"], 1)
    keys: Any = raw.keys()
    assert [key for key in keys if cast("Any", raw).ttl(key) < 0] == [b"foreign"]
    assert swept(store).repaired == {}


# --- stopped and resumed ----------------------------------------------------------------------------------------------


def fill(raw: redis.Redis, sets_: int, entries: int = 3) -> None:
    """Write sorted sets whose entries have expired by the real clock."""
    with raw.pipeline(transaction=False) as pipeline:
        for number in range(sets_):
            key = key_of(subject_base("quota", f"user:{number}"), "r", "a", "60")
            pipeline.zadd(key, {f"{entry}:1": entry for entry in range(1, entries + 1)})
            pipeline.expire(key, HOUR)
        pipeline.execute()


def left(raw: redis.Redis) -> int:
    keys: Any = raw.keys("quota:1:{user*")
    return len(keys)


class StopAfter(threading.Event):
    """Is set once it was asked so often."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def is_set(self) -> bool:
        self.times -= 1
        return self.times < 0


@one_server
@given(st.integers(0, 60))
def test_a_stopped_sweep_is_resumed(store: RedisStore, raw: redis.Redis, times: int) -> None:
    raw.flushall()
    fill(raw, 400)
    first = swept(store, stop=StopAfter(times))
    assert left(raw) == 400 - first.emptied
    second = swept(store)
    assert second.complete
    assert left(raw) == 0
    assert first.removed + second.removed == 1_200
    assert raw.exists(POSITION) == 0


def test_a_resumed_sweep_does_not_repeat_keys(store: RedisStore, raw: redis.Redis) -> None:
    fill(raw, 4_000, entries=1)
    stop = threading.Event()
    pages = []

    def advance(count: int) -> None:
        pages.append(count)
        if len(pages) == 3:
            stop.set()

    with freeze(START):
        first = Sweeper(store, "quota", budget_ms=1_000).sweep(stop, advance)
    assert not first.complete
    assert raw.ttl(POSITION) > 0
    second = swept(store)
    assert second.resumed
    assert first.keys + second.keys <= 4_000 + 1  # the position is a key itself


@pytest.mark.parametrize("place", ["another-run - 17", "{run} other 17"])
def test_a_position_of_another_server_or_rule_is_ignored(store: RedisStore, raw: redis.Redis, place: str) -> None:
    raw.set(POSITION, place.format(run=raw.info("server")["run_id"]))
    assert not swept(store).resumed


@pytest.mark.thorough("processes")
def test_a_killed_sweep_is_resumed_by_the_next(manage: Manage, raw: redis.Redis) -> None:
    fill(raw, 6_000)
    process = manage.start("quota_sweep", "--budget-ms", "30")
    wait_until(lambda: raw.exists(POSITION))
    process.kill()
    process.wait()
    assert left(raw) > 0
    process = manage.start("quota_sweep", "--budget-ms", "1000", "--json")
    assert process.wait() == 0
    assert process.stdout is not None
    report = json.loads(process.stdout.read())
    assert report["resumed"]
    assert report["complete"]
    assert left(raw) == 0


@pytest.mark.thorough("processes")
def test_a_signal_ends_it_after_the_current_batch(manage: Manage, raw: redis.Redis) -> None:
    fill(raw, 6_000)
    process = manage.start("quota_sweep", "--budget-ms", "30", "--json")
    wait_until(lambda: raw.dbsize() < 5_900)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    assert process.stdout is not None
    report = json.loads(process.stdout.read())
    assert not report["complete"]
    assert report["emptied"] == 6_000 - left(raw)


@pytest.mark.thorough("processes")
def test_it_sweeps_again_and_again_until_a_signal(manage: Manage, raw: redis.Redis) -> None:
    process = manage.start("quota_sweep", "--every", "0.01", "--json")
    for _ in range(3):
        fill(raw, 5)
        wait_until(lambda: left(raw) == 0)
    reports = [json.loads(line) for line in manage.stop(process, signal.SIGINT).splitlines()]
    assert sum(report["removed"] for report in reports) == 45


# --- how much at a time -----------------------------------------------------------------------------------------------


def test_no_call_does_more_than_a_fixed_amount(store: RedisStore, raw: redis.Redis) -> None:
    fill(raw, 3 * KEYS_PER_CALL, entries=50)
    client: Any = raw
    client.config_resetstat()
    limit, removed = client.config_get("slowlog-log-slower-than"), 300 * 50
    client.config_set("slowlog-log-slower-than", 0)
    client.config_set("slowlog-max-len", 100_000)
    client.slowlog_reset()
    try:
        report = swept(store)
        calls = [entry["command"].split() for entry in client.slowlog_get(100_000)]
    finally:
        client.config_set("slowlog-log-slower-than", limit["slowlog-log-slower-than"])
    assert report.removed == removed
    scripts = [words for words in calls if words[0] == b"EVALSHA"]
    assert max(int(words[2]) for words in scripts) <= KEYS_PER_CALL
    assert len(scripts) >= removed / ENTRIES_PER_CALL + 300 / KEYS_PER_CALL
    stats = client.info("commandstats")
    assert stats["cmdstat_scan"]["calls"] >= 300 / SCAN_COUNT


@pytest.mark.parametrize(("budget_ms", "times"), [(1_000, 0.0), (500, 1.0), (100, 9.0), (1, 999.0)])
def test_the_pause_after_a_call_keeps_the_budget(store: RedisStore, budget_ms: int, times: float) -> None:
    waited: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return False

    sweeper = Sweeper(store, "quota", budget_ms=budget_ms)
    report = sweeper.sweep(Stop(), lambda count: None)
    waited.clear()
    sweeper._round_trip = report.slowest = 0.0
    with sweeper._paced():
        sum(range(10_000))
    assert report.slowest > 0
    assert waited == [pytest.approx(report.slowest * times)]


# --- the command ------------------------------------------------------------------------------------------------------


def said(*words: str) -> str:
    out = io.StringIO()
    with freeze(START):
        call_command("quota_sweep", *words, "--budget-ms", "1000", stdout=out, stderr=io.StringIO())
    return out.getvalue()


@pytest.mark.usefixtures("redis_cache")
def test_the_command_says_what_it_did(raw: redis.Redis) -> None:
    put(raw, key_of(BASE, "r", "a", "60"), expired(1_500, live=1))
    put(raw, key_of(BASE, "b", "a"), expired(5), ttl=None)
    raw.set(key_of(BASE, "once", "x"), "1")
    dry = said("--dry-run")
    assert "Looked at 3 keys, 2 sorted sets to sweep among them." in dry
    assert "Would remove 1,505 expired entries from 2 sets." in dry
    assert "Would give a TTL to 2 keys that had none, by kind: b 1, once 1." in dry
    real = said()
    assert "Removed 1,505 expired entries from 2 sets (1 now gone); " in real
    assert "KB came free" in real
    assert "Gave a TTL to 2 keys that had none, by kind: b 1, once 1." in real
    report = json.loads(said("--json", "--rule", "a"))
    assert (report["keys"], report["removed"], report["repaired"], report["complete"]) == (1, 0, {}, True)


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("words", [["--budget-ms", "0"], ["--budget-ms", "1001"], ["--every", "0"], ["--every", "nan"]])
def test_wrong_options_are_refused(words: list[str]) -> None:
    with pytest.raises(CommandError, match=words[0]):
        call_command("quota_sweep", *words)


def test_a_redis_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(CommandError, match="unavailable"):
        call_command("quota_sweep")


def test_a_default_lifetime_is_no_shorter_than_the_longest_window() -> None:
    assert LONG >= 366 * DAY_MS
