"""What is used goes on: each use gives a key its whole lifetime again, also one that another use has shortened."""

import re
from collections.abc import Callable

import pytest
import redis

from django_quota import Rule, check, check_all, counter, once, reserve_all, slot
from tests.support.counts import count_what_waits

USER, ORG = "user:1", "org:7"
REFUSING = Rule.make("refusing", "0/m", daily=False)
NEAR = Rule.make("near", "10/m", warn_at=[0.1, 0.2])
BANNING = Rule.make("banning", "0/m", ban={"after": "1/m", "for": ["1h"]})
PLAIN, WINDOW = Rule.make("plain", "9/m"), Rule.make("window", "9/m", algorithm="fixed_window")
CREDITS, SHARED = counter("credits", ttl=10_000), counter("shared", ttl=10_000, group="shop")
SLOT = slot("export", 5, subject=USER, lease=600)

subjects = iter(range(1, 1_000_000))


def ttls(raw: redis.Redis) -> dict[str, int]:
    """Return the TTL of each key, without its subject; dates are left out."""
    found: dict[str, int] = {}
    for key in raw.scan_iter():
        kind = re.sub(r"\d{4}-\d\d(-\d\d)?", "<date>", key.decode().rpartition("}:")[2])
        found[kind] = max(found.get(kind, 0), int(raw.pttl(key)))
    return found


def settle() -> None:
    reserve_all([(PLAIN, USER, 1), (CREDITS, ORG, 1)]).settle(2)


def emit() -> None:
    check(REFUSING, f"ip:192.0.2.{next(subjects) % 200}")


def begin_a_ban() -> None:
    for _ in range(2):
        check(BANNING, f"ip:192.0.2.{next(subjects) % 200}")


def send_metrics() -> None:
    check(REFUSING, USER)
    count_what_waits()


def transfer() -> None:
    SHARED.set("a", 5)
    SHARED.transfer("a", "b", 1)


def change_a_day() -> None:
    CREDITS.incr(ORG)
    CREDITS.unique(ORG, str(next(subjects)))


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(
    ("act", "kinds"),
    [
        (lambda: check(PLAIN, USER), ["r:plain:sw.60s"]),
        (lambda: check(PLAIN, USER, 3), ["r:plain:sw.60s"]),
        (lambda: check_all([(PLAIN, USER), (WINDOW, USER)]), ["r:plain:sw.60s", "r:window:fw.60s"]),
        (lambda: check(NEAR, USER), ["r:near:sw.60s"]),
        (settle, ["r:plain:sw.60s", "c:credits"]),
        (lambda: check_all([(CREDITS, ORG, 1)]), ["c:credits"]),
        (lambda: CREDITS.take(ORG, 1), ["c:credits"]),
        (lambda: CREDITS.set(ORG, 9), ["c:credits"]),
        (change_a_day, ["c:credits", "c:credits:<date>", "u:credits", "u:credits:<date>"]),
        (transfer, ["c:shared:a", "c:shared:b"]),
        (SLOT.acquire, ["l:export"]),
        (emit, ["events"]),
        (begin_a_ban, ["events", "bans"]),
        (send_metrics, ["metrics:<date>", "refused:<date>", "totals"]),
    ],
    ids=lambda given: None if callable(given) else " ".join(given),
)  # fmt: skip
def test_each_use_gives_a_key_its_whole_lifetime_again(
    act: Callable[[], object], kinds: list[str], raw: redis.Redis
) -> None:
    CREDITS.set(ORG, 100)
    act()
    before = ttls(raw)
    assert set(kinds) <= before.keys()
    for key in raw.scan_iter():
        raw.pexpire(key, 20_000)
    act()
    after = ttls(raw)
    assert all(after[kind] >= before[kind] - 10_000 > 10_000 for kind in kinds), (before, after)


@pytest.mark.usefixtures("redis_cache")
def test_a_value_that_came_once_is_kept_for_its_ttl(raw: redis.Redis) -> None:
    assert once("payment", "p-1", ttl=30)

    (ttl,) = ttls(raw).values()
    assert 20_000 < ttl <= 30_001
