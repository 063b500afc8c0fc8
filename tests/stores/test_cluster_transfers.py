"""Transfers on a real Redis Cluster: the totals lie on several servers, and what fails leaves nothing half done."""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from django.core.management import call_command

from django_quota.engine.counter_operations import MAX_INT64, Transfer, TransferRoute
from django_quota.engine.operations import Operation
from django_quota.engine.transfer_operations import LEASE, MARGIN, OVERDUE, Close, Receive, Send, Settle
from django_quota.exceptions import ConfigurationError, CounterError, StoreUnavailable
from django_quota.stores.cluster.slots import slot_of
from django_quota.stores.cluster.store_cluster import ClusterStore
from django_quota.testing import freeze
from tests.support.clusters import Cluster, running_cluster
from tests.support.commands import wait_until
from tests.support.processes import ended, forks, heard, processes, started, threads_ran
from tests.support.steps import SECOND
from tests.support.stores import cluster_caches, cluster_program, current_store
from tests.support.transfers import ACCOUNTS, COINS, EACH, Movers, any_of, filled, now, swept, total_of, totals

Do = Callable[..., Any]


def ttls(cluster: Cluster) -> list[int]:
    return [server.client.pttl(key) for server in cluster.primaries() for key in server.client.scan_iter()]


def on_the_way(cluster: Cluster) -> list[str]:
    found = cluster.keys()
    return [key for key in found if ":m:" in key]


def pair(cluster: Cluster) -> tuple[str, str]:
    """Return two accounts on different servers."""
    first = ACCOUNTS[0]
    other = next(each for each in ACCOUNTS if cluster.owner(total_of(each)) is not cluster.owner(total_of(first)))
    return first, other


@pytest.fixture(params=["sync", "async"])
def do(request: pytest.FixtureRequest) -> Do:
    """Move amounts, sync or async."""
    if request.param == "sync":
        return COINS.transfer
    return lambda *asked: asyncio.run(COINS.atransfer(*asked))


class Faults:
    """Lets steps of transfers fail: before they were done, or after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before: Callable[[Operation], bool] = lambda operation: False
        self.after: Callable[[Operation], bool] = lambda operation: False
        run_all, arun_all = ClusterStore.run_all, ClusterStore.arun_all

        def failing(store: ClusterStore, operations: Sequence[Operation], now: int | None) -> list[Any]:
            self._fail(self.before, operations)
            replies = run_all(store, operations, now)
            self._fail(self.after, operations)
            return replies

        async def afailing(store: ClusterStore, operations: Sequence[Operation], now: int | None) -> list[Any]:
            self._fail(self.before, operations)
            replies = await arun_all(store, operations, now)
            self._fail(self.after, operations)
            return replies

        monkeypatch.setattr(ClusterStore, "run_all", failing)
        monkeypatch.setattr(ClusterStore, "arun_all", afailing)

    def _fail(self, fails: Callable[[Operation], bool], operations: Sequence[Operation]) -> None:
        if any(isinstance(each, (Send, Receive, Settle, Close)) and fails(each) for each in operations):
            raise StoreUnavailable("gone")

    def over(self) -> None:
        self.before = self.after = lambda operation: False


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    made = Faults(monkeypatch)
    yield made
    made.over()


def is_a(step: type[Operation]) -> Callable[[Operation], bool]:
    return lambda operation: isinstance(operation, step)


class TestOne:
    def test_it_moves_all_or_nothing(self, cluster: Cluster, do: Do) -> None:
        one, two = pair(cluster)
        COINS.set(one, 10)
        assert [do(one, two, n) for n in (4, 7, 6, 1, 0)] == [True, False, True, False, True]
        assert (COINS.get(one), COINS.get(two)) == (0, 10)
        COINS.set(one, -5)
        assert (do(one, two, 0), do(two, one, 3), COINS.get(one), COINS.get(two)) == (False, True, -2, 7)
        assert not on_the_way(cluster)

    def test_one_slot_is_one_call_and_leaves_no_entry_in_the_outbox(self, cluster: Cluster, do: Do) -> None:
        COINS.set(ACCOUNTS[0], 5)
        assert [do(ACCOUNTS[0], ACCOUNTS[0], n) for n in (5, 6)] == [True, False]
        assert cluster.keys() == {total_of(ACCOUNTS[0])}
        asked = [total_of(ACCOUNTS[0]), f"quota:1:{{{ACCOUNTS[0]}}}:c:other"]
        store: Any = current_store()
        assert store.run(Transfer(asked, 2, SECOND, TransferRoute("x", "", ""))) == [1]

    def test_that_it_has_come_is_remembered_for_two_hours(self, cluster: Cluster, do: Do) -> None:
        one, two = pair(cluster)
        COINS.set(one, 5)
        began = time.monotonic()
        do(one, two, 3)
        inbox = f"quota:1:{{{two}}}:n:coins"
        left = cluster.owner(inbox).client.pttl(inbox) / 1_000
        assert 7_200 - (time.monotonic() - began) - 1 <= left <= 7_201

    def test_a_number_of_64_bits_goes_as_it_is(self, cluster: Cluster, do: Do) -> None:
        one, two = pair(cluster)
        COINS.set(one, MAX_INT64 - 1)
        assert do(one, two, MAX_INT64) is False
        assert do(one, two, MAX_INT64 - 1) is True
        assert (COINS.get(one), COINS.get(two)) == (0, MAX_INT64 - 1)

    def test_what_the_destination_cannot_hold_returns_to_the_source(self, cluster: Cluster, do: Do) -> None:
        one, two = pair(cluster)
        COINS.set(one, 5)
        COINS.set(two, MAX_INT64 - 4)
        for _ in range(2):
            with pytest.raises(CounterError, match="beyond 64 bits") as error:
                do(one, two, 5)
            assert (error.value.subject, COINS.get(one), COINS.get(two)) == (two, 5, MAX_INT64 - 4)
        assert do(one, two, 4) is True
        assert not on_the_way(cluster)

    @pytest.mark.parametrize("wrong", ["list", "word"])
    def test_a_key_that_is_no_total_is_an_error_and_nothing_changes(self, cluster: Cluster, do: Do, wrong: str) -> None:
        one, two = pair(cluster)
        COINS.set(one, 5)
        client = cluster.owner(total_of(two)).client
        client.rpush(total_of(two), "x") if wrong == "list" else client.set(total_of(two), "007")
        client.expire(total_of(two), 60)
        before = client.dump(total_of(two))
        for source, destination in ((one, two), (two, one)):
            with pytest.raises(CounterError, match=r"in Redis is not a counter") as error:
                do(source, destination, 5)
            assert error.value.subject == two
        assert (COINS.get(one), client.dump(total_of(two))) == (5, before)
        assert not on_the_way(cluster)

    @pytest.mark.parametrize("key", ["m", "n"])
    def test_an_outbox_of_another_type_is_unavailable(self, cluster: Cluster, do: Do, key: str) -> None:
        one, two = pair(cluster)
        COINS.set(one, 5)
        place = f"quota:1:{{{one if key == 'm' else two}}}:{key}:coins"
        cluster.owner(place).client.set(place, "x", ex=60)
        with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
            do(one, two, 3)
        assert COINS.get(two) == 0
        assert COINS.get(one) == (5 if key == "m" else 2)
        cluster.owner(place).client.delete(place)
        assert swept().transfers_finished == (key == "n")
        assert COINS.get(one) + COINS.get(two) == 5

    def test_every_key_has_a_ttl_at_every_step(self, cluster: Cluster, do: Do, faults: Faults) -> None:
        one, two = pair(cluster)
        COINS.set(one, 50)
        for step in (Send, Receive, Settle, Close):
            for kind in ("before", "after"):
                faults.over()
                setattr(faults, kind, is_a(step))
                if step is Close:
                    assert do(one, two, 1)
                else:
                    with pytest.raises(StoreUnavailable):
                        do(one, two, 1)
                assert min(ttls(cluster)) > 0
        faults.over()
        assert swept().transfers_pending == 0
        inbox = f"quota:1:{{{two}}}:n:coins"
        left = cluster.owner(inbox).client.pttl(inbox)
        assert left > (LEASE + MARGIN) / 1_000
        assert COINS.get(one) + COINS.get(two) == 50
        assert not on_the_way(cluster)

    @pytest.mark.parametrize("kind", ["before", "after"])
    @pytest.mark.parametrize("step", [Receive, Settle])
    def test_the_next_transfer_from_the_source_resumes_what_is_pending(
        self, cluster: Cluster, do: Do, faults: Faults, step: type[Operation], kind: str
    ) -> None:
        one, two = pair(cluster)
        COINS.set(one, 9)
        setattr(faults, kind, is_a(step))
        with freeze(now() - 2 * OVERDUE), pytest.raises(StoreUnavailable):
            do(one, two, 3)
        faults.over()
        assert COINS.get(one) == 6
        assert do(one, ACCOUNTS[-1], 1)
        assert (COINS.get(one), COINS.get(two)) == (5, 3)
        assert not on_the_way(cluster)

    def test_several_slots_in_one_call_are_a_clear_error(self, cluster: Cluster) -> None:
        store: Any = current_store()
        one, two = pair(cluster)
        asked = Transfer([total_of(one), total_of(two)], 1, SECOND, TransferRoute("", "", ""))
        with pytest.raises(ConfigurationError, match="several slots"):
            store.run_all([asked], None)


def all_is_there() -> int:
    """Sweep until nothing is on the route: a server may still read what was sent; return how many were carried on."""
    carried = []

    def is_there() -> bool:
        found = swept()
        carried.append(found.transfers_finished)
        return found.transfers_pending == 0 and sum(totals()) == 20 * EACH

    wait_until(is_there)
    assert min(totals()) >= 0
    return sum(carried)


class TestMany:
    @pytest.mark.thorough("topology")
    def test_threads_and_tasks_keep_the_sum_whatever_fails(self, cluster: Cluster, faults: Faults) -> None:
        filled()
        chance = random.Random(5)
        faults.before = faults.after = lambda operation: chance.random() < 0.03
        movers = Movers()
        movers.run(lambda done: done < 250)
        faults.over()
        left = on_the_way(cluster)
        assert min(totals()) >= 0
        assert left
        assert min(movers.moved, movers.refused, movers.failed) > 20
        report = swept(dry_run=True)
        assert (sum(totals()) < 20 * EACH, report.transfers_finished > 0, report.transfers_pending) == (True, True, 0)
        again = swept()
        assert (again.transfers_finished, again.transfers_pending) == (report.transfers_finished, 0)
        assert min(totals()) >= 0
        assert sum(totals()) == 20 * EACH
        assert not on_the_way(cluster)
        assert min(ttls(cluster)) > 0
        assert len({cluster.owner(total_of(name)).port for name in ACCOUNTS}) == 3
        finished = report.transfers_finished
        print(f"{movers.moved} moved, {movers.refused} refused, {movers.failed} failed, {finished} finished")

    def test_several_sweeps_at_once_resume_each_transfer_once(self, cluster: Cluster, faults: Faults) -> None:
        filled()
        chance = random.Random(6)
        faults.after = lambda operation: isinstance(operation, (Send, Receive, Settle)) and chance.random() < 0.5
        Movers(tasks=2).run(lambda done: done < 40)
        faults.over()
        assert len(on_the_way(cluster)) > 10
        with ThreadPoolExecutor(4) as pool:
            for each in [pool.submit(swept) for _ in range(4)]:
                assert each.result().transfers_pending == 0
        assert sum(totals()) == 20 * EACH
        assert not on_the_way(cluster)

    def test_tasks_that_are_cancelled_leave_the_sum(self, cluster: Cluster) -> None:
        async def cancelled(seed: int) -> bool:
            chance = random.Random(seed)
            task = asyncio.ensure_future(COINS.atransfer(*any_of(chance)))
            for _ in range(chance.randint(1, 120)):
                await asyncio.sleep(0)
            return task.cancel()

        async def many() -> int:
            await asyncio.gather(
                *(COINS.atransfer(*any_of(random.Random(-seed))) for seed in range(20))
            )  # is connected
            return sum([await cancelled(seed) for seed in range(400)])

        filled()
        assert asyncio.run(many()) > 40
        carried = all_is_there()
        assert carried
        print(f"{carried} finished")

    @pytest.mark.thorough("topology")
    @forks
    @threads_ran
    def test_processes_that_are_killed_leave_the_sum(self, cluster: Cluster) -> None:
        filled()
        current_store().close()
        printed, report = os.pipe()

        def work(seed: int) -> None:
            chance = random.Random(seed)
            while True:
                COINS.transfer(*any_of(chance))
                os.write(report, b".")

        with processes() as children:
            for seed in range(60):
                children.append(started(partial(work, seed)))
                if len(children) == 3:
                    heard(printed, 50)
                    os.kill(children[0], signal.SIGKILL)
                    assert ended([children.pop(0)]) == [-signal.SIGKILL]
        os.close(report)
        os.close(printed)
        print(f"{all_is_there()} carried on, of 60 processes that were killed")


@pytest.mark.thorough("topology")
def test_a_destination_that_hangs_gets_the_amount_once_when_it_wakes(settings: Any) -> None:
    with running_cluster(cluster_program()) as own:
        settings.CACHES = cluster_caches(own, socket_timeout=1.5, socket_connect_timeout=1.5)
        one, two = pair(own)
        COINS.set(one, 9)
        assert COINS.transfer(one, two, 1)
        destination = own.owner(total_of(two))
        destination.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailable):
                COINS.transfer(one, two, 3)
        finally:
            destination.process.send_signal(signal.SIGCONT)
        wait_until(lambda: all(server.client.cluster("info")["cluster_state"] == "ok" for server in own.servers))
        wait_until(lambda: destination.client.get(total_of(two)) == b"4")
        assert COINS.get(one) == 5
        assert on_the_way(own)
        assert swept().transfers_finished == 1
        assert (COINS.get(one), COINS.get(two), on_the_way(own)) == (5, 4, [])


class TestTheSweep:
    def left(self, cluster: Cluster, faults: Faults) -> tuple[str, str]:
        """Leave an amount on the route, overdue."""
        one, two = pair(cluster)
        COINS.set(one, 5)
        faults.before = is_a(Receive)
        with freeze(now() - 2 * OVERDUE), pytest.raises(StoreUnavailable):
            COINS.transfer(one, two, 3)
        return one, two

    def test_the_command_says_which_transfers_it_resumes(self, cluster: Cluster, faults: Faults) -> None:
        one, two = self.left(cluster, faults)

        def printed(**options: Any) -> str:
            out = io.StringIO()
            call_command("quota_sweep", stdout=out, stderr=io.StringIO(), **options)
            return out.getvalue()

        assert "Would resume 1 interrupted transfer.\n" in printed(dry_run=True)
        assert (COINS.get(one), COINS.get(two)) == (2, 0)
        assert "Resumed 0 interrupted transfers; 1 could not be finished" in printed()
        found = json.loads(printed(json=True))
        assert (found["transfers_finished"], found["transfers_pending"]) == (0, 1)
        faults.over()
        assert json.loads(printed(json=True, rule="any"))["transfers_finished"] == 0
        assert json.loads(printed(json=True))["transfers_finished"] == 1
        assert (COINS.get(one), COINS.get(two)) == (2, 3)
        assert "left on the route" not in printed()

    def test_what_came_is_forgotten_in_time(self, cluster: Cluster) -> None:
        one, two = pair(cluster)
        COINS.set(one, 5)
        with freeze(now() - LEASE - MARGIN - SECOND):
            COINS.transfer(one, two, 3)
        inbox = f"quota:1:{{{two}}}:n:coins"
        assert cluster.keys() == {total_of(one), total_of(two), inbox}
        assert swept().emptied == 1
        assert cluster.keys() == {total_of(one), total_of(two)}

    def test_a_server_that_is_gone_holds_up_nothing_else(self, cluster: Cluster, faults: Faults) -> None:
        one, two = self.left(cluster, faults)
        three = next(
            each for each in ACCOUNTS if slot_of(total_of(each)) not in {slot_of(total_of(n)) for n in (one, two)}
        )
        with freeze(now() - 2 * OVERDUE), pytest.raises(StoreUnavailable):
            COINS.transfer(one, three, 2)
        faults.before = lambda operation: isinstance(operation, Receive) and operation.keys[0] == total_of(two)
        report = swept()
        assert (report.transfers_finished, report.transfers_pending, report.complete) == (1, 1, True)
        assert (COINS.get(two), COINS.get(three)) == (0, 2)
