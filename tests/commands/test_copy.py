"""`quota_copy` takes what one store has counted along to another one."""

import io
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import date, timedelta
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
import redis
from django.core.management import CommandError, call_command

from django_quota import Rule, ban, check, counter, once, peek, reserve, slot
from django_quota.core.errors import StorePermissionDenied
from django_quota.core.rates import parse_duration
from django_quota.engine.events import NO_LOG
from django_quota.engine.state_copies import ReadStates, StateCopy, WriteStates
from django_quota.exceptions import QuotaExceeded, StoreUnavailable
from django_quota.features.bans import ActiveBan, bans_in_force
from django_quota.features.usage.days import Count, recent_usage
from django_quota.limiting.registry import make_store
from django_quota.management.commands import quota_copy
from django_quota.operating.copying import KEYS_A_CALL, CopiedStore, Copier, CopyReport, copied_kind
from django_quota.stores.database.store import DatabaseStore
from django_quota.stores.memory import MemoryStore
from django_quota.stores.scanning import Patience
from django_quota.testing import freeze
from tests.support.commands import Terminal, said
from tests.support.outages import mostly_late
from tests.support.steps import MINUTE, SECOND, START

Direction = tuple[str, str]

BOTH = [("database", "redis"), ("redis", "database")]
LOGIN = {"rate": "2/m", "ban": {"after": "2/m", "for": "1h"}}
USER, IP = "user:1", "ip:203.0.113.9"
CREDITS, VISITORS = counter("credits"), counter("visitors")
LATER = START + 7 * SECOND


@pytest.fixture
def use(database: dict[str, Any], redis_cache: Any, settings: Any) -> Iterator[Callable[[str], None]]:
    """Let the site count in this store. Both are empty."""

    def use(store: str) -> None:
        settings.QUOTA = {"STORE": store, "RULES": {"login": LOGIN}}

    with freeze(START):
        use("database")
        yield use


def copy(*more: str, way: Direction = BOTH[0]) -> Any:
    old, new = way
    return said("quota_copy", "--from", old, "--to", new, *more)


def error_of(*words: str) -> str:
    """Run a command that fails; return its error."""
    with pytest.raises(CommandError) as caught:
        call_command(*words, stdout=io.StringIO(), stderr=io.StringIO())
    assert caught.value.returncode == 1
    return str(caught.value)


# --- what goes along --------------------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """Something that a store keeps."""

    make: Callable[[], object]
    look: Callable[[], object]
    looks: object
    """How it looks after seven seconds."""


def limited(rule: Rule, *looks: object) -> Kept:
    def look() -> object:
        left = peek(rule, USER)
        return left.remaining, left.reset_after, check(rule, USER, cost=3).retry_after

    return Kept(lambda: check(rule, USER, cost=3), look, looks)


def uses(device: str) -> bool:
    return check("2/m", USER, name="devices", distinct=True, value=device).allowed


def wait_for_slot() -> float | None:
    with pytest.raises(QuotaExceeded) as caught:
        slot("export", 1).acquire()
    return caught.value.decision.retry_after


def lease_units() -> None:
    CREDITS.set(USER, 100)
    reserve(CREDITS, USER, 60, lease="10m")


def units_after_the_lease() -> int:
    with freeze(START + 11 * MINUTE):
        reserve(CREDITS, USER, 1, lease="10m").settle(0)
        return CREDITS.get(USER)


def grant_twice() -> None:
    CREDITS.grant(USER, 30, id="november", expires="10m")
    CREDITS.grant(USER, 5, id="12", expires="1d")
    CREDITS.take(USER, 10)


def grants_at_times() -> object:
    with freeze(START + 11 * MINUTE):
        later = [(each.id, each.left, each.granted) for each in CREDITS.grants(USER)], CREDITS.get(USER)
    return [each.left for each in CREDITS.grants(USER)], CREDITS.grant(USER, 5, id="12", expires="1d"), later


KEPT = {
    "sliding window": limited(Rule.make("sliding", "5/m"), 2, 53.0, 53.0),
    "sliding window of slices": limited(Rule.make("slices", "5/m", precision=3), 2, 72.999999, 72.999999),
    "fixed window": limited(Rule.make("fixed", "5/m", algorithm="fixed_window"), 2, 53.0, 53.0),
    "calendar": limited(Rule.make("calendar", "5/d", algorithm="calendar", tz="Europe/Berlin"), 2, 65_993.0, 65_993.0),
    "subscription": limited(
        Rule.make("plan", "5/month", algorithm="calendar", starts=date(2025, 11, 20)), 2, 2_488_793.0, 2_488_793.0
    ),
    "token bucket": limited(Rule.make("token", "5/m", algorithm="token_bucket"), 2, 29.0, 5.0),
    "leaky bucket": limited(Rule.make("leaky", "5/m", algorithm="leaky_bucket"), 2, 29.0, 5.0),
    "different values": Kept(lambda: [uses("a"), uses("b")], lambda: [uses("b"), uses("c")], [True, False]),
    "ban": Kept(lambda: ban("login", IP, "1h"), lambda: check("login", IP).retry_after, 3_593.0),
    "list of bans": Kept(
        lambda: ban("login", IP, "1h"),
        bans_in_force,
        (1, [ActiveBan(IP, "login", START + 60 * MINUTE)]),
    ),
    "refusals before a ban": Kept(
        lambda: [check("login", IP) for _ in range(3)], lambda: check("login", IP).retry_after, 3_600.0
    ),
    "counter": Kept(lambda: CREDITS.incr(USER, 7), lambda: (CREDITS.get(USER), CREDITS.incr(USER, 1)), (7, 8)),
    "day of a counter": Kept(lambda: CREDITS.incr(USER, 7), lambda: CREDITS.get(USER, date(2025, 11, 21)), 7),
    "lease of a counter": Kept(lease_units, lambda: (CREDITS.get(USER), units_after_the_lease()), (40, 100)),
    "grants of a counter": Kept(grant_twice, grants_at_times, ([20, 5], 35, ([("12", 5, 5)], 5))),
    "slot": Kept(lambda: slot("export", 1, lease=60).acquire(), wait_for_slot, 53.0),
    "value that was seen": Kept(
        lambda: once("payment", 5), lambda: [once("payment", 5), once("payment", 6)], [False, True]
    ),
    "usage of today": Kept(
        lambda: check("5/m", USER, name="api", daily=True),
        lambda: recent_usage(USER),
        {date(2025, 11, 21): {"api": Count(allowed=1, refused=0, units=1)}},
    ),
}


@pytest.mark.parametrize("way", BOTH, ids=["to Redis", "to a database"])
@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_it_is_in_the_new_store_as_it_was_in_the_old_one(
    kept: Kept, way: Direction, use: Callable[[str], None]
) -> None:
    old, new = way
    use(old)
    kept.make()

    with freeze(LATER):
        copy(way=way)
        use(new)

        assert kept.look() == kept.looks


@pytest.mark.parametrize("way", BOTH, ids=["to Redis", "to a database"])
def test_the_old_store_keeps_what_it_has(way: Direction, use: Callable[[str], None]) -> None:
    old, _ = way
    use(old)
    CREDITS.incr(USER, 7)

    copy(way=way)

    assert CREDITS.get(USER) == 7


def test_different_values_are_copied_to_redis(use: Callable[[str], None]) -> None:
    for value in ("ann", "bob", "ann"):
        VISITORS.unique("global", value)

    copy()

    use("redis")
    VISITORS.unique("global", "ann")
    assert VISITORS.unique_count("global") == 2


class TestEstimateOfDifferentValues:
    """Redis does not keep the values, so they cannot go to a database."""

    @pytest.fixture
    def printed(self, use: Callable[[str], None]) -> Any:
        use("redis")
        VISITORS.unique("global", "ann")
        return copy(way=("redis", "database"))

    def test_it_is_left_out(self, printed: str, use: Callable[[str], None]) -> None:
        use("database")

        assert VISITORS.unique_count("global") == 0

    def test_it_is_reported(self, printed: str) -> None:
        assert "Left out 2 counts of different values: Redis keeps an estimate, and not the values." in printed


def test_data_of_another_program_is_reported_by_name(use: Callable[[str], None], raw: redis.Redis) -> None:
    raw.set("quota:1:{user:1}:c:credits", "many")
    raw.rpush("quota:1:{user:1}:r:api:sw.60s", "1")

    report = copy("--json", way=("redis", "database"))

    assert sorted(report["foreign"]) == ["quota:1:{user:1}:c:credits", "quota:1:{user:1}:r:api:sw.60s"]
    assert report["keys"] == 0


def test_keys_of_others_stay_where_they_are(use: Callable[[str], None], raw: redis.Redis) -> None:
    raw.set("session:1", "x")

    report = copy("--json", way=("redis", "database"))

    assert (report["keys"], report["foreign"]) == (0, [])


def test_the_key_prefix_of_a_cache_alias_is_added(use: Callable[[str], None], settings: Any, raw: redis.Redis) -> None:
    settings.CACHES = {"default": {**settings.CACHES["default"], "KEY_PREFIX": "shop"}}
    CREDITS.incr(USER, 7)

    CREDITS.incr("org:quota", 9)

    copy()

    assert raw.get("shop:quota:1:{user:1}:c:credits") == b"7"
    assert raw.get("shop:quota:1:{org:quota}:c:credits") == b"9"


@pytest.mark.parametrize("way", BOTH, ids=["to Redis", "to a database"])
def test_a_copy_of_a_copy_brings_back_the_same(way: Direction, use: Callable[[str], None]) -> None:
    old, new = way
    use(old)
    for number in range(2 * KEYS_A_CALL + 7):
        check("5/m", f"user:{number}", name="api", daily=False)
    before = states_of(old)

    copy(way=way)
    use(new)
    copy("--replace", way=(new, old))

    assert len(before) == 2 * KEYS_A_CALL + 7
    assert states_of(old) == before


def states_of(name: str) -> dict[str, Any]:
    """Return all that a store keeps, and until when."""
    store = make_store(name)
    keys = sorted(store.names("quota:1:*"))
    found = dict(zip(keys, store.run(ReadStates(keys), START), strict=True))
    store.close()
    return found


@pytest.mark.parametrize(
    ("make", "key", "ttl"),
    [
        pytest.param(lambda: once("payment", 5, "90s"), "once", "90s", id="seconds"),
        pytest.param(lambda: counter("brief", ttl=timedelta(days=30)).incr(USER), "c", timedelta(days=30), id="days"),
    ],
)
def test_a_key_lives_as_long_as_in_the_old_store(
    make: Callable[[], object], key: str, ttl: Any, use: Callable[[str], None]
) -> None:
    def late(store: str) -> Any:
        """Return how long after the moment in the old store the key ends."""
        (state,) = [each for name, each in states_of(store).items() if f":{key}:" in name and ":2025" not in name]
        return abs(state.expires - (START + parse_duration("ttl", ttl)))

    make()

    copy()
    late_in_redis = late("redis")
    use("redis")
    copy("--replace", way=("redis", "database"))

    assert late_in_redis < SECOND  # Redis' own clock goes on meanwhile
    assert late("database") < SECOND


def test_what_has_expired_is_left_out(use: Callable[[str], None]) -> None:
    once("payment", 5, 60)

    with freeze(START + MINUTE):
        report = copy("--json")

    assert report["keys"] == 0


# --- what is there already --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["a copy", "a dry run"])
@pytest.mark.parametrize("way", BOTH, ids=["to Redis", "to a database"])
def test_a_store_that_counts_already_is_refused(
    way: Direction, more: tuple[str, ...], use: Callable[[str], None]
) -> None:
    old, new = way
    use(new)
    CREDITS.set(USER, 5)
    use(old)
    CREDITS.set(USER, 100)

    said = error_of("quota_copy", "--from", old, "--to", new, *more)

    assert re.match(
        r"The new store has counts already, such as quota:1:\{user:1\}:c:credits\S*, so nothing was copied. Use "
        r"--replace to delete what it has first. It is (DATABASES|the Redis of CACHES)\[\"default\"\]\.$",
        said,
    )
    use(new)
    assert CREDITS.get(USER) == 5


@pytest.mark.parametrize("way", BOTH, ids=["to Redis", "to a database"])
def test_replace_deletes_what_was_there(way: Direction, use: Callable[[str], None]) -> None:
    old, new = way
    use(new)
    ban("login", "ip:198.51.100.7", "1h")
    CREDITS.set("user:2", 5)
    use(old)
    CREDITS.set(USER, 100)

    copy("--replace", way=way)

    use(new)
    assert (CREDITS.get(USER), CREDITS.get("user:2"), bans_in_force()) == (100, 0, (0, []))


@pytest.mark.parametrize("way", BOTH, ids=["to Redis", "to a database"])
def test_the_bans_of_all_batches_are_counted(
    way: Direction, use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_quota.operating.copying.KEYS_A_CALL", 1)
    use(way[0])
    for number in range(3):
        ban("login", f"ip:192.0.2.{number}", "1h")

    assert copy("--json", way=way)["bans"] == 3


@pytest.mark.parametrize("way", BOTH, ids=["to Redis", "to a database"])
def test_the_keys_of_all_batches_are_counted(
    way: Direction, use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_quota.operating.copying.KEYS_A_CALL", 1)
    old, new = way
    for store, number in ((new, 2), (old, 3)):
        use(store)
        for each in range(number):
            CREDITS.set(f"user:{each}", 5)

    report = copy("--replace", "--json", way=way)

    assert (report["kinds"]["c"], report["replaced"] >= 2) == (3, True)


def test_what_is_left_out_of_all_batches_is_reported(
    use: Callable[[str], None], raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_quota.operating.copying.KEYS_A_CALL", 1)
    use("redis")
    for number in range(2):
        VISITORS.unique(f"org:{number}", "ann")
        raw.set(f"quota:1:{{user:{number}}}:c:credits", "many")

    report = copy("--json", way=("redis", "database"))

    assert (report["distinct"], len(report["foreign"])) == (4, 2)


@pytest.fixture
def a_key_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """SCAN returns a key that has expired when it is read."""
    keys = CopiedStore.keys
    monkeypatch.setattr(CopiedStore, "keys", lambda *given: iter([["quota:1:{user:9}:c:credits"], *keys(*given)]))


@pytest.mark.usefixtures("a_key_goes")
@pytest.mark.parametrize("more", [(), ("--replace",)], ids=["without --replace", "--replace"])
@pytest.mark.parametrize("way", BOTH, ids=["to Redis", "to a database"])
def test_a_key_that_is_gone_when_it_is_read_is_not_counted(
    way: Direction, more: tuple[str, ...], use: Callable[[str], None]
) -> None:
    use(way[0])
    CREDITS.set(USER, 100)

    report = copy(*more, "--json", way=way)

    assert (report["kinds"]["c"], report["replaced"]) == (1, 0)


def test_a_database_that_cannot_empty_its_list_of_bans_is_named(
    use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    use("redis")
    CREDITS.set(USER, 100)
    monkeypatch.setattr(DatabaseStore, "write", Mock(side_effect=StorePermissionDenied("no DELETE")))

    said = error_of("quota_copy", "--from", "redis", "--to", "database", "--replace")

    assert said == 'The quota store is unavailable: no DELETE. It is DATABASES["default"].'


@pytest.mark.parametrize("more", [(), ("--replace",)], ids=["empty", "replace"])
@pytest.mark.parametrize("way", BOTH, ids=["to Redis", "to a database"])
def test_a_dry_run_changes_nothing(way: Direction, more: tuple[str, ...], use: Callable[[str], None]) -> None:
    old, new = way
    use(new)
    if more:
        ban("login", "ip:198.51.100.7", "1h")
    before = bans_in_force()
    kept = states_of(new)
    use(old)
    ban("login", IP, "1h")

    report = copy("--dry-run", "--json", *more, way=way)

    assert (report["kinds"], report["bans"]) == ({"s": 1}, 1)
    assert states_of(new).keys() == kept.keys()
    use(new)
    assert bans_in_force() == before


@pytest.mark.parametrize("way", BOTH, ids=["to Redis", "to a database"])
def test_a_store_that_begins_to_count_meanwhile_ends_the_copy(
    way: Direction, use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = way
    use(old)
    CREDITS.set(USER, 100)
    emptied = Copier._make_room

    def another_process_counts(*given: Any) -> None:
        emptied(*given)
        use(new)
        CREDITS.set(USER, 5)

    monkeypatch.setattr(Copier, "_make_room", another_process_counts)

    said = error_of("quota_copy", "--from", old, "--to", new)

    names = {"redis": 'the Redis of CACHES["default"]', "database": 'DATABASES["default"]'}
    assert said == (
        "Something counts in the new store meanwhile, and has changed quota:1:{user:1}:c:credits. Stop it, and copy "
        f"again with --replace. It is {names[new]}."
    )
    assert CREDITS.get(USER) == 5


def test_data_of_another_program_that_comes_meanwhile_ends_the_copy(
    use: Callable[[str], None], raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    use("database")
    CREDITS.set(USER, 100)
    emptied = Copier._make_room

    def another_program_writes(*given: Any) -> None:
        emptied(*given)
        raw.set("quota:1:{user:1}:c:credits", "many")

    monkeypatch.setattr(Copier, "_make_room", another_program_writes)

    said = error_of("quota_copy", "--from", "database", "--to", "redis")

    assert "has changed quota:1:{user:1}:c:credits. Stop it" in said
    assert raw.get("quota:1:{user:1}:c:credits") == b"many"


@pytest.fixture
def each_key_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """SCAN may return a key twice, and a call that was not answered may have been made."""
    keys = CopiedStore.keys

    def twice(self: CopiedStore, patience: Any) -> Iterator[list[str]]:
        for found in keys(self, patience):
            yield found
            yield found

    monkeypatch.setattr(CopiedStore, "keys", twice)


@pytest.mark.usefixtures("each_key_comes_twice")
@pytest.mark.parametrize("way", BOTH, ids=["to Redis", "to a database"])
def test_a_key_that_comes_twice_is_copied_once(way: Direction, use: Callable[[str], None]) -> None:
    use(way[0])
    CREDITS.set(USER, 100)

    report = copy("--json", way=way)

    assert report["kinds"]["c"] == 1
    use(way[1])
    assert CREDITS.get(USER) == 100


@pytest.mark.usefixtures("each_key_comes_twice")
def test_different_values_that_come_twice_are_copied_once(use: Callable[[str], None]) -> None:
    """Redis cannot say which values it has of the first time."""
    VISITORS.unique("global", "ann")

    report = copy("--json")

    assert (report["kinds"]["u"], report["complete"]) == (2, True)
    use("redis")
    assert VISITORS.unique_count("global") == 1


# --- what it says -----------------------------------------------------------------------------------------------------


def test_it_counts_what_it_has_copied(use: Callable[[str], None]) -> None:
    check("5/m", USER, name="api", daily=False)
    check("5/m", "user:2", name="api", daily=False)
    ban("login", IP, "1h")

    assert copy() == ("Copied 3 keys from database to redis.\n  2 limits\n  1 status of a subject\n  1 ban in force\n")


def test_it_names_what_it_has_left_out(use: Callable[[str], None], raw: redis.Redis) -> None:
    raw.set("quota:1:{user:1}:c:credits", "many")

    says = "Left out 1 key with data of another program or version, such as quota:1:{user:1}:c:credits.\n"
    assert copy(way=("redis", "database")) == f"Copied 0 keys from redis to database.\n{says}"


def test_it_names_three_of_many_that_it_has_left_out(use: Callable[[str], None], raw: redis.Redis) -> None:
    for number in range(4):
        raw.set(f"quota:1:{{user:{number}}}:c:credits", "many")

    said = copy(way=("redis", "database"))

    assert "Left out 4 keys with data of another program or version" in said
    assert said.count("quota:1:{user:") == 3


def test_it_counts_what_the_site_keeps_of_its_own_in_one_line(use: Callable[[str], None], raw: redis.Redis) -> None:
    for kind in ("slots", "refused"):
        raw.zadd(f"quota:1:{{!}}:{kind}", {"a": LATER})

    assert copy(way=("redis", "database")) == "Copied 2 keys from redis to database.\n  2 other counts\n"


def test_a_dry_run_says_what_it_would_do(use: Callable[[str], None]) -> None:
    use("redis")
    CREDITS.set("user:2", 5)
    use("database")
    CREDITS.set(USER, 100)

    said = copy("--dry-run", "--replace")

    assert said == "Would delete 1 key of redis first.\nWould copy 1 key from database to redis.\n  1 counter\n"


def test_json_has_each_number(use: Callable[[str], None]) -> None:
    CREDITS.set(USER, 100)

    report = copy("--json")

    assert 0 < report.pop("seconds") < 60
    assert report == {
        "keys": 1, "kinds": {"c": 1}, "bans": 0, "distinct": 0, "foreign": [], "replaced": 0, "complete": True,
    }  # fmt: skip


def test_on_a_terminal_it_draws_its_progress(use: Callable[[str], None]) -> None:
    CREDITS.incr(USER, 7)
    terminal = Terminal()

    call_command("quota_copy", "--from", "database", "--to", "redis", stdout=io.StringIO(), stderr=terminal)

    assert terminal.getvalue().endswith(f"\rCopying {'█' * 20} 2 of 2\n")


def test_on_a_terminal_what_is_left_out_is_done_too(use: Callable[[str], None], raw: redis.Redis) -> None:
    use("redis")
    raw.set("quota:1:{user:1}:c:credits", "many")
    terminal = Terminal()

    call_command("quota_copy", "--from", "redis", "--to", "database", stdout=io.StringIO(), stderr=terminal)

    assert terminal.getvalue().endswith(f"\rCopying {'█' * 20} 1 of 1\n")


def test_on_a_terminal_a_dry_run_draws_what_it_counts(use: Callable[[str], None]) -> None:
    CREDITS.incr(USER, 7)
    terminal = Terminal()
    words = ("quota_copy", "--from", "database", "--to", "redis", "--dry-run")

    call_command(*words, stdout=io.StringIO(), stderr=terminal)

    assert terminal.getvalue().endswith(f"\rCounting {'█' * 20} 2 of 2\n")


def test_quiet_it_says_nothing(use: Callable[[str], None]) -> None:
    assert copy("--verbosity", "0") == ""


@pytest.mark.parametrize(
    ("in_use", "error"),
    [
        pytest.param(
            "database",
            'Nothing is counted in the old store, so nothing was deleted. It is DATABASES["default"].',
            id="an empty source",
        ),
        pytest.param(
            "redis",
            "STORE is 'redis', so --replace would delete what your site counts. Copy first, and change STORE after it. "
            "Nothing was changed.",
            id="in use",
        ),
    ],
)
@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["a copy", "a dry run"])
def test_replace_does_not_delete_what_nothing_replaces(
    in_use: str, error: str, more: tuple[str, ...], use: Callable[[str], None]
) -> None:
    use("redis")
    check("5/m", USER)
    use(in_use)

    said = error_of("quota_copy", "--from", "database", "--to", "redis", "--replace", *more)

    use("redis")
    assert said == error
    assert peek("5/m", USER).remaining == 4


@pytest.mark.parametrize("more", [(), ("--replace",)], ids=["beside", "in place of"])
def test_counts_of_rules_in_the_database_stay(more: tuple[str, ...], use: Callable[[str], None], settings: Any) -> None:
    month = {"rate": "5/month", "algorithm": "calendar", "store": "database"}
    settings.QUOTA = {"STORE": "redis", "RULES": {"month": month}}
    check("month", USER)
    check("5/m", USER)

    error = error_of("quota_copy", "--from", "redis", "--to", "database", *more)

    assert error == (
        'The database has the counts of rules or counters with store="database". A copy cannot be put beside them, and '
        '--replace would delete them. Nothing was changed. Set "STORE": "database" without a copy: these rules and '
        "counters go on from what they have, and what only Redis has begins anew: the other limits and counters, bans, "
        "slots."
    )
    assert peek("month", USER).remaining == 4


def test_counts_of_rules_in_the_database_stay_though_this_process_has_read_no_rule(
    use: Callable[[str], None], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    use("redis")
    check("5/m", USER)
    month = {"rate": "5/month", "algorithm": "calendar", "store": "database"}
    settings.QUOTA = {"STORE": "redis", "RULES": {"month": month}}
    monkeypatch.setattr(Rule, "any_in_database", False)

    assert "has the counts of rules" in error_of("quota_copy", "--from", "redis", "--to", "database")


def test_rules_in_the_database_do_not_stop_a_copy_to_redis(use: Callable[[str], None], settings: Any) -> None:
    month = {"rate": "5/month", "algorithm": "calendar", "store": "database"}
    check("5/m", USER)
    settings.QUOTA = {"STORE": "redis", "RULES": {"month": month}}

    copy()

    assert peek("5/m", USER).remaining == 4


def test_rules_in_the_database_do_not_stop_a_copy_for_a_site_that_counts_all_there(
    use: Callable[[str], None], settings: Any
) -> None:
    use("redis")
    check("5/m", USER)
    month = {"rate": "5/month", "algorithm": "calendar", "store": "database"}
    settings.QUOTA = {"STORE": "database", "RULES": {"month": month}}
    assert peek("month", USER).remaining == 5  # the process knows that a rule names the database

    copy(way=BOTH[1])

    assert peek("5/m", USER).remaining == 4


def test_the_new_store_is_closed_after_the_copy(use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    def make(name: str) -> Any:
        store = make_store(name)
        close = store.close

        def note_and_close() -> None:
            closed.append(name)
            close()

        monkeypatch.setattr(store, "close", note_and_close)
        return store

    monkeypatch.setattr(quota_copy, "make_store", make)

    copy()

    assert sorted(closed) == ["database", "redis"]


def test_a_site_on_the_database_is_not_told_to_use_the_database(use: Callable[[str], None], settings: Any) -> None:
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

    error = error_of("quota_copy", "--from", "database", "--to", "redis")

    assert "Name the Redis itself" in error
    assert "STORE" not in error


@pytest.mark.parametrize(
    ("words", "error"),
    [
        pytest.param(
            ("--from", "memory", "--to", "redis"),
            "--from memory: other processes cannot see what a process keeps in memory.",
            id="from memory",
        ),
        pytest.param(
            ("--from", "redis", "--to", "memory"),
            "--to memory: other processes cannot see what a process keeps in memory.",
            id="to memory",
        ),
        pytest.param(
            ("--from", "mysql", "--to", "redis"),
            "--from 'mysql' is not a store. Use database or redis.",
            id="no store",
        ),
        pytest.param(
            ("--from", "redis", "--to", "redis"),
            "--from and --to are both 'redis'. Use database and redis, in either order.",
            id="the same",
        ),
    ],
)
def test_wrong_stores_are_refused(words: tuple[str, ...], error: str) -> None:
    assert error_of("quota_copy", *words) == error


@pytest.mark.parametrize("way", BOTH, ids=["to Redis", "from Redis"])
def test_the_store_that_does_not_answer_is_named(
    way: Direction, use: Callable[[str], None], settings: Any, short_pauses: None
) -> None:
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}}

    said = error_of("quota_copy", "--from", way[0], "--to", way[1])

    assert re.search(r"[^.]\. It is the Redis of CACHES\[\"default\"\]\.$", said)


@pytest.mark.parametrize(
    ("apart", "note"),
    [
        pytest.param(
            -90.0,
            "Note: the clocks of the stores differ by 90.0 s: limits that run end so much later.\n",
            id="the new one is behind",
        ),
        pytest.param(
            1_090.0,
            "Note: the clocks of the stores differ by 1,090.0 s: limits that run end so much earlier.\n",
            id="the new one is ahead",
        ),
        pytest.param(1.0, "", id="a second"),
    ],
)
def test_clocks_that_differ_are_reported(
    apart: float, note: str, use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Copier, "apart", lambda _: apart)

    assert copy() == f"Copied 0 keys from database to redis.\n{note}"


@pytest.mark.parametrize(
    ("way", "ahead"),
    [pytest.param(BOTH[0], 100.5, id="to Redis"), pytest.param(BOTH[1], -100.5, id="to a database")],
)
def test_each_store_is_asked_for_the_time_of_its_clock(
    way: Direction, ahead: float, use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis.Redis, "time", lambda _: (200, 500_000))
    monkeypatch.setattr("django_quota.stores.database.store.DatabaseStore.read", lambda *_: [(100 * SECOND,)])
    old, new = (CopiedStore(make_store(name), "quota", name) for name in way)

    assert Copier(old, new, NO_LOG, replaces=False, dry_run=False).apart() == ahead


@pytest.mark.parametrize(
    ("kinds", "number", "lines"),
    [
        pytest.param(
            ["r", "b", "a", "s", "day", "c", "grants", "granted", "leased", "settled", "u", "l", "once"],
            1,
            [
                "1 limit", "1 count of refusals", "1 share taken ahead", "1 status of a subject", "1 count of a day",
                "1 counter", "1 counter with units that expire", "1 id of a grant", "1 lease of units",
                "1 settled reservation", "1 count of different values", "1 held slot", "1 value that was seen",
            ],
            id="one of each kind",
        ),
        pytest.param(
            ["totals", "once", "l", "u", "settled", "leased", "granted", "grants", "c", "day", "s", "a", "b", "r"],
            2,
            [
                "2 limits", "2 counts of refusals", "2 shares taken ahead", "2 statuses of subjects",
                "2 counts of days", "2 counters", "2 counters with units that expire", "2 ids of grants",
                "2 leases of units", "2 settled reservations", "2 counts of different values", "2 held slots",
                "2 values that were seen", "2 other counts",
            ],
            id="two of each kind",
        ),
    ],
)  # fmt: skip
def test_each_kind_has_words_of_its_own(
    kinds: list[str], number: int, lines: list[str], use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Copier, "copy", lambda *_: CopyReport(Counter(dict.fromkeys(kinds, number)), complete=True))

    assert copy().splitlines()[1:] == [f"  {line}" for line in lines]


def test_a_key_that_comes_twice_in_a_batch_is_read_once() -> None:
    """SCAN may return a key twice."""
    names = Mock(return_value=iter(["quota:1:{user:1}:c:credits"] * 2 + ["quota:1:{user:2}:c:credits"]))

    found = list(CopiedStore(Mock(names=names), "quota", "a store").keys(Patience()))

    assert found == [["quota:1:{user:1}:c:credits", "quota:1:{user:2}:c:credits"]]


def test_a_call_copies_at_most_a_hundred_keys() -> None:
    names = [f"quota:1:{{user:{number}}}:c:credits" for number in range(201)]
    store = CopiedStore(Mock(**{"names.return_value": iter(names)}), "quota", "a store")

    assert list(map(len, store.keys(Patience()))) == [100, 100, 1]


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        pytest.param("quota:1:{user:1}:r:api:sw.60s", "r", id="a limit"),
        pytest.param("quota:1:{user:1}:c:credits", "c", id="a counter"),
        pytest.param("quota:1:{!}:metrics:2025-11-21", "metrics", id="what rules decided"),
        pytest.param("quota:1:{!}:totals", "totals", id="the totals"),
        pytest.param("quota:1:{!}:refused:2025-11-21", "refused", id="who was refused"),
        pytest.param("quota:1:{!}:slots", "slots", id="the slots in use"),
        pytest.param("quota:1:{!}:sent:a", "sent", id="the last message of a process"),
        pytest.param("quota:1:{!}:events", None, id="the events"),
        pytest.param("quota:1:{!}:bans", None, id="the list of bans"),
        pytest.param("quota:1:{!}:sweep", None, id="the place of a sweep"),
        pytest.param("quota:1:{user:1}:slots", None, id="a kind of the site for a subject"),
        pytest.param("quota:1:{!}:r", None, id="a kind of a subject for the site"),
        pytest.param("shop:1:{user:1}:c:credits", None, id="another prefix"),
    ],
)
def test_only_counts_are_copied(key: str, kind: str | None) -> None:
    assert copied_kind("quota", key) == kind


@pytest.mark.parametrize("way", BOTH, ids=["to Redis", "to a database"])
def test_only_bans_in_force_are_listed(way: Direction, use: Callable[[str], None]) -> None:
    use(way[0])
    ban("login", IP, "1h")
    ban(Rule.make("api", "5/m", ban={"after": "2/m", "for": "1h"}), IP, "2h")

    with freeze(START + 60 * MINUTE):
        report = copy("--json", way=way)
        use(way[1])

        assert report["bans"] == 1
        assert bans_in_force() == (1, [ActiveBan(IP, "api", START + 120 * MINUTE)])


def test_a_ban_is_in_force_by_the_clock_of_the_new_store(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {"old": START, "new": START + MINUTE}
    monkeypatch.setattr(CopiedStore, "now", lambda store: clocks[store.name])
    old, new = (CopiedStore(MemoryStore(), "quota", name) for name in clocks)
    status = {"b:ended": f"{START + MINUTE} 1 0", "b:holds": f"{START + MINUTE + 1} 1 0", "r:login": f"{10**18}"}
    old.store.run(WriteStates({f"quota:1:{{{IP}}}:s": StateCopy(status, 10**18)}))

    report = Copier(old, new, NO_LOG, replaces=False, dry_run=False).copy(threading.Event(), bool)

    assert (report.bans, report.keys) == (1, {"s": 1})


@pytest.mark.parametrize("way", BOTH, ids=["to Redis", "to a database"])
def test_bans_are_copied_without_a_list_where_there_are_no_events(
    way: Direction, use: Callable[[str], None], settings: Any
) -> None:
    use(way[1])
    check("5/m", "user:2")
    use(way[0])
    ban("login", IP, "1h")
    settings.QUOTA = {**settings.QUOTA, "EVENTS": 0}

    report = copy("--json", "--replace", way=way)

    use(way[1])
    assert (report["bans"], report["replaced"] > 0) == (1, True)
    assert check("login", IP).retry_after == 3_600.0
    assert bans_in_force() == (0, [])


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("way", BOTH, ids=["to Redis", "to a database"])
def test_a_call_that_is_not_answered_is_made_again(
    way: Direction, use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(way[0])
    CREDITS.set(USER, 100)
    ban("login", IP, "1h")
    for name in BOTH[0]:
        kind = type(make_store(name))
        monkeypatch.setattr(kind, "run", mostly_late(kind.run, StoreUnavailable("late")))

    report = copy("--json", way=way)

    assert (report["kinds"]["c"], report["bans"], report["complete"]) == (1, 1, True)


def test_a_dry_run_that_is_stopped_says_that_nothing_was_changed(
    use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    CREDITS.incr(USER)
    stopped = threading.Event()
    stopped.set()
    monkeypatch.setattr(quota_copy, "stopping", lambda: nullcontext(stopped))

    said = error_of("quota_copy", "--from", "database", "--to", "redis", "--dry-run")

    assert said == "Stopped before the end. Nothing was changed."


def test_a_signal_ends_it_after_a_call(use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(KEYS_A_CALL + 1):
        CREDITS.incr(f"user:{number}")
    states = CopiedStore.states

    def interrupted(self: CopiedStore, *given: Any) -> Any:
        stopped.set()
        return states(self, *given)

    stopped = threading.Event()
    monkeypatch.setattr(CopiedStore, "states", interrupted)
    monkeypatch.setattr(quota_copy, "stopping", lambda: nullcontext(stopped))

    assert error_of("quota_copy", "--from", "database", "--to", "redis") == (
        "Stopped before the end. Copy again, with --replace."
    )
    assert len(states_of("redis")) == KEYS_A_CALL
