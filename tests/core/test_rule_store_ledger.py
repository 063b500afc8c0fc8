"""Real processes that count a burst in Redis and money in a database, some of them killed, beside a ledger."""

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from django_quota import check_all, counter, peek
from django_quota.limiting.registry import get_limiter
from django_quota.testing import RedisServer
from tests.support.processes import ended, forks, processes, started
from tests.support.stores import caches, empty_database

PREPAID = counter("prepaid", store="database")
ORG = "org:7"
MONTH, BURST = 3_000, 10**9
WORKERS, KILLS = 4, 12

pytestmark = [pytest.mark.thorough("processes"), forks]


@pytest.fixture(params=["sqlite", "postgresql"])
def accounts(request: pytest.FixtureRequest, redis_server: RedisServer, raw: Any, settings: Any) -> None:
    settings.CACHES = caches(redis_server)
    settings.QUOTA = {
        "DATABASE": request.getfixturevalue(f"states_on_{request.param}"),
        "RULES": {
            "burst": {"rate": f"{BURST}/d", "algorithm": "fixed_window"},
            "month": {"rate": f"{MONTH}/month", "algorithm": "calendar", "store": "database"},
        },
    }
    empty_database(get_limiter().stores.counting_in(database=True).store)  # type: ignore[arg-type]
    PREPAID.set(ORG, MONTH)


def work(folder: Path, number: int) -> None:
    """Take jobs of different sizes until there is a file. Each has an account of its own, which says what it took."""
    chance = random.Random(number)
    for job in itertools.takewhile(lambda _: not (folder / "over").exists(), itertools.count()):
        cost, account = chance.randint(1, 99), f"org:{number}-{job}"
        (folder / f"job-{number}-{job}").write_text(str(cost))
        PREPAID.set(account, 1_000)
        entries: list[Any] = [
            ("burst", ORG, cost),
            ("month", ORG, cost),
            (PREPAID, ORG, cost),
            (PREPAID, account, cost),
        ]
        check_all(entries)


def with_kills(folder: Path, disturb: Callable[[], object]) -> None:
    """Let processes work, kill some at random moments, disturb the rest, and let others work in their place."""
    chance = random.Random(7)
    with processes() as children:
        children.extend(started(partial(work, folder, number)) for number in range(WORKERS))
        for number in range(KILLS):
            time.sleep(chance.uniform(0.02, 0.2))
            victim = children.pop(chance.randrange(len(children)))
            os.kill(victim, signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(victim, 0)[1]) == -signal.SIGKILL
            disturb()
            children.append(started(partial(work, folder, WORKERS + number)))
        (folder / "over").touch()
        assert ended(children) == [0] * WORKERS


def taken(folder: Path) -> int:
    """Return what the accounts of all jobs have paid."""
    jobs = [job.name.removeprefix("job-") for job in folder.glob("job-*")]
    return sum(1_000 - units for job in jobs if (units := PREPAID.get(f"org:{job}")))


@pytest.mark.usefixtures("accounts")
def test_money_is_exact_whatever_is_killed_or_flushed(tmp_path: Path, raw: Any) -> None:
    with_kills(tmp_path, raw.flushall)

    paid = taken(tmp_path)
    assert paid > 0
    assert MONTH - (peek("month", ORG).remaining or 0) == paid
    assert MONTH - PREPAID.get(ORG) == paid


@pytest.mark.usefixtures("accounts")
def test_a_kill_leaves_at_most_its_own_estimate_in_redis(tmp_path: Path) -> None:
    with_kills(tmp_path, lambda: None)

    too_much = BURST - (peek("burst", ORG).remaining or 0) - taken(tmp_path)
    assert 0 <= too_much <= KILLS * 99
