"""System keys of each primary of a Cluster: every primary of some size has one, and it moves with its slot."""

from __future__ import annotations

from django_quota.stores.cluster.node_keys import MAX_KNOWN, REGIONS, SYSTEM_SLOT, NodeKeys, node_keys
from django_quota.stores.cluster.slots import SLOTS, Address, SlotTable, slot_of

A, B, C = (Address("10.0.0.1", port) for port in (1, 2, 3))
KEY = "quota:1:{!}:overrides"


class Setup:
    def __init__(self) -> None:
        self.table = SlotTable([A])
        self.keys = NodeKeys(lambda: self.table)

    def known(self) -> Setup:
        self.table.learn([[0, 8191, ["10.0.0.1", 1]], [8192, 16383, ["10.0.0.1", 2]]], A)
        return self


def test_a_server_without_slots_has_no_name() -> None:
    assert Setup().known().keys.name(KEY, C) == ""


def test_a_name_moves_with_its_slot() -> None:
    setup = Setup().known()
    other = B if setup.table.owner(SYSTEM_SLOT) == A else A
    before = setup.keys.name(KEY, other)
    setup.table.moved(slot_of(before), C)
    assert setup.keys.name(KEY, other) not in ("", before)


def test_each_region_has_a_name_and_each_server_of_some_size_too() -> None:
    names = node_keys(KEY)
    assert names[0] == KEY
    assert sorted(slot_of(name) * REGIONS // SLOTS for name in names[1:]) == list(range(REGIONS))
    setup, least = Setup(), 2 * SLOTS // REGIONS
    for first in range(0, SLOTS - least, least // 3):
        setup.table.learn([[0, SLOTS - 1, ["10.0.0.1", 1]], [first, first + least - 1, ["10.0.0.1", 3]]], A)
        found = setup.keys.name(KEY, C)
        assert found in names
        assert setup.table.owner(slot_of(found)) == C


def test_a_server_without_a_name_has_one_once_it_gets_the_slot_of_one() -> None:
    setup = Setup().known()
    slots_of_names = set(map(slot_of, node_keys(KEY)))
    other = next(slot for slot in range(SLOTS) if slot not in slots_of_names)
    setup.table.moved(other, C)
    assert setup.keys.name(KEY, C) == ""
    name = node_keys(KEY)[7]
    setup.table.moved(slot_of(name), C)
    assert setup.keys.name(KEY, C) == name


def test_the_names_of_few_past_servers_are_remembered() -> None:
    setup = Setup()
    for number in range(MAX_KNOWN + 10):
        setup.table.learn([[0, 8191, ["10.0.0.1", number]], [8192, 16383, ["10.0.0.2", number]]], A)
        for host in ("10.0.0.1", "10.0.0.2"):
            setup.keys.name(KEY, Address(host, number))
    assert len(setup.keys._known) <= MAX_KNOWN
