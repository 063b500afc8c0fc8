"""Errands over a Cluster: which go along where, and when they no longer wait. The clock is passed in."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ClusterDownError, MovedError, NoPermissionError, TryAgainError

from django_quota.stores.cluster_errands import (
    LONGEST_WAIT,
    MOST_KNOWN,
    REGIONS,
    SYSTEM_SLOT,
    ClusterErrands,
    Twins,
    in_each_region,
)
from django_quota.stores.errands import EVERY, Watch
from django_quota.stores.slots import SLOTS, Address, SlotTable, slot_of

A, B, C = (Address("10.0.0.1", port) for port in (1, 2, 3))
KEY = "quota:1:{!}:overrides"


class Told:
    """An errand about the system's keys."""

    def question(self) -> tuple[str, str]:
        return ("GET", KEY)

    def answered(self, reply: Any) -> None: ...

    def lost(self) -> None: ...

    def tell(self) -> None: ...


class Setup:
    def __init__(self) -> None:
        self.now = 0.0
        self.lost: list[int] = []
        self.table = SlotTable([A])
        self.twins = Twins(lambda: self.table)
        watch = Watch(lambda: KEY, lambda: self.lost.append(1))
        self.errands = ClusterErrands([watch, Told()], lambda: self.table, lambda: self.now)

    def known(self) -> Setup:
        self.table.learn([[0, 8191, ["10.0.0.1", 1]], [8192, 16383, ["10.0.0.1", 2]]], A)
        return self

    def wires(self, server: Address) -> list[bytes]:
        return [errand.wire for errand in self.errands.due(server)]


def test_nothing_goes_along_before_it_is_known_who_has_what() -> None:
    setup = Setup()
    assert setup.wires(A) == []
    system = setup.known().table.owner(SYSTEM_SLOT)
    assert system is not None
    assert len(setup.wires(system)) == 2


def test_they_go_to_the_server_of_the_systems_keys_alone() -> None:
    setup = Setup().known()
    system = setup.table.owner(SYSTEM_SLOT)
    assert system is not None
    assert setup.wires(B if system == A else A) == []
    assert KEY.encode() in setup.wires(system)[0]
    assert setup.wires(system) == []
    setup.now += EVERY
    assert len(setup.wires(system)) == 2
    setup.errands.hurry()
    assert len(setup.wires(system)) == 2


def test_a_server_without_slots_has_no_names() -> None:
    setup = Setup().known()
    assert setup.wires(C) == []
    assert (setup.twins.name(KEY, C), setup.twins.in_a_region(KEY, C)) == ("", "")


def test_a_twin_moves_with_its_slot() -> None:
    setup = Setup().known()
    other = B if setup.table.owner(SYSTEM_SLOT) == A else A
    for name in (setup.twins.name, setup.twins.in_a_region):
        before = name(KEY, other)
        setup.table.moved(slot_of(before), C)
        assert name(KEY, other) not in ("", before)


def test_there_is_a_twin_in_each_region_of_the_slots_and_each_server_of_some_size_has_one() -> None:
    names = in_each_region(KEY)
    assert names[0] == KEY
    assert sorted(slot_of(name) * REGIONS // SLOTS for name in names[1:]) == list(range(REGIONS))
    setup, least = Setup(), 2 * SLOTS // REGIONS
    for first in range(0, SLOTS - least, least // 3):
        setup.table.learn([[0, SLOTS - 1, ["10.0.0.1", 1]], [first, first + least - 1, ["10.0.0.1", 3]]], A)
        found = setup.twins.in_a_region(KEY, C)
        assert found in names
        assert setup.table.owner(slot_of(found)) == C


def test_a_server_that_has_no_whole_region_yet_has_a_name_from_when_it_has_one() -> None:
    setup = Setup().known()
    of_regions = set(map(slot_of, in_each_region(KEY)))
    other = next(slot for slot in map(slot_of, (f"{{!{number}}}" for number in range(SLOTS))) if slot not in of_regions)
    setup.table.moved(other, C)
    assert setup.twins.in_a_region(KEY, C) == ""
    assert setup.twins.name(KEY, C) != ""
    mark = in_each_region(KEY)[7]
    setup.table.moved(slot_of(mark), C)
    assert setup.twins.in_a_region(KEY, C) == mark


def test_what_no_call_goes_along_with_is_late_once() -> None:
    setup = Setup().known()
    assert not setup.errands.are_late
    setup.now += LONGEST_WAIT + 1
    assert [setup.errands.are_late for _ in range(2)] == [True, False]
    setup.now += LONGEST_WAIT - 1
    system = setup.table.owner(SYSTEM_SLOT)
    assert system
    setup.errands.due(system)
    setup.now += LONGEST_WAIT - 1
    assert not setup.errands.are_late


@pytest.mark.parametrize(
    "error", [ClusterDownError("The cluster is down"), MovedError("1 10.0.0.1:2"), TryAgainError("Multiple keys")]
)
def test_a_server_that_serves_nothing_at_the_moment_is_no_matter_for_a_watch(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """It is an outage, or a slot on the move; a permission that is missing is what is complained of, once."""
    setup = Setup()
    watch = Watch(lambda: KEY, lambda: setup.lost.append(1))
    watch.answered(error)
    watch.tell()
    assert (caplog.messages, setup.lost) == ([], [])
    for _ in range(2):
        watch.answered(NoPermissionError("this user has no permissions to run the 'exists' command"))
    assert len(caplog.messages) == 1


def test_of_servers_that_came_and_went_little_is_remembered() -> None:
    setup = Setup()
    for number in range(MOST_KNOWN + 10):
        setup.table.learn([[0, 8191, ["10.0.0.1", number]], [8192, 16383, ["10.0.0.2", number]]], A)
        for host in ("10.0.0.1", "10.0.0.2"):
            setup.twins.name(KEY, Address(host, number))
    assert len(setup.twins._tags) <= MOST_KNOWN
