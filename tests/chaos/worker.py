"""A worker process: steady traffic from several threads or tasks, half of it views and half of it `check()`.

`python -m tests.chaos.worker KIND FILE RATE CACHES`. It prints "ready", works from the first line on stdin to the
second, prints "known" when it knows of the other worker, and "done". Each loss of Redis that it notices goes into a
second file. When stdin ends, it reads what was counted and writes its account to FILE.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.chaos import site
from tests.chaos.records import BACK, Account, Loss, Record, losses_beside
from tests.chaos.stalls import measured

HANDS = 6
"""Threads or tasks that ask at the same time."""
WORKERS = 2
"""How many share the limits: what is local is divided by it."""
LOOKS = 100

_STOP, _ENOUGH = threading.Event(), threading.Event()


def main() -> None:
    """Work from one word to the next."""
    kind, file, rate, caches = sys.argv[1:]
    site.configure(json.loads(caches))
    account = Account(kind)
    _listen(account, losses_beside(Path(file)))
    every = HANDS / float(rate)
    work = _SyncWork if kind == "sync" else _AsyncWork
    print("ready", flush=True)
    sys.stdin.readline()
    threading.Thread(target=_until_enough, daemon=True).start()
    threading.Thread(target=_until_known, daemon=True).start()
    with measured(account.stalls):
        work(account, every).run()
        print("done", flush=True)
        _ENOUGH.wait()
        account.used = _used()
    account.write(Path(file))


def _until_known() -> None:
    from django_quota.limiting.registry import get_limiter

    workers = get_limiter().fallback.workers
    while workers is not None and workers.number < WORKERS:
        time.sleep(0.01)
    print("known", flush=True)


def _until_enough() -> None:
    sys.stdin.readline()
    _STOP.set()
    sys.stdin.read()
    _ENOUGH.set()


def _used() -> int | None:
    """Look what was counted: again, where a busy machine does not answer in time, until no outage goes on."""
    from django_quota import peek
    from django_quota.limiting.registry import get_limiter

    for _ in range(LOOKS):
        found = peek(site.BESIDE.name, site.BESIDE.subject)
        if not found.degraded and found.remaining is not None and not get_limiter().outages.is_on:
            return site.BESIDE.limit - found.remaining
        time.sleep(0.1)
    return None


def _listen(account: Account, path: Path) -> None:
    from django_quota.signals import store_back, store_lost

    def lost(reason: str, **_: Any) -> None:
        account.losses.append(Loss(time.monotonic(), reason))
        note(f"{account.losses[-1].at}")

    def back(**_: Any) -> None:
        account.back += 1
        note(BACK)

    def note(line: str) -> None:
        with path.open("a") as file:
            file.write(f"{line}\n")

    store_lost.connect(lost, weak=False)
    store_back.connect(back, weak=False)

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            account.logged.append(record.getMessage())

    logger = logging.getLogger("django_quota")
    logger.addHandler(Lines(logging.WARNING))
    logger.propagate = False


class _Work:
    def __init__(self, account: Account, every: float) -> None:
        from django.test import RequestFactory

        self.account = account
        self.every = every
        self.factory = RequestFactory()

    def turns(self, hand: int) -> Any:
        """Yield what each request is about: its policy, whether it is a view; and when it is due."""
        due = time.monotonic() + hand * self.every / HANDS
        for number in itertools.count(hand):
            policy = site.POLICIES[number % len(site.POLICIES)]
            yield policy, policy is site.PAIR or bool(number // len(site.POLICIES) % 2), due
            due = max(due + self.every, time.monotonic())  # what was missed while it waited is not made up for
            if _STOP.is_set():
                return

    def note(self, policy: str, started: float, answer: tuple[bool, bool] | Exception) -> None:
        if isinstance(answer, Exception):
            record = Record(policy, started, time.monotonic(), False, False, f"{type(answer).__name__}: {answer}")
        else:
            record = Record(policy, started, time.monotonic(), *answer, "")
        self.account.records.append(record)


class _SyncWork(_Work):
    def run(self) -> None:
        hands = [threading.Thread(target=self.hand, args=(number,)) for number in range(HANDS)]
        for hand in hands:
            hand.start()
        for hand in hands:
            hand.join()

    def hand(self, number: int) -> None:
        for policy, is_view, due in self.turns(number):
            time.sleep(max(0.0, due - time.monotonic()))
            started = time.monotonic()
            try:
                answer: Any = self.ask(policy, is_view)
            except Exception as error:  # noqa: BLE001 — whatever it is, it is what the suite looks for
                answer = error
            self.note(policy.name, started, answer)

    def ask(self, policy: site.Policy, is_view: bool) -> tuple[bool, bool]:
        from django_quota import check
        from tests.chaos.views import VIEWS

        if is_view:
            request: Any = self.factory.get("/")
            response = VIEWS[policy.name](request)
            return response.status_code == 200, request.quota.degraded
        decision = check(policy.name, policy.subject)
        return decision.allowed, decision.degraded


class _AsyncWork(_Work):
    def run(self) -> None:
        async def together() -> None:
            await asyncio.gather(*map(self.hand, range(HANDS)))

        asyncio.run(together())

    async def hand(self, number: int) -> None:
        for policy, is_view, due in self.turns(number):
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            started = time.monotonic()
            try:
                answer: Any = await self.ask(policy, is_view)
            except Exception as error:  # noqa: BLE001 — whatever it is, it is what the suite looks for
                answer = error
            self.note(policy.name, started, answer)

    async def ask(self, policy: site.Policy, is_view: bool) -> tuple[bool, bool]:
        from django_quota import acheck
        from tests.chaos.views import ASYNC_VIEWS

        if is_view:
            request: Any = self.factory.get("/")
            response = await ASYNC_VIEWS[policy.name](request)
            return response.status_code == 200, request.quota.degraded
        decision = await acheck(policy.name, policy.subject)
        return decision.allowed, decision.degraded


if __name__ == "__main__":
    main()
