"""Who a rule does not hold for: networks, staff, whom a function says. Pure: it reads, and asks nobody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Any

from django_quota.exceptions import RuleError

STAFF = "staff"

Network = IPv4Network | IPv6Network

_EXAMPLE = "'10.0.0.0/8' (a network), 'staff' or a function of the request would do."


@dataclass(frozen=True)
class Exemption:
    """Of these, one is enough."""

    networks: tuple[Network, ...]
    staff: bool
    functions: tuple[Callable[[Any], Any], ...]
    """Functions of the request, sync or async; true where it is exempt."""

    @classmethod
    def read(cls, value: object) -> Exemption:
        """Read what a rule says: a network, `"staff"`, a function, or a list of those. Raises `RuleError`."""
        if isinstance(value, Exemption):
            return value
        entries = value if isinstance(value, (list, tuple, set, frozenset)) else (value,)
        if not entries:
            raise RuleError(f"exempt={value!r} names nobody.", _EXAMPLE)
        functions = tuple(entry for entry in entries if callable(entry))
        texts = [entry for entry in entries if not callable(entry)]
        networks = tuple(_network(text) for text in texts if text != STAFF)
        return cls(networks, STAFF in texts, functions)


def _network(value: object) -> Network:
    try:
        if not isinstance(value, (str, IPv4Network, IPv6Network, IPv4Address, IPv6Address)):
            raise ValueError(f"it is {type(value).__name__}, not a text")  # noqa: TRY301, TRY004
        return ip_network(value)
    except ValueError as error:
        raise RuleError(f"exempt={value!r}: {error}.", _EXAMPLE) from None
