"""Real processes on one Redis, some of them killed: counters stay exact, and no more hold a slot than may."""

import fcntl
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import redis

from django_quota import counter, slot
from django_quota.exceptions import QuotaExceeded
from django_quota.features.slots.calls import Renew
from tests.support.processes import ended, forks, heard, processes, started
from tests.support.slots import keys_of
from tests.support.steps import SECOND
from tests.support.stores import current_store

STOCK, CREDITS = counter("stock"), counter("credits")
ACCOUNTS = [f"user:{number}" for number in range(50)]
LIMIT = 3
TOKEN_SIZE = 64
"""Bytes in which a process writes its token."""

pytestmark = [pytest.mark.thorough("processes"), forks, pytest.mark.usefixtures("redis_cache")]


def test_counters_stay_exact_though_a_worker_is_killed(raw: redis.Redis, tmp_path: Path) -> None:
    keys = [f"quota:1:{{{name}}}:c:credits" for name in ACCOUNTS]
    for name in ACCOUNTS:
        CREDITS.set(name, 100)
    STOCK.set("sku:1", 1_000)
    progress, report = os.pipe()

    def move(chance: random.Random) -> bool:
        source, destination = chance.choices(ACCOUNTS, k=2)
        return CREDITS.transfer(source, destination, chance.randint(1, 60))

    def work(seed: int) -> None:
        chance, taken = random.Random(seed), 0
        while STOCK.take("sku:1"):
            taken += 1
        (tmp_path / str(seed)).write_text(str(taken))
        assert 0 < sum(move(chance) for _ in range(1_000)) < 1_000  # some are refused, some not

    def work_for_ever() -> None:
        chance = random.Random(99)
        for number in range(10**9):
            move(chance)
            if number == 500:
                os.write(report, b"!")

    def look() -> None:
        amounts = [int(amount) for amount in raw.mget(keys)]  # type: ignore[arg-type]
        assert sum(amounts) == 50 * 100
        assert min(amounts) >= 0

    with processes() as children:
        victim = started(work_for_ever)
        children.append(victim)
        children.extend(started(partial(work, seed)) for seed in range(10))
        os.close(report)
        assert heard(progress) == b"!"
        for _ in range(50):
            look()
        os.kill(victim, signal.SIGKILL)
        look()
        assert sorted(ended(children)) == [-signal.SIGKILL, *[0] * 10]
    os.close(progress)
    look()
    assert sum(int(each.read_text()) for each in tmp_path.iterdir()) == 1_000
    assert STOCK.get("sku:1") == 0


@contextmanager
def one_of(folder: Path) -> Iterator[None]:
    """Lock one of as many files as there are slots, as the kernel does: one who is killed leaves it at once."""
    for number in range(LIMIT):
        with (folder / f"{number}").open("w") as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
            return
    raise AssertionError("more hold a slot than may")


def test_no_more_than_the_limit_hold_a_slot_though_some_are_killed(tmp_path: Path) -> None:
    reader, tell = os.pipe()
    never, ever = os.pipe()

    def hold_for_ever() -> None:
        with slot("killed", LIMIT, lease=60, wait=30, renew=True) as lease, one_of(tmp_path):
            os.write(tell, lease.token.ljust(TOKEN_SIZE).encode())
            os.read(never, 1)

    def work() -> None:
        for _ in range(25):
            with slot("killed", LIMIT, lease=20, wait=30), one_of(tmp_path):
                pass

    def hurry() -> None:
        """Ask all the time, and never wait: that must not keep a lease alive."""
        taken = 0
        while taken < 5:
            with suppress(QuotaExceeded), slot("killed", LIMIT, lease=20), one_of(tmp_path):
                taken += 1

    with processes() as victims, processes() as children:
        victims.extend(started(hold_for_ever) for _ in range(LIMIT))
        tokens = [heard(reader, TOKEN_SIZE).decode().strip() for _ in range(LIMIT)]
        victims.append(started(work))  # it waits for a slot
        children.extend(started(each) for each in [work] * 6 + [hurry] * 2)
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        assert ended(victims) == [-signal.SIGKILL] * (LIMIT + 1)
        # Nobody renews them any more: they end by themselves, soon in this test.
        soon = [current_store().run(Renew(keys_of("killed"), token, SECOND // 20)) for token in tokens]
        assert all(soon)
        assert ended(children) == [0] * 8
    for end in (reader, tell, never, ever):
        os.close(end)
    assert slot("killed", LIMIT).holders() == []
