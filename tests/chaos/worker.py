"""A worker process: steady traffic from several threads or tasks, half of it views and half of it `check()`."""

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import StringIO
from typing import Any

from tests.chaos import site
from tests.chaos.figures import Account, Record

HANDS = 6
"""Threads or tasks that ask at the same time."""
WORKERS = 2

_STOP = threading.Event()


def block(database: Mapping[str, Any], subject: str) -> None:
    """Block a subject, in a process of its own. If need be, make the tables."""
    site.configure({}, database)
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    call_command("quota_override", "set", subject, "blocked", stdout=StringIO())


def work(
    kind: str, caches: Mapping[str, Any], database: Mapping[str, Any] | None, rate: int, driver: Any, lost: Any
) -> None:
    """Tell the driver when it is ready, when it knows of the other worker, and when it is done; send it the account.

    It waits for a word of the driver before it works, before it is done, and before it looks at what was counted.
    `lost` has when it has lost Redis last, and whether it has not found it again.
    """
    site.configure(caches, database)
    account = Account()
    _listen(account, lost)
    from django_quota.limiting.registry import get_limiter

    driver.send("ready")
    driver.recv()
    traffic = _sync_traffic if kind == "sync" else _async_traffic
    policies = (*site.POLICIES, site.BLOCKED, site.LATER) if database else site.POLICIES
    thread = threading.Thread(target=traffic, args=(account, policies, HANDS / rate))
    thread.start()
    workers = get_limiter().fallback.workers
    while workers is not None and workers.number < WORKERS:
        time.sleep(0.01)
    driver.send("known")
    driver.recv()
    _STOP.set()
    thread.join()
    driver.send("done")
    driver.recv()
    account.used = _used()
    driver.send(account)


def _used() -> int | None:
    """Look what was counted, until no outage goes on."""
    from django_quota import peek
    from django_quota.limiting.registry import get_limiter

    for _ in range(100):
        found = peek(site.BESIDE.name, site.BESIDE.subject)
        if not found.degraded and found.remaining is not None and not get_limiter().outages.is_on:
            return site.BESIDE.limit - found.remaining
        time.sleep(0.1)
    return None


def _listen(account: Account, lost: Any) -> None:
    from django_quota.signals import store_back, store_lost

    def on_loss(reason: str, **_: Any) -> None:
        account.reasons.append(reason)
        lost[:] = [time.monotonic(), 1]

    def on_return(**_: Any) -> None:
        account.back += 1
        lost[1] = 0

    store_lost.connect(on_loss, weak=False)
    store_back.connect(on_return, weak=False)
    lines = logging.Handler(logging.WARNING)
    lines.emit = lambda record: account.logged.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("django_quota")
    logger.addHandler(lines)
    logger.propagate = False
    logging.getLogger("django.request").setLevel(logging.CRITICAL)


def _turns(policies: Sequence[site.Policy], hand: int, every: float) -> Iterator[tuple[site.Policy, bool, float]]:
    """Yield the policy of each request, whether it is a view, and when it is due."""
    due = time.monotonic() + hand * every / HANDS
    for number in itertools.count(hand):
        policy = policies[number % len(policies)]
        is_view = policy is site.PAIR or (not policy.blocked and bool(number // len(policies) % 2))
        yield policy, is_view, due
        due = max(due + every, time.monotonic())  # what was missed while it waited is not made up for
        if _STOP.is_set():
            return


@contextmanager
def _noted(account: Account, policy: site.Policy) -> Iterator[list[bool]]:
    """Note a request; the block fills in whether it was allowed, and whether without Redis."""
    started, answer, error = time.monotonic(), [False, False], ""
    try:
        yield answer
    except Exception as raised:  # noqa: BLE001 — whatever it is, it is what the suite looks for
        error = f"{type(raised).__name__}: {raised}"
    account.records.append(Record(policy.name, started, time.monotonic(), answer[0], answer[1], error))


def _sync_traffic(account: Account, policies: Sequence[site.Policy], every: float) -> None:
    from django.test import RequestFactory

    from django_quota import check
    from tests.chaos.views import VIEWS

    def hand(number: int) -> None:
        for policy, is_view, due in _turns(policies, number, every):
            time.sleep(max(0.0, due - time.monotonic()))
            request: Any = RequestFactory().get("/")
            with _noted(account, policy) as answer:
                if is_view:
                    answer[:] = VIEWS[policy.name](request).status_code == 200, request.quota.degraded
                else:
                    decision = check(policy.name, policy.subject)
                    answer[:] = decision.allowed, decision.degraded

    with ThreadPoolExecutor(HANDS) as pool:
        list(pool.map(hand, range(HANDS)))


def _async_traffic(account: Account, policies: Sequence[site.Policy], every: float) -> None:
    from django.test import RequestFactory

    from django_quota import acheck
    from tests.chaos.views import ASYNC_VIEWS

    async def hand(number: int) -> None:
        for policy, is_view, due in _turns(policies, number, every):
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            request: Any = RequestFactory().get("/")
            with _noted(account, policy) as answer:
                if is_view:
                    answer[:] = (await ASYNC_VIEWS[policy.name](request)).status_code == 200, request.quota.degraded
                else:
                    decision = await acheck(policy.name, policy.subject)
                    answer[:] = decision.allowed, decision.degraded

    async def together() -> None:
        await asyncio.gather(*map(hand, range(HANDS)))

    asyncio.run(together())
