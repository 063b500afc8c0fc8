"""What a store may know of an operation before it runs it, and of its reply."""

from pathlib import Path
from typing import Any

import pytest
import redis

from django_quota import Rule
from django_quota.core.algorithms.stock import MAX_INT64
from django_quota.core.clock import DAY
from django_quota.core.errors import StoreDataError
from django_quota.engine.asks import Take
from django_quota.engine.codec import Adjust
from django_quota.engine.counter_totals import read_total
from django_quota.engine.decide import Decide
from django_quota.engine.events import AppendEvents, EventLog, ReadEvents, RecordHits
from django_quota.engine.operations import DictStates, Operation, keep, lua_source, text
from django_quota.engine.state_copies import ReadStates, WriteStates
from django_quota.engine.system_operations import AddMetrics, MetricsKeys, RegisterWorker, Sweep
from django_quota.features.counters import operations as counters
from django_quota.features.once import Once
from django_quota.features.reservations.calls import GiveBackEnded, RenewLeases
from django_quota.features.resets import Reset, RuleState
from django_quota.features.slots import calls as slots
from django_quota.features.subject_contents import InspectSubject
from django_quota.features.usage import days
from tests.support.steps import MINUTE, START, hits_of
from tests.support.stores import current_store

SPARE = 3_600_000
"""For how many milliseconds a key outlives its content where a test passes the time in."""
KEYS = ("total", "grants")
DAYS = (START, START + DAY)
SLOT = slots.SlotKeys("leases", "recent")
LEASED = "quota:1:{user:1}:leased:credits"
HITS = hits_of(Rule.make("api", "5/m"))

OPERATIONS: dict[str, Operation] = {
    **{mode: Decide(HITS, mode) for mode in ("check", "force", "peek", "refund")},
    "adjust": Decide(HITS, Adjust([None])),
    "get": counters.Get(KEYS),
    "pop": counters.Pop(KEYS),
    "grants": counters.Grants(KEYS),
    "set": counters.Set(KEYS, 5, MINUTE),
    "take": counters.TakeUnits(KEYS, 5, MINUTE),
    "transfer": counters.Transfer(("a", "b", "c", "d"), 5, MINUTE),
    "grant": counters.AddGrant((*KEYS, "mark"), 5, MINUTE, 0, "order-17"),
    "incr": counters.Incr(("total", "days", "grants"), 5, MINUTE, "21", *DAYS),
    "days of a counter": counters.Days(["days"], [(1, 31)]),
    "unique": counters.Unique(("all", "day"), "value", MINUTE, *DAYS),
    "unique count": counters.UniqueCount("all"),
    "read states": ReadStates(["total"]),
    "write states": WriteStates({"total": None}),
    "read days": days.ReadDays(["day"]),
    "set aside": days.SetAside("day", "aside", 0),
    "drop aside": days.DropAside("aside", 7),
    "sweep": Sweep(["l"], [True], [1], 1, repairs=True),
    "metrics": AddMetrics(MetricsKeys(*"abcdef"), 1, {}, {}, {}),
    "worker": RegisterWorker("workers", "token", MINUTE),
    "append events": AppendEvents(EventLog(("events", "bans")), []),
    "read events": ReadEvents(["events"]),
    "record hits": RecordHits("s", "sent", "", 1, "api", {}, 0, ""),
    "once": Once("once", MINUTE),
    "take a slot": slots.Acquire(SLOT, "token", 1, MINUTE),
    "renew a slot": slots.Renew(SLOT, "token", MINUTE),
    "release a slot": slots.Release(SLOT, "token", None, MINUTE),
    "holders of a slot": slots.Holders(SLOT),
    "renew leases": RenewLeases(LEASED, ["lease:5:"], MINUTE, MINUTE),
    "give back what has ended": GiveBackEnded(LEASED),
    "reset": Reset([RuleState("api", "s", ["total"])]),
    "contents of a subject": InspectSubject("s", ["l"]),
}


def those_that(name: str) -> set[str]:
    return {of for of, operation in OPERATIONS.items() if getattr(operation, name)}


def test_a_process_keeps_its_scripts_though_another_version_is_installed_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = lua_source("near")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "return 'another version'")

    assert lua_source("near") == before


def test_what_gives_something_back_waits_longer_for_its_turn_in_a_busy_process() -> None:
    of_slots = {"renew a slot", "release a slot"}
    assert those_that("gives_back") == {"refund", "adjust", *of_slots, "renew leases", "give back what has ended"}


def test_what_may_read_very_much_runs_beside_the_hits() -> None:
    slow = {"days of a counter", "read states", "write states", "read days", "set aside", "drop aside", "sweep"}
    assert those_that("is_slow") == slow | {"reset", "contents of a subject"}


def test_what_only_reads_needs_no_lock() -> None:
    reading = {"peek", "get", "grants", "days of a counter", "unique count", "read states", "read days", "read events"}
    assert those_that("is_reading") == reading | {"holders of a slot", "contents of a subject"}


@pytest.mark.parametrize("name", sorted(those_that("is_reading")))
def test_what_needs_no_lock_writes_nothing(name: str) -> None:
    states = DictStates()
    states.put("total", 5, START + DAY)
    before = dict(states.kept)

    OPERATIONS[name].run(states, START)

    assert states.kept == before


def test_what_runs_in_redis_only_says_so_elsewhere() -> None:
    with pytest.raises(NotImplementedError, match="Sweep runs in Redis only"):
        OPERATIONS["sweep"].run(DictStates(), START)


@pytest.mark.parametrize(
    ("name", "total", "has_written"),
    [
        pytest.param("get", 9, False, id="a read"),
        pytest.param("pop", 9, False, id="a pop may have found nothing"),
        pytest.param("set", 9, True, id="a total is set"),
        pytest.param("set", "text", False, id="what is not a counter is not set"),
        pytest.param("take", 5, True, id="units are taken"),
        pytest.param("take", 4, False, id="there are too few units"),
        pytest.param("incr", 9, True, id="a total is raised"),
        pytest.param("incr", MAX_INT64, False, id="a total would not fit"),
        pytest.param("grant", 9, True, id="units are granted"),
        pytest.param("grant", MAX_INT64, False, id="units granted would not fit"),
        pytest.param("unique", 9, True, id="a value is counted"),
    ],
)
def test_a_reply_says_whether_the_store_has_written(name: str, total: Any, has_written: bool) -> None:
    operation, states = OPERATIONS[name], DictStates()
    states.put("total", total, START + DAY)

    assert operation.has_written(operation.run(states, START)) is has_written


@pytest.mark.parametrize(
    ("name", "leases", "has_written"),
    [
        pytest.param("renew leases", {"lease:5:": START + DAY}, True, id="a lease of units is renewed"),
        pytest.param("renew leases", {"other:5:": START + DAY}, False, id="no such lease holds units"),
        pytest.param("give back what has ended", {"lease:5:": START}, True, id="units go back"),
        pytest.param("give back what has ended", {"lease:5:": START + 1}, False, id="no lease has ended"),
    ],
)
def test_the_reply_about_leases_of_units_says_whether_the_store_has_written(
    name: str, leases: dict[str, int], has_written: bool
) -> None:
    operation, states = OPERATIONS[name], DictStates()
    states.put(LEASED, leases, START + DAY)

    assert operation.has_written(operation.run(states, START)) is has_written


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(OPERATIONS["once"], OPERATIONS["once"], id="once"),
        pytest.param(slots.Acquire(SLOT, "other", 1, MINUTE), OPERATIONS["take a slot"], id="take a slot"),
    ],
)
def test_only_the_first_of_two_callers_gets_a_reply_that_the_store_has_written(
    first: Operation, second: Operation
) -> None:
    states = DictStates()

    assert [each.has_written(each.run(states, START)) for each in (first, second)] == [True, False]


@pytest.mark.parametrize(
    ("keys", "total", "has_written"),
    [
        pytest.param("abcd", 5, True, id="units move"),
        pytest.param("abcd", 4, False, id="there are too few units"),
        pytest.param("aacc", 5, False, id="to itself nothing moves"),
    ],
)
def test_the_reply_to_a_transfer_says_whether_the_store_has_written(keys: str, total: int, has_written: bool) -> None:
    operation, states = counters.Transfer(tuple(keys), 5, MINUTE), DictStates()
    states.put("a", total, START + DAY)

    assert operation.has_written(operation.run(states, START)) is has_written


def test_the_reply_to_a_grant_that_is_known_does_not_say_that_the_store_has_written() -> None:
    operation, states = OPERATIONS["grant"], DictStates()
    operation.run(states, START)

    assert operation.has_written(operation.run(states, START)) is False


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(
    ("entries", "most", "reply"),
    [
        pytest.param({"a": START, "b": START + 1}, 9, [1, 1, 0, SPARE + 1], id="the rest is needed until it expires"),
        pytest.param({"a": START - 1, "b": START}, 1, [1, 1, 1, 7_000], id="no entry of the rest is needed"),
        pytest.param({"a": START, "b": START + 1}, 0, [1, 0, 1, SPARE + 1], id="no more entries may go"),
        pytest.param({"a": START + 10**18}, 9, [1, 0, 0, 315_360_000_000], id="a score that is not a time"),
        pytest.param({"a": START}, 9, [1, 1, 0, 0], id="nothing is left"),
        pytest.param({}, 9, [0, 0, 0, 0], id="there is no such key"),
    ],
)
def test_a_sweep_says_what_it_did_to_a_key_without_a_ttl(
    entries: dict[str, int], most: int, reply: list[int], raw: redis.Redis
) -> None:
    if entries:
        raw.zadd("{a}l", entries)

    assert current_store().run(Sweep(["{a}l"], [True], [7_000], most, repairs=True), START) == reply


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("repairs", [True, False])
def test_a_sweep_shares_the_entries_that_may_go_among_its_keys(repairs: bool, raw: redis.Redis) -> None:
    for key in ("{a}1", "{a}2", "{a}3", "{a}4"):
        raw.zadd(key, {"a": START - 2, "b": START - 1, "c": START, "d": START + 1})
    raw.pexpire("{a}2", 99_000)
    raw.set("{a}5", "text")
    sweep = Sweep([f"{{a}}{n}" for n in range(1, 6)], [True, True, False, True, True], [7_000] * 5, 4, repairs=repairs)

    swept = Sweep.read(current_store().run(sweep, START))

    assert swept == [
        (True, 3, 0, SPARE + 1), (True, 1, 2, 0), (False, 0, 0, 7_000), (True, 0, 3, SPARE + 1), (False, 0, 0, 7_000),
    ]  # fmt: skip
    assert [raw.zrange(f"{{a}}{n}", 0, -1) for n in (1, 2)] == [[b"d"], [b"b", b"c", b"d"]]
    assert [raw.pttl(f"{{a}}{n}") > 0 for n in range(1, 6)] == [repairs, True, repairs, repairs, repairs]


@pytest.mark.parametrize(
    ("value", "read"),
    [
        pytest.param("é", "é", id="a string"),
        pytest.param("é".encode(), "é", id="its bytes"),
        pytest.param(b"a\xff", r"a\xff", id="bytes of another program"),
    ],
)
def test_a_string_of_a_reply_is_read(value: Any, read: str) -> None:
    assert text(value) == read


@pytest.mark.parametrize(
    ("total", "grants"), [("text", None), (5, 7)], ids=["for the total", "for the units that expire"]
)
def test_a_counter_that_holds_something_else_is_named(total: Any, grants: Any) -> None:
    states = DictStates()
    states.put("total", total, START + DAY)
    states.put("grants", grants, START + DAY)

    with pytest.raises(StoreDataError) as caught:
        read_total(states, "total", "grants", START)
    assert caught.value.reason == "total is not a counter"


@pytest.mark.parametrize(
    "name",
    [
        "cost", "shadow", "is_quiet", "block", "ban", "distinct", "lease", "count_refused", "settle",
        "count_when", "reads_body", "of_tier", "store", "counting",
    ],
)  # fmt: skip
def test_a_counter_has_what_a_plain_rule_has(name: str) -> None:
    """So both can be in one decision."""
    assert getattr(Take("credits"), name) == getattr(Rule.make("plain", "1/m"), name)


def test_a_counter_is_no_limit() -> None:
    """It is not counted by day, reports no share, and is refused without the store."""
    take = Take("credits")

    assert (take.daily, take.warn_shares, take.lowest_warn_share, take.on_unavailable) == (False, (), "0", "deny")
    assert (take.group, take.ttl, take.leased_for, take.cache_refusals) == (None, 0, 0, 0.0)


def test_a_state_is_there_until_it_expires() -> None:
    states = DictStates()
    states.put("key", 5, START)

    assert [states.get("key", now) for now in (START - 1, START, None)] == [5, None, 5]
    assert (states.expiry("key"), states.expiry("other")) == (START, 0)


def test_dropping_a_state_says_whether_there_was_one() -> None:
    states = DictStates()
    states.put("key", 5, START)

    assert [states.drop("key"), states.drop("key"), states.get("key")] == [True, False, None]


@pytest.mark.parametrize(("stop", "expiry"), [(START - 1, START), (START + 1, START + 1)], ids=["sooner", "later"])
def test_a_collection_is_kept_at_least_until_a_moment(stop: int, expiry: int) -> None:
    states = DictStates()
    states.put("key", {"a": 1}, START)

    keep(states, "key", {"b": 2}, stop)

    assert states.kept == {"key": ({"b": 2}, expiry)}


def test_an_empty_collection_is_dropped() -> None:
    states = DictStates()
    states.put("key", {"a": 1}, START)

    keep(states, "key", {}, START + 1)

    assert states.kept == {}
