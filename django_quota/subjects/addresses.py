"""The address of a client: found behind proxies, and written in one form."""

from __future__ import annotations

import logging
import os
import re
import reprlib
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

from django.http import HttpRequest

from django_quota.conf import UNIX, QuotaSettings, current
from django_quota.core.errors import ConfigurationError, RuleError, Translatable
from django_quota.core.rule_options import IPV4_AS_IPV6, Network, network_of

logger = logging.getLogger("django_quota.web")

_UNIX_PEERS = ("", "unix:", "unix")
"""The REMOTE_ADDR of a peer on a unix socket, by server."""

Prefixes = tuple[int, int]
"""How many bits of an IPv4 and of an IPv6 address identify a client."""

FULL: Prefixes = (32, 128)
"""The bits of whole addresses."""

MAX_LENGTH = 64
"""The longest address with its zone, in characters. A longer string is not an address, and must not fill the caches."""


def client_address(request: HttpRequest, prefixes: Prefixes | None = None) -> str:
    """Return the address of the client; an IPv6 address as its network (/64 by default).

    `prefixes`: how many bits identify a client; None takes those in the settings.

    This is the address of the peer. If the peer is one of `TRUSTED_PROXIES`, it is the first address from the right of
    X-Forwarded-For that is not a trusted proxy, or the address in `CLIENT_IP_HEADER`. With `TRUSTED_PROXY_COUNT`, it is
    the address at that place from the right. The client may have written the addresses further left, so they are
    ignored. If a proxy sends no address, this is logged, and the peer counts. Raises `ConfigurationError` if there is
    no address.
    """
    settings, meta = current(), request.META
    proxies, count = settings.trusted_proxies, settings.trusted_proxy_count
    peer = meta.get("REMOTE_ADDR") or ""
    if "HTTP_X_FORWARDED_FOR" in meta:
        if not proxies and not count:
            _warn_of_proxy(peer)
        if hasattr(request, "scope"):
            _warn_of_server()
    if count or (proxies and is_trusted_proxy(peer)):
        if settings.client_ip_header:
            peer = _from_header(peer, meta.get(settings.client_ip_header, ""), settings)
        else:
            peer = _walk(peer, meta.get("HTTP_X_FORWARDED_FOR", ""), settings)
    address = canonical(peer, prefixes or (settings.ipv4_prefix, settings.ipv6_prefix))
    if address is None:
        raise _unknown(peer, settings)
    return address


def ip_subject(request: HttpRequest) -> str:
    """Return the subject of the request's client address: `ip:203.0.113.9`, `ip:2001:db8::/64`."""
    return f"ip:{client_address(request)}"


_BY_NETWORK = re.compile(r"ip/([0-9]{1,3})(?:,([0-9]{1,3}))?")


def prefixes_of(key: object) -> tuple[int, int | None] | None:
    """Return the bits of an IPv4 and an IPv6 address in a key such as `ip/24` or `ip/24,48`; None for any other key.

    The second is None if the key does not have it: that of the settings counts.
    """
    found = _BY_NETWORK.fullmatch(key) if isinstance(key, str) else None
    if found is None:
        return None
    four, six = int(found[1]), None if found[2] is None else int(found[2])
    return (four, six) if 1 <= four <= FULL[0] and (six is None or 1 <= six <= FULL[1]) else None


def network_subject(prefixes: tuple[int, int | None], request: HttpRequest) -> str:
    """Return the network of the client's address by these bits, as `named_subject` writes it: `ip:203.0.113.0/24`."""
    four, six = prefixes
    return subject_of_network(client_address(request, (four, six or own_prefixes()[1])))


def subject_of_network(address: str) -> str:
    """Return the subject of an address or a network that `canonical` returned, whatever bits it has."""
    own = own_prefixes()
    is_six = ":" in address
    is_whole = "/" not in address and own[is_six] != FULL[is_six]  # an address alone would stand for its network
    return f"ip:{address}/{FULL[is_six]}" if is_whole else f"ip:{address}"


def own_prefixes() -> Prefixes:
    """Return how many bits of an address identify a client, as the settings say."""
    settings = current()
    return settings.ipv4_prefix, settings.ipv6_prefix


def is_from(request: HttpRequest, networks: tuple[Network, ...]) -> bool:
    """Return whether the client's full address is in one of these networks."""
    return _is_in(client_address(request, FULL), networks)


def is_from_exempt_network(request: HttpRequest) -> bool:
    """Return whether the client is in a network of `QUOTA["EXEMPT"]`, so that nothing limits the request."""
    networks = current().exempt
    if not networks:
        return False
    try:
        return is_from(request, networks)
    except ConfigurationError:  # the request has no address; a rule that needs one says so
        return False


def is_inside(address: str, networks: Sequence[Network]) -> bool:
    """Return whether an address or a network, as a subject has it, is in one of these networks."""
    try:
        own: Any = network_of(address)
    except ValueError:
        return False
    return any(own.version == network.version and own.subnet_of(network) for network in networks)


def is_trusted_proxy(address: str) -> bool:
    """Return whether an address is in `TRUSTED_PROXIES`."""
    return _proxies_of(current())(address)


@lru_cache(maxsize=1)
def _proxies_of(settings: QuotaSettings) -> Callable[[str], bool]:
    """Return the function that says whether an address is in `TRUSTED_PROXIES`, and remembers its answers."""
    proxies = settings.trusted_proxies
    return lru_cache(maxsize=4096)(lambda address: _is_in(address, proxies))


# --- what is logged ---------------------------------------------------------------------------------------------------

_logged: set[str] = set()
"""The problems that this process has logged: each kind once."""


def _is_logged(what: str) -> bool:
    """Return whether a problem was logged before, and note it as logged."""
    before = len(_logged)
    _logged.add(what)
    return len(_logged) == before


def _log_unreadable(value: str, peer: str, settings: QuotaSettings) -> None:
    """Log once that a proxy sent something other than an address."""
    name = _header_of(settings)
    if _is_logged(f"unreadable {name}"):
        return
    logger.error(
        "%s from %s is %.100r, which is not an IP address. Such a request counts for the address of the proxy, so "
        "all clients whose address cannot be read share a limit. Let the proxy write one address, such as 203.0.113.9, "
        "203.0.113.9:4711 or [2001:db8::7]:4711.",
        name,
        peer or "the unix socket",
        value.strip(),
    )


def _log_missing(peer: str, settings: QuotaSettings) -> None:
    """Log once that a proxy sent no address. Only its own requests, such as health checks, may have none."""
    name = _header_of(settings)
    if _is_logged(f"missing {name}"):
        return
    logger.warning(
        "A request from %s has no %s, so it counts for the address of the proxy. This is right if the request is the "
        "proxy's own, such as a health check. If not, all its clients share a limit: let it send %s.",
        peer or "the unix socket",
        name,
        name,
    )


def _header_of(settings: QuotaSettings) -> str:
    """Return the name of the header with the client's address, as HTTP writes it."""
    return settings.client_ip_header.removeprefix("HTTP_").replace("_", "-").title() or "X-Forwarded-For"


def _warn_of_proxy(peer: str) -> None:
    """Log once that all clients of a proxy count as one. Only for a private peer: any client can send the header."""
    if not _is_private(peer) or _is_logged("unknown proxy"):
        return
    logger.warning(
        'X-Forwarded-For came from %s, and QUOTA["TRUSTED_PROXIES"] is empty. If that is your proxy, all clients '
        'behind it count as one. Set, for example, "TRUSTED_PROXIES": [%r].',
        peer,
        peer,
    )


@lru_cache(maxsize=1)
def _server_trusts_everybody() -> bool:
    """Return whether uvicorn, alone or under gunicorn, trusts X-Forwarded-For from any peer."""
    given, allowed = sys.argv, os.environ.get("FORWARDED_ALLOW_IPS", "")
    for option, value in zip(given, [*given[1:], ""], strict=True):
        if option == _ALLOWED:
            allowed = value
        elif option.startswith(f"{_ALLOWED}="):
            allowed = option.partition("=")[2]
    return "--no-proxy-headers" not in given and allowed.strip() == "*"


_ALLOWED = "--forwarded-allow-ips"


def _warn_of_server() -> None:
    """Log once that every client can choose its own address."""
    if not _server_trusts_everybody() or _is_logged("trusting server"):
        return
    logger.warning(
        "The server runs with %s '*': it takes the address from X-Forwarded-For of any client, before "
        "TRUSTED_PROXIES is checked. So every client chooses its own address, and its own limit. Start uvicorn with "
        "--no-proxy-headers, or gunicorn with %s ''.",
        _ALLOWED,
        _ALLOWED,
    )


def _is_private(peer: str) -> bool:
    address = canonical(peer, FULL)
    return address is not None and ip_address(address).is_private


def _unknown(peer: str, settings: QuotaSettings) -> ConfigurationError:
    return ConfigurationError(
        f"The client's IP is unknown: REMOTE_ADDR is {peer!r}, and no trusted proxy sent an address.",
        "Let the server put the peer's address into REMOTE_ADDR. Behind a proxy that connects by a unix socket, set "
        f'QUOTA["TRUSTED_PROXIES"] = ["unix"], and let the proxy set {_header_of(settings)}.',
    )


# --- reading addresses ------------------------------------------------------------------------------------------------


def _from_header(peer: str, value: str, settings: QuotaSettings) -> str:
    """Return the address in the value of `CLIENT_IP_HEADER`; the peer if there is none."""
    if not value.strip():
        _log_missing(peer, settings)
        return peer
    bare = value.rpartition(":")[0] if settings.client_ip_header == _ENDS_WITH_PORT else ""
    address = _address(bare) or _address(value)
    if address is None:
        _log_unreadable(value, peer, settings)
        return peer
    return address


_ENDS_WITH_PORT = "HTTP_CLOUDFRONT_VIEWER_ADDRESS"
"""A header that always ends with a port, even after an IPv6 address without brackets: 2001:db8::7:4711."""


def _walk(peer: str, forwarded: str, settings: QuotaSettings) -> str:
    """Return the client's address in X-Forwarded-For, as `client_address` describes; the peer if there is none."""
    count = settings.trusted_proxy_count
    if not forwarded.strip():
        if count:
            _log_missing(peer, settings)
        return peer
    nearest = peer
    for number, hop in enumerate(reversed(forwarded.split(",")), 1):
        address = _address(hop)
        if address is None:  # the proxy that sent it is the last one to trust
            _log_unreadable(hop, nearest, settings)
            break
        nearest = address
        if number == count or (not count and not is_trusted_proxy(address)):
            break
    return nearest


def _address(hop: str) -> str | None:
    """Return an address in a header, without blanks around it; None if it is not an address."""
    text = hop.strip()
    return None if len(text) > MAX_LENGTH or canonical(text, FULL) is None else text


def canonical(text: str, prefixes: Prefixes) -> str | None:
    """Return an address in its canonical form, or as its network; None if the string is not an address.

    It may have a port, a zone and brackets: `203.0.113.9:4711`, `[2001:db8::7]:4711`, `fe80::1%eth0`. IPv4
    addresses that are written as IPv6 are IPv4.
    """
    return text if prefixes[0] == FULL[0] and _is_canonical_ipv4(text) else _read_canonical(text, prefixes)


_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"

_is_canonical_ipv4 = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}").fullmatch
"""Says whether a string is an IPv4 address as `ipaddress` writes it. Most are, and then reading one costs less."""


@lru_cache(maxsize=4096)
def _read_canonical(text: str, prefixes: Prefixes) -> str | None:
    address = _read(text)
    if address is None:
        return None
    if isinstance(address, IPv6Address):
        if int(address) >> 32 not in IPV4_AS_IPV6:
            full = prefixes[1] == FULL[1]
            return str(address if full else IPv6Network((int(address), prefixes[1]), strict=False))
        address = IPv4Address(int(address) & 0xFFFFFFFF)
    return str(address if prefixes[0] == FULL[0] else IPv4Network((int(address), prefixes[0]), strict=False))


def _read(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address in a string; None if it is not one. In `2001:db8::7:4711`, the end is not a port."""
    if text.startswith("["):
        text, _, port = text[1:].partition("]")
        if port and not _PORT.fullmatch(port):
            return None
    for each in (text, _PORT.sub("", text)):
        with suppress(ValueError):
            return ip_address(each.partition("%")[0])
    return None


_PORT = re.compile(r":[0-9]{1,5}\Z")


def _is_in(peer: str, networks: Sequence[Network | str]) -> bool:
    if peer in _UNIX_PEERS:
        return UNIX in networks
    address = _full(peer)
    return address is not None and any(not isinstance(network, str) and address in network for network in networks)


@lru_cache(maxsize=4096)
def _full(text: str) -> IPv4Address | IPv6Address | None:
    """Return the whole address in a string; None if the string is not an address."""
    whole = canonical(text, FULL)
    return None if whole is None else ip_address(whole)


def canonical_part(part: str, prefixes: Prefixes) -> str:
    """Return `ip:` and an address or a network in canonical form. Raises `RuleError` for any other string."""
    if len(part) > MAX_LENGTH:
        raise _not_an_address(part)
    value = part[3:]
    if "/" in value:
        return f"ip:{canonical_network(value, prefixes)}"
    address = canonical(value, prefixes)
    if address is None:
        raise _not_an_address(part)
    return f"ip:{address}"


def canonical_network(text: str, prefixes: Prefixes) -> str:
    """Return a network in its canonical form, such as `198.51.100.0/24`. Raises `RuleError` for any other string.

    A network of one address is written as the address, unless an address stands for its network by `prefixes`.
    """
    try:
        network = network_of(text, strict=False)
    except ValueError as error:
        problem = Translatable("%(text)s is not a network.", text=reprlib.repr(text))
        raise RuleError(problem, Translatable("Use, for example, 'ip:198.51.100.0/24'.")) from error
    is_address = network.prefixlen == network.max_prefixlen == prefixes[network.version == 6]  # noqa: PLR2004 — IPv6
    return str(network.network_address if is_address else network)


def address_of(subject: str) -> str | None:
    """Return the address of a subject as `ip_subject` writes it; None if the subject is anything else.

    Such an address has only digits, letters, dots, colons and the slash of a network. A string that only
    begins with an address, a network of several clients and an address with a zone give None.
    """
    kind, _, text = subject.partition(":")
    if kind != "ip" or len(text) > MAX_LENGTH:
        return None
    return text if canonical(text.partition("/")[0], own_prefixes()) == text else None


def is_network(text: str) -> bool:
    """Return whether a string looks like a network: an address and a slash. What follows the slash is not checked."""
    address, slash, _ = text.partition("/")
    return bool(slash) and canonical(address, FULL) is not None


def is_address(text: str) -> bool:
    """Return whether a string is an IP address or looks like a network, without the `ip:` of a subject."""
    return is_network(text) or canonical(text, FULL) is not None


def _not_an_address(part: str) -> RuleError:
    problem = Translatable("%(text)s is not an IP address.", text=reprlib.repr(part))
    return RuleError(problem, Translatable("Use, for example, 'ip:203.0.113.9'."))
