"""Overrides in memory, and the choice of the one that applies to a subject under a rule.

The most specific override in force wins: one of the subject itself, then of the smallest network that the subject's
address is in, of its kind (`user:*`), and of everybody (`*`). At each of these steps, an override of the rule takes
precedence over one of all rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_network
from typing import Any, Literal, NamedTuple

ALL_RULES = "*"
"""Stands for all rules."""

EVERYBODY = "*"
"""The subject that stands for all subjects."""

MAX_LOOK_UPS = 8192
"""For how many subjects a table remembers what it has found."""

OverrideMode = Literal["rate", "exempt", "blocked", "shadow"]


class Override(NamedTuple):
    """One override; `rates` only for the mode `rate`."""

    pk: int
    """The primary key of its row."""
    subject: str
    """A subject, a network (`ip:198.51.100.0/24`), a kind of subjects (`user:*`), or `EVERYBODY`."""
    rule: str
    """The name of a rule, or `ALL_RULES`."""
    mode: OverrideMode
    rates: str = ""
    begins: int = 0
    """Its start in microseconds since 1970; 0: it has always applied."""
    ends: int = 0
    """Its end in microseconds since 1970; 0: it has none."""

    def in_force(self, now: int) -> bool:
        """Return whether the override applies at a moment (microseconds)."""
        return self.begins <= now and (self.ends == 0 or now < self.ends)


class _Size(NamedTuple):
    """The size of a network: the version of IP, and how many bits its addresses share."""

    version: int
    length: int


def _bits_of(subject: str) -> tuple[_Size, int] | None:
    """Return the size of the network that a subject names (an address is the smallest one), and the bits it shares."""
    kind, _, text = subject.partition(":")
    if kind != "ip":
        return None
    try:
        network = ip_network(text)
    except ValueError:  # a subject of several parts
        return None
    number = int(network.network_address)
    return _Size(network.version, network.prefixlen), number >> network.max_prefixlen - network.prefixlen


def _first_in_force(overrides: Iterable[Override], now: int) -> Override | None:
    for override in overrides:
        if override.in_force(now):
            return override
    return None


def _of_rule(steps: Iterable[tuple[Override, ...]], rule: str) -> list[Override]:
    return [override for step in steps for name in (rule, ALL_RULES) for override in step if override.rule == name]


class OverrideTable:
    """The overrides of a process, found by subject. One thread may change it while others look up."""

    def __init__(self, overrides: Iterable[Override] = ()) -> None:
        self.by_pk: dict[int, Override] = {}
        """All of them, by primary key; empty if there are none."""
        self._by_subject: dict[str, tuple[Override, ...]] = {}
        """The overrides of exact subjects, of kinds and of everybody."""
        self._by_network: dict[_Size, dict[int, tuple[Override, ...]]] = {}
        """The overrides of networks, by size, then by the bits that their addresses share."""
        self._sizes: list[_Size] = []
        """The sizes of these networks, the smallest network first."""
        self._found: dict[str, Sequence[tuple[Override, ...]]] = {}
        """The overrides of the subjects that were looked up last. A change replaces it, so that a look-up that began
        before the change remembers nothing that was true only then."""
        for override in overrides:
            self.put(override)

    def __len__(self) -> int:
        return len(self.by_pk)

    def find(self, rule: str, subject: str, now: int) -> Override | None:
        """Return the override that applies to a subject under a rule at a moment (microseconds); None without one.

        Blocks may follow each other without a gap: the returned one ends when the last of them does.
        """
        steps = self._steps(subject)
        if not steps:
            return None
        matching = _of_rule(steps, rule)
        found = _first_in_force(matching, now)
        if found is None or found.mode != "blocked" or len(matching) == 1:
            return found
        edges = sorted({edge for each in matching for edge in (each.begins, each.ends) if edge > now})
        for edge in edges:
            then = _first_in_force(matching, edge)
            if then is None or then.mode != "blocked":
                return found._replace(ends=edge)
        return found._replace(ends=0)

    def matching(self, rule: str, subject: str) -> list[Override]:
        """Return the overrides for a subject under a rule, the most specific first, in force or not."""
        return _of_rule(self._steps(subject), rule)

    def of_subject(self, subject: str) -> list[Override]:
        """Return the overrides for a subject under any rule, the most specific subjects first."""
        return [override for step in self._steps(subject) for override in step]

    def _steps(self, subject: str) -> Sequence[tuple[Override, ...]]:
        """Return the overrides of the subject itself, of its networks, of its kind and of everybody."""
        found = self._found
        steps = found.get(subject)
        if steps is None:
            steps = self._steps_now(subject)
            if len(found) >= MAX_LOOK_UPS:
                found.clear()
            found[subject] = steps
        return steps

    def _steps_now(self, subject: str) -> Sequence[tuple[Override, ...]]:
        find, kind = self._by_subject.get, subject.partition(":")[0]
        steps = [own] if (own := find(subject)) else []
        if self._sizes and kind == "ip":
            steps += self._of_networks(subject)
        of_kind = find(f"{kind}:*")
        if of_kind and kind != subject and "+" not in subject and subject != f"{kind}:*":
            steps.append(of_kind)
        of_all = find(EVERYBODY)
        if of_all and subject != EVERYBODY:
            steps.append(of_all)
        return steps

    def _of_networks(self, subject: str) -> list[tuple[Override, ...]]:
        address = _bits_of(subject)
        if address is None:
            return []
        (version, length), bits = address
        return [
            found
            for size in self._sizes
            if size.version == version and size.length <= length
            if (found := self._by_network[size].get(bits >> length - size.length))
        ]

    # --- changes ------------------------------------------------------------------------------------------------------

    def put(self, override: Override) -> None:
        """Add an override, or replace the one with its primary key. A look-up meanwhile finds the old or the new one.

        If the subject changes, a look-up may find both or neither.
        """
        known = self.by_pk.get(override.pk)
        self.by_pk[override.pk] = override
        self._set(override.subject, override.pk, (override,))
        if known is not None and known.subject != override.subject:
            self._set(known.subject, override.pk, ())

    def drop(self, pk: int) -> None:
        """Drop the override with this primary key, if there is one."""
        known = self.by_pk.pop(pk, None)
        if known is not None:
            self._set(known.subject, pk, ())

    def drop_ended(self, now: int) -> None:
        """Drop the overrides that have ended at a moment (microseconds)."""
        for override in [each for each in self.by_pk.values() if each.ends and each.ends <= now]:
            self.drop(override.pk)

    def _set(self, subject: str, pk: int, replacement: tuple[Override, ...]) -> None:
        table: dict[Any, tuple[Override, ...]] = self._by_subject
        place: str | int = subject
        network = _bits_of(subject) if "/" in subject else None
        if network is not None:
            size, place = network
            if size not in self._by_network:
                self._by_network[size] = {}
                self._sizes = sorted(self._by_network, reverse=True)
            table = self._by_network[size]
        others = tuple(each for each in table.get(place, ()) if each.pk != pk)
        if others or replacement:
            table[place] = others + replacement
        else:
            table.pop(place, None)
        self._found = {}
