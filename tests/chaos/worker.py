"""A worker process: steady traffic from several threads or tasks, half of it views and half of it `check()`.

`python -m tests.chaos.worker KIND FILE RATE CACHES`. It prints "ready", works from the first line on stdin to the
second, prints "known" when it knows of the other worker, and "done". After the third line it reads what was counted,
and writes its account to FILE. FILE.told has each loss and return of Redis as it comes.
"""

import asyncio
import itertools
import json
import logging
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.chaos import site
from tests.chaos.figures import Account, Record

HANDS = 6
"""Threads or tasks that ask at the same time."""
WORKERS = 2

_STOP = threading.Event()


def main() -> None:
    kind, file, rate, caches = sys.argv[1:]
    site.configure(json.loads(caches))
    account = Account()
    _listen(account, Path(f"{file}.told"))
    from django_quota.limiting.registry import get_limiter

    print("ready", flush=True)
    sys.stdin.readline()
    every = HANDS / float(rate)
    traffic = threading.Thread(target=_sync_traffic if kind == "sync" else _async_traffic, args=(account, every))
    traffic.start()
    workers = get_limiter().fallback.workers
    while workers is not None and workers.number < WORKERS:
        time.sleep(0.01)
    print("known", flush=True)
    sys.stdin.readline()
    _STOP.set()
    traffic.join()
    print("done", flush=True)
    sys.stdin.readline()
    account.used = _used()
    Path(file).write_text(json.dumps(asdict(account)))


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


def _listen(account: Account, told: Path) -> None:
    from django_quota.signals import store_back, store_lost

    def note(word: str) -> None:
        with told.open("a") as file:
            file.write(f"{time.monotonic()} {word}\n")

    def lost(reason: str, **_: Any) -> None:
        account.reasons.append(reason)
        note("lost")

    def back(**_: Any) -> None:
        account.back += 1
        note("back")

    store_lost.connect(lost, weak=False)
    store_back.connect(back, weak=False)

    lines = logging.Handler(logging.WARNING)
    lines.emit = lambda record: account.logged.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("django_quota")
    logger.addHandler(lines)
    logger.propagate = False
    logging.getLogger("django.request").setLevel(logging.CRITICAL)


def _turns(hand: int, every: float) -> Iterator[tuple[site.Policy, bool, float]]:
    """Yield the policy of each request, whether it is a view, and when it is due."""
    due = time.monotonic() + hand * every / HANDS
    for number in itertools.count(hand):
        policy = site.POLICIES[number % len(site.POLICIES)]
        yield policy, policy is site.PAIR or bool(number // len(site.POLICIES) % 2), due
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


def _sync_traffic(account: Account, every: float) -> None:
    from django.test import RequestFactory

    from django_quota import check
    from tests.chaos.views import VIEWS

    def hand(number: int) -> None:
        for policy, is_view, due in _turns(number, every):
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


def _async_traffic(account: Account, every: float) -> None:
    from django.test import RequestFactory

    from django_quota import acheck
    from tests.chaos.views import ASYNC_VIEWS

    async def hand(number: int) -> None:
        for policy, is_view, due in _turns(number, every):
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


if __name__ == "__main__":
    main()
