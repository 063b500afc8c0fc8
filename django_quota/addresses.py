"""Who a request comes from: the client's address behind proxies, and its one spelling. It knows no rules."""

from __future__ import annotations

import logging
import os
import reprlib
import sys
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Network, ip_address
from typing import Literal

from django.http import HttpRequest

from django_quota.conf import UNIX, Network, current
from django_quota.exceptions import ConfigurationError, RuleError

logger = logging.getLogger("django_quota")

_UNIX_PEERS = ("", "unix:", "unix")
"""What servers put into REMOTE_ADDR for a peer on a unix socket."""

FULL_IPV6 = 128
"""The bits of a whole IPv6 address."""

LONGEST = 64
"""Characters that an address has at most, its zone included: what is longer is none, and must not fill the caches."""


def client_ip(request: HttpRequest) -> str:
    """Return the address of the client; IPv6 as its network (/64 unless set).

    It is the peer's own, unless the peer is one of `TRUSTED_PROXIES`: then X-Forwarded-For is walked from the right,
    past the proxies that are trusted too, to the first address that is not. What stands left of it was written by the
    client and is never looked at. Raises `ConfigurationError` where there is no address at all.
    """
    settings = current()
    return _client(request, settings.ipv6_prefix, settings.trusted_proxies)


def is_from(request: HttpRequest, networks: tuple[Network, ...]) -> bool:
    """Say whether the client's address, whole, lies in one of these networks."""
    return _is_in(_client(request, FULL_IPV6, current().trusted_proxies), networks)


def _client(request: HttpRequest, ipv6_prefix: int, proxies: tuple[Network | Literal["unix"], ...]) -> str:
    peer = request.META.get("REMOTE_ADDR") or ""
    if "HTTP_X_FORWARDED_FOR" in request.META:
        if not proxies:
            _complain_of_a_proxy(peer)
        if hasattr(request, "scope") and _server_believes_everybody():
            _complain_of_the_server()
    if proxies and _is_in(peer, proxies):
        peer = _walk(peer, request.META.get("HTTP_X_FORWARDED_FOR", ""), proxies)
    address = canonical(peer, ipv6_prefix)
    if address is None:
        raise _unknown(peer, proxies)
    return address


_told_of_proxies: set[str] = set()


def _complain_of_a_proxy(peer: str) -> None:
    """Say once a process that all who come through a proxy count as one. A client alone may send the header, too."""
    if _told_of_proxies or not _is_private(peer):
        return
    _told_of_proxies.add(peer)
    logger.warning(
        'X-Forwarded-For came from %s, and QUOTA["TRUSTED_PROXIES"] is empty. If that is a proxy of yours, all behind '
        'it count as one client: "TRUSTED_PROXIES": [%r] would do.',
        peer,
        peer,
    )


@lru_cache(maxsize=1)
def _server_believes_everybody() -> bool:
    """Say whether uvicorn, also as gunicorn's worker, was told to believe everybody's X-Forwarded-For."""
    given, allowed = sys.argv, os.environ.get("FORWARDED_ALLOW_IPS", "")
    for option, value in zip(given, [*given[1:], ""], strict=True):
        if option == _ALLOWED:
            allowed = value
        elif option.startswith(f"{_ALLOWED}="):
            allowed = option.partition("=")[2]
    return "--no-proxy-headers" not in given and allowed.strip() == "*"


_ALLOWED = "--forwarded-allow-ips"


@lru_cache(maxsize=1)
def _complain_of_the_server() -> None:
    """Say once a process that any client chooses its own address."""
    logger.warning(
        "The server runs with %s '*': it takes the client's address from X-Forwarded-For, whoever sends it, before "
        "TRUSTED_PROXIES is asked. So every client chooses its own address, and its own limit. Start uvicorn with "
        "--no-proxy-headers, or gunicorn with %s ''.",
        _ALLOWED,
        _ALLOWED,
    )


def _is_private(peer: str) -> bool:
    try:
        return ip_address(peer).is_private
    except ValueError:
        return False


def _unknown(peer: str, proxies: tuple[Network | str, ...]) -> ConfigurationError:
    problem = f"The client's IP is unknown: REMOTE_ADDR is {peer!r} and no trusted proxy names one."
    if peer not in _UNIX_PEERS:
        return ConfigurationError(problem, "The server must put the peer's address into REMOTE_ADDR.")
    if UNIX in proxies:
        return ConfigurationError(problem, "The proxy that connects by a unix socket must set X-Forwarded-For.")
    return ConfigurationError(
        problem, 'Behind a proxy that connects by a unix socket, QUOTA["TRUSTED_PROXIES"] = ["unix"] would do.'
    )


def _walk(peer: str, forwarded: str, proxies: tuple[Network | str, ...]) -> str:
    nearest = peer
    for hop in reversed(forwarded.split(",")):
        address = _bare(hop.strip())
        if len(address) > LONGEST or canonical(address, FULL_IPV6) is None:
            break  # not an address: the proxy that passed it on is the last one that can be believed
        nearest = address
        if not _is_in(address, proxies):
            break
    return nearest


def _bare(hop: str) -> str:
    """Strip the port that some proxies add: `1.2.3.4:567`, `[2001:db8::1]:567`."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    host, colon, _ = hop.partition(":")
    return host if colon and "." in host else hop


@lru_cache(maxsize=4096)
def canonical(text: str, ipv6_prefix: int) -> str | None:
    """Return an address in its one spelling, IPv6 as its network; None where the text is no address."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if ipv6_prefix == FULL_IPV6:
        return str(address)
    return str(IPv6Network((int(address), ipv6_prefix), strict=False))


@lru_cache(maxsize=4096)
def _is_in(peer: str, networks: tuple[Network | str, ...]) -> bool:
    if peer in _UNIX_PEERS:
        return UNIX in networks
    spelt = canonical(peer, FULL_IPV6)
    if spelt is None:
        return False
    address = ip_address(spelt)
    return any(not isinstance(network, str) and address in network for network in networks)


def canonical_part(part: str, ipv6_prefix: int) -> str:
    """Return a part of a subject with its address, where it is one, in the one spelling. Raises `RuleError`."""
    if not part.startswith("ip:"):
        return part
    if len(part) > LONGEST:
        raise _no_address(part)
    return _canonical_part(part, ipv6_prefix)


@lru_cache(maxsize=4096)
def _canonical_part(part: str, ipv6_prefix: int) -> str:
    value = part.removeprefix("ip:")
    text, slash, prefix = value.partition("/")
    address = canonical(text, ipv6_prefix)
    if slash and address is not None:
        try:
            address = canonical(str(IPv6Network((text, int(prefix)), strict=False).network_address), int(prefix))
        except ValueError:  # an IPv4 network, or no prefix at all: subjects are single addresses there
            address = None
    if address is None and is_network(value):
        raise RuleError(
            f"{reprlib.repr(part)} is a network, and a subject is one address, such as 'ip:203.0.113.9'; "
            f"IPv6 goes by its /{ipv6_prefix}."
        )
    if address is None:
        raise _no_address(part)
    return f"ip:{address}"


def address_of(subject: str) -> str | None:
    """Return the address of a subject that is exactly one, as `ip_subject` writes it; None for any other.

    It holds digits, letters, dots, colons and the slash of an IPv6 client's network, and nothing else: a text that
    merely begins with an address, a network of many clients, or an address with a zone is none.
    """
    kind, _, text = subject.partition(":")
    if kind != "ip" or len(text) > LONGEST:
        return None
    return text if canonical(text.partition("/")[0], current().ipv6_prefix) == text else None


def is_network(text: str) -> bool:
    """Say whether a text is meant as a network: an address, a slash, and whatever is behind it."""
    address, slash, _ = text.partition("/")
    return bool(slash) and canonical(address, FULL_IPV6) is not None


def _no_address(part: str) -> RuleError:
    return RuleError(f"{reprlib.repr(part)} does not hold an IP address; 'ip:203.0.113.9' would do.")
