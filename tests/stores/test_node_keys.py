"""System keys of each primary of a Cluster: every primary of some size has one, and it moves with its slot."""

from __future__ import annotations

from django_quota.stores.cluster.slots import REGIONS, SLOTS, SYSTEM_SLOT, name_on, node_keys, slot_of
from django_quota.stores.redis.config import Address

A, B, C = (Address("10.0.0.1", port) for port in (1, 2, 3))
KEY = "quota:1:{!}:overrides"


def halves() -> dict[int, Address]:
    return {slot: A if slot < SLOTS // 2 else B for slot in range(SLOTS)}


def test_a_server_without_slots_has_no_name() -> None:
    assert name_on(KEY, C, halves().get) == ""


def test_the_server_of_the_system_keys_has_the_key_itself() -> None:
    owners = halves()
    assert name_on(KEY, owners[SYSTEM_SLOT], owners.get) == KEY


def test_a_name_moves_with_its_slot() -> None:
    owners = halves()
    other = B if owners[SYSTEM_SLOT] == A else A
    before = name_on(KEY, other, owners.get)
    owners[slot_of(before)] = C
    assert name_on(KEY, C, owners.get) == before
    assert name_on(KEY, other, owners.get) not in ("", before)


def test_each_region_has_a_name_and_each_server_of_some_size_too() -> None:
    names = node_keys(KEY)
    assert names[0] == KEY
    assert sorted(slot_of(name) * REGIONS // SLOTS for name in names[1:]) == list(range(REGIONS))
    least = 2 * SLOTS // REGIONS
    for first in range(0, SLOTS - least, least // 3):
        owners = {**dict.fromkeys(range(SLOTS), A), **dict.fromkeys(range(first, first + least), C)}
        found = name_on(KEY, C, owners.get)
        assert found in names
        assert owners[slot_of(found)] == C


def test_a_server_without_a_name_has_one_once_it_gets_the_slot_of_one() -> None:
    owners = halves()
    slots_of_names = set(map(slot_of, node_keys(KEY)))
    owners[next(slot for slot in range(SLOTS) if slot not in slots_of_names)] = C
    assert name_on(KEY, C, owners.get) == ""
    name = node_keys(KEY)[7]
    owners[slot_of(name)] = C
    assert name_on(KEY, C, owners.get) == name
