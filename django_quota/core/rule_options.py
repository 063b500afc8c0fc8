"""How `Rule` declares its options, and the readers of options that people may write in several ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Any, Literal, NamedTuple, TypeGuard, cast

from django_quota.core.algorithms import ALGORITHMS, Options, Parameters
from django_quota.core.clock import SECOND, in_words
from django_quota.core.errors import RateError, RuleError, Translatable, did_you_mean
from django_quota.core.rates import (
    CALENDAR_ONLY,
    MAX_COUNT,
    MAX_PERIOD,
    UNITS_IN_WORDS,
    Rate,
    parse_duration,
    parse_rate,
)

Network = IPv4Network | IPv6Network

OnUnavailable = Literal["allow", "deny", "local"]

RuleStore = Literal["database"]
"""The store of a rule or a counter, if it is not that of the settings."""

STORE_PROBLEM = "is not a store of its own."
STORE_HINT = "Use 'database', or leave it out: then QUOTA[\"STORE\"] counts."

STAFF = "staff"
"""The string in `exempt` that exempts users with `is_staff`."""

HTTP_METHODS = frozenset(
    "CONNECT COPY DELETE GET HEAD LINK LOCK MKCOL MOVE OPTIONS PATCH POST PROPFIND PROPPATCH PURGE PUT QUERY REPORT "  # noqa: SIM905
    "SEARCH TRACE UNLINK UNLOCK".split()
)
"""The methods that a rule may name: those of HTTP, WebDAV and caches."""

MAX_BAN_DURATIONS = 16

MIN_SHARE = 0.001

MIN_LEASE = SECOND // 50
"""The shortest lease of units that a process takes ahead, in microseconds."""

MIN_LEASES_PER_WINDOW = 20
"""How many times longer than a lease the shortest window of a rule must be, at least."""

MAX_CACHE_REFUSALS = 60 * SECOND
"""The longest time for which a process remembers a refusal, in microseconds."""

_BAN = "{'after': '20/m', 'for': ['10m', '1h', '1d']}"
_BAN_EXAMPLE = f"Use, for example, {_BAN}."
_SHARE_EXAMPLE = "Use, for example, 0.5, or {'critical': 1.0, 'batch': 0.5} with tier=."
_EXEMPT_EXAMPLE = "Use, for example, '10.0.0.0/8' (a network), 'staff' or a function of the request."


@dataclass(frozen=True, slots=True)
class Option:
    """What is declared about an option besides its type and its default."""

    fits: Callable[[Any], object] = lambda _: True
    """Says whether a value is right."""
    problem: str = ""
    """What is wrong with any other value."""
    hint: str = ""
    """What to write instead."""
    read: Callable[[Any], Any] = lambda value: value
    """Reads a value that people may write in several ways. Raises `RuleError`."""
    called_with: tuple[str, ...] = ()
    """The arguments of the function, if the value may be a function."""
    is_shared: bool = False
    """Whether rules of one name must agree on it: it concerns the rule and its subject, not a single limit."""
    only_in: Literal["", "settings", "views", "requests"] = ""
    """Where it is allowed: everywhere (""), in the settings alone, or in the settings and on views.

    With "views" it needs a response or a URL. With "requests" it chooses requests, so integrations take it, too.
    """

    def check(self, name: str, value: Any) -> None:
        """Raise `RuleError` if a value is wrong. `name`: of the option."""
        if not self.fits(value):
            raise RuleError(f"{name}={value!r} {self.problem}", self.hint)


def declare(default: Any, *, fits: Callable[[Any], object] = lambda _: True, **declared: Any) -> Any:
    """Return the field of a rule for an option; `declared`: fields of `Option`. A default of None always fits."""
    fits_or_default = (lambda value: value is None or fits(value)) if default is None else fits
    return field(default=default, metadata={OPTION: Option(fits=fits_or_default, **declared)})


OPTION = "option"
"""The name of the `Option` in the metadata of a field."""


def declare_flag(*, default: bool | None, **declared: Any) -> Any:
    """Return the field of a rule for an option that is on or off; a default of None: the kind of subject decides."""
    problem = "is not True, False or None." if default is None else "is not True or False."
    return declare(default, fits=lambda value: isinstance(value, bool), problem=problem, **declared)


def declare_number() -> Any:
    """Return the field of a rule for a number that an algorithm takes."""
    return declare(None, fits=lambda value: type(value) is int, problem="is not a whole number.")


def declare_function(*called_with: str, **declared: Any) -> Any:
    """Return the field of a rule for an option that is a function with these arguments."""
    return declare(None, called_with=called_with, fits=callable, **declared)


class Shares(NamedTuple):
    """How much of a limit the requests of each tier may fill."""

    of_tiers: tuple[tuple[str, float], ...]


def names_tiers(value: object) -> TypeGuard[Mapping[str, object]]:
    """Return whether a value is a dict by tier with at least one tier."""
    return isinstance(value, Mapping) and bool(value) and all(isinstance(tier, str) and tier for tier in value)


def read_share(value: object) -> float | Shares:
    """Read a share of a limit, from 0.001 to 1, or a dict of shares by tier. Raises `RuleError`."""
    if isinstance(value, Shares):
        return value
    if not isinstance(value, Mapping):
        return _read_one_share(value, "share")
    if not names_tiers(value):
        raise RuleError(f"share={dict(value)!r} is not a dict by tier.", _SHARE_EXAMPLE)
    return Shares(tuple((tier, _read_one_share(share, f"share[{tier!r}]")) for tier, share in value.items()))


def _read_one_share(value: object, place: str) -> float:
    if not are_shares((value,)):
        raise RuleError(f"{place}={value!r} is not a share of the limit, from {MIN_SHARE} to 1.", _SHARE_EXAMPLE)
    return float(cast("float", value))


class BanOption(NamedTuple):
    """When a rule bans a subject, and for how long.

    `after` refusals in its window ban the subject for the first of `durations` (microseconds). The next ban takes the
    next duration, unless the last ban is forgotten by then. A ban is forgotten when the last of `durations` has passed
    since its end.
    """

    after: Rate
    durations: tuple[int, ...]

    @classmethod
    def read(cls, value: object) -> BanOption:
        """Read a dict of `after`, a rate of refusals, and `for`, one or several durations. Raises `RuleError`."""
        if isinstance(value, BanOption):
            return value
        if not isinstance(value, Mapping) or set(value) != {"after", "for"}:
            raise RuleError(f"ban={value!r} is not a dict of 'after' and 'for'.", _BAN_EXAMPLE)
        given = value["for"]
        durations = given if isinstance(given, (list, tuple)) else (given,)
        if not 1 <= len(durations) <= MAX_BAN_DURATIONS:
            raise RuleError(f"ban['for']={given!r} does not list 1 to {MAX_BAN_DURATIONS} durations.", _BAN_EXAMPLE)
        try:
            after = parse_rate(value["after"])
            if after.count == 0:
                raise RateError(str(after), 0, "a ban after no refusals would never end", _BAN_EXAMPLE)  # noqa: TRY301
            if after.unit in CALENDAR_ONLY:
                problem = Translatable("a ban does not count in %(units)s", units=UNITS_IN_WORDS[after.unit])
                hint = Translatable("Use seconds to weeks: for example, '%(count)d/30d'.", count=after.count)
                raise RateError(str(after), str(after).index("/") + 1, problem, hint)  # noqa: TRY301
        except RateError as error:
            raise RateError(error.text, error.position, error.problem, error.hint, "ban['after']") from error
        return cls(after, tuple(parse_duration("ban['for']", duration) for duration in durations))

    @property
    def window(self) -> Parameters:
        """The sliding window that counts the refusals."""
        return ALGORITHMS["sliding_window"].parameters(self.after, Options(), 0)

    @property
    def encoded(self) -> tuple[str, ...]:
        """The ban as arguments of `engine/lua/decide.lua`."""
        window = self.window
        return str(window.capacity), str(window.a), str(window.b), ",".join(map(str, self.durations))

    def __str__(self) -> str:
        durations = ", ".join(map(in_words, self.durations))
        refusals = "1 refusal" if self.after.count == 1 else f"{self.after.count:,} refusals"
        return f"after {refusals} in {in_words(self.after.period)}, for {durations}"


@dataclass(frozen=True)
class Exemption:
    """Who is exempt from a rule: a request that matches any of these."""

    networks: tuple[Network, ...]
    staff: bool
    functions: tuple[Callable[[Any], Any], ...]
    """Functions of the request, sync or async; a true answer exempts."""

    @classmethod
    def read(cls, value: object) -> Exemption:
        """Read a network, `"staff"`, a function, or a list of those. Raises `RuleError`."""
        if isinstance(value, Exemption):
            return value
        entries = value if isinstance(value, (list, tuple, set, frozenset)) else (value,)
        if not entries:
            raise RuleError(f"exempt={value!r} is empty.", _EXEMPT_EXAMPLE)
        functions = tuple(entry for entry in entries if callable(entry))
        others = [entry for entry in entries if not callable(entry)]
        try:
            networks = tuple(read_network(entry) for entry in others if entry != STAFF)
        except ValueError as error:
            raise RuleError(f"exempt={value!r}: {error}.", _EXEMPT_EXAMPLE) from None
        return cls(networks, STAFF in others, functions)


def read_network(value: object) -> Network:
    """Return the network of a string, or of a network or an address. Raises `ValueError`."""
    if not isinstance(value, (str, IPv4Network, IPv6Network, IPv4Address, IPv6Address)):
        raise ValueError(f"it is {type(value).__name__}, not a string")  # noqa: TRY004
    return network_of(value)


def network_of(value: Any, *, strict: bool = True) -> Network:
    """Return a network. IPv4 addresses that are written as IPv6 are a network of IPv4. Raises `ValueError`."""
    network = ip_network(value, strict)
    bits = network.prefixlen - 96
    if isinstance(network, IPv6Network) and bits >= 0 and int(network.network_address) >> 32 in IPV4_AS_IPV6:
        return IPv4Network((int(network.network_address) & 0xFFFFFFFF, bits))
    return network


IPV4_AS_IPV6 = (0xFFFF, 0x64FF9B << 64)
"""The first 96 bits of IPv4 addresses that are written as IPv6: ::ffff:a.b.c.d, and 64:ff9b::a.b.c.d behind NAT64.

A network of your own behind NAT64 (64:ff9b:1::/48, RFC 8215) has no fixed place for the IPv4 address, and stays IPv6.
"""


def read_methods(given: object) -> frozenset[str]:
    """Read one or several methods of HTTP. Raises `RuleError`."""
    names: Iterable[object] = [given] if isinstance(given, str) else cast("Iterable[object]", given)
    try:
        methods = frozenset(names)
    except TypeError:
        methods = frozenset()
    if not methods or not all(isinstance(name, str) and name.isalpha() for name in methods):
        raise RuleError(f"methods={given!r} are not HTTP methods. Use, for example, ['POST', 'PUT'].")
    upper = frozenset(str(name).upper() for name in methods)
    for name in sorted(upper - HTTP_METHODS):
        raise RuleError(f"methods={given!r}: {name!r} is not an HTTP method.", did_you_mean(name, HTTP_METHODS))
    return upper | {"HEAD"} if "GET" in upper else upper  # Django answers HEAD with the view for GET


def read_costs(given: object) -> tuple[tuple[str, int], ...]:
    """Read costs by the name of a view. Raises `RuleError`."""
    pairs = tuple(given.items() if isinstance(given, Mapping) else given if isinstance(given, tuple) else ())
    if not pairs or not all(
        isinstance(name, str) and type(cost) is int and 1 <= cost <= MAX_COUNT for name, cost in pairs
    ):
        raise RuleError(
            f"costs={given!r} is not a dict of whole numbers from 1 to {MAX_COUNT:,} by the name of a URL.",
            "Use, for example, {'export': 50, 'api:report': 20}.",
        )
    return pairs


def are_shares(values: Sequence[object]) -> bool:
    """Return whether values are shares of a limit, from 0.001 to 1; False if there are none."""
    return bool(values) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and MIN_SHARE <= value <= 1 for value in values
    )


def read_refusal_span(value: object, option: str = "cache_refusals") -> float:
    """Read how long a process repeats a refusal; return seconds. Raises `RuleError`."""
    return (
        parse_duration(option, value, least=0, most=MAX_CACHE_REFUSALS, examples="1.0, '10s' or 0 for never") / SECOND
    )


def read_prefetch(value: object) -> float | Literal[True] | None:
    """Read for how long a process may spend what it took ahead; return seconds, True, or None for never.

    Raises `RuleError`.
    """
    if value is True or value is False:
        return True if value else None
    examples = "True, 0.5 (seconds) or '2s'"
    lease = parse_duration("prefetch", value, least=0, most=MAX_PERIOD // MIN_LEASES_PER_WINDOW, examples=examples)
    if lease < MIN_LEASE:
        raise RuleError(f"prefetch={value!r} is less than 0.02 seconds.", f"Use, for example, {examples}.")
    return lease / SECOND
