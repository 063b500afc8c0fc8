"""Rules: a named limit with its rates, key and options, checked when you make it.

A wrong rule fails at import or in a system check, never on a request. A rule does not change once it is made, and the
limits that follow from it are worked out then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache, partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Any, Literal, NamedTuple, TypedDict, cast, get_args

from django_quota.core.algorithms import ALGORITHMS, DISTINCT, AlgorithmName, Limit, Options, Parameters
from django_quota.core.clock import in_words
from django_quota.core.errors import AlgorithmError, RateError, RuleError, did_you_mean
from django_quota.core.matching import Match
from django_quota.core.rates import Rate, parse_duration, parse_rate, parse_rates, validate_cost

OnUnavailable = Literal["allow", "deny", "local"]

Network = IPv4Network | IPv6Network

DynamicRate = Callable[[Any], Any]
"""A function of the request that returns a rate (`"10/m"`, several, or None for unlimited); it may be async."""

ANONYMOUS = "anonymous"
AUTHENTICATED = "authenticated"

DEFAULT_TIERS = (ANONYMOUS, AUTHENTICATED)
"""The tiers of a rule that has no `tier` function."""

STAFF = "staff"
"""The text in `exempt` that exempts users with `is_staff`."""

HTTP_METHODS = frozenset(
    "CONNECT COPY DELETE GET HEAD LINK LOCK MKCOL MOVE OPTIONS PATCH POST PROPFIND PROPPATCH PURGE PUT QUERY REPORT "  # noqa: SIM905
    "SEARCH TRACE UNLINK UNLOCK".split()
)
"""The methods that a rule may name: those of HTTP, WebDAV and caches."""

MAX_BAN_DURATIONS = 16

MIN_WARN_AT = 0.001

MAX_CACHE_REFUSALS = 60
"""Seconds for which a process remembers a refusal at most."""

MAX_ARGUMENT = 80
"""A rule's name shows longer arguments by their type alone."""

SETTINGS_ONLY = ("match", "exclude")
"""The options that only rules in the settings have."""

AFTER_RESPONSE = frozenset({"settle", "counts"})
"""The options that are functions of the response, once the view has answered."""

_BODY_KINDS: tuple[Literal["post", "json"], ...] = ("post", "json")
"""The kinds of keys that read the body of a request."""

_SHARED = ("shadow", "block", "ban", "warn_at", "daily", "distinct", "on_unavailable", "settle", "counts")
"""The options that rules of one name must agree on: they concern the rule and its subject, not a single limit."""

_TIERS_EXAMPLE = "Use, for example, {'anonymous': '10/m', 'authenticated': '100/m'}."
_TIERS_IN_SETTINGS = "Put rates by tier under 'rate': {'rate': {'anonymous': '10/m', 'authenticated': '100/m'}}."
_BAN = "{'after': '20/m', 'for': ['10m', '1h', '1d']}"
_BAN_EXAMPLE = f"Use, for example, {_BAN}."
_EXEMPT_EXAMPLE = "Use, for example, '10.0.0.0/8' (a network), 'staff' or a function of the request."


class _Options(TypedDict, total=False):
    """The options of a rule by name, with their types. `Rule` describes them."""

    key: Any
    algorithm: AlgorithmName
    burst: int | None
    precision: int | None
    tz: str | None
    count_refused: bool
    methods: Iterable[str] | None
    block: bool
    shadow: bool
    skip: Callable[[Any], Any] | None
    exempt: Any
    tier: Callable[[Any], Any] | None
    on_unavailable: OnUnavailable | None
    ban: Mapping[str, Any] | None
    warn_at: float | None
    daily: bool | None
    distinct: Any
    cache_refusals: float | None


class RuleOptions(_Options, total=False):
    """The options that `@quota` takes."""

    cost: int | Callable[[Any], Any]
    settle: Callable[[Any, Any], Any] | None
    counts: Callable[[Any], Any] | None


class CallOptions(_Options, total=False):
    """The options that `check()` and its like take with a rate; they take `cost` as an argument of their own."""

    name: str


@dataclass(frozen=True, slots=True)
class Tiers:
    """The rates of each tier; an empty tuple means that the tier is unlimited."""

    rates: tuple[tuple[str, tuple[Rate, ...]], ...]

    @classmethod
    def read(cls, value: object) -> Tiers:
        """Read a dict of rates by tier. Raises `RuleError`, or `RateError` naming the tier."""
        if isinstance(value, Tiers):
            return value
        if not isinstance(value, Mapping) or not value:
            raise RateError(value, None, "it names no tier", _TIERS_EXAMPLE)
        return cls(tuple(cls._read_tier(tier, given) for tier, given in value.items()))

    @staticmethod
    def _read_tier(tier: object, given: object) -> tuple[str, tuple[Rate, ...]]:
        if not isinstance(tier, str) or not tier:
            raise RuleError(f"{tier!r} is not the name of a tier.", _TIERS_EXAMPLE)
        if callable(given) or isinstance(given, Mapping):
            raise RuleError(
                f"The rate of tier {tier!r} is {given!r}.", "Use, for example, '10/m', or None for unlimited."
            )
        try:
            return tier, parse_rates(*(given if isinstance(given, (list, tuple)) else (given,)))
        except RateError as error:
            raise RateError(error.text, error.position, f"{error.problem}, for tier {tier!r}", error.hint) from None

    def check_default(self) -> None:
        """Raise `RuleError` unless the tiers are exactly the default ones, which need no `tier` function."""
        names = [name for name, _ in self.rates]
        for name in names:
            if name not in DEFAULT_TIERS:
                near = did_you_mean(name, DEFAULT_TIERS)
                hint = "Add tier=, a function of the request that returns the tier."
                raise RuleError(f"No tier= says who is in tier {name!r}.", hint + (near if "mean" in near else ""))
        for name in DEFAULT_TIERS:
            if name not in names:
                raise RuleError(f"There is no rate for the tier {name!r}.", f"{_TIERS_EXAMPLE} None means unlimited.")

    def __str__(self) -> str:
        return ", ".join(f"{'; '.join(map(str, rates)) or 'unlimited'} for {name}" for name, rates in self.rates)


class Ban(NamedTuple):
    """When a rule bans a subject, and for how long.

    `after` refusals in its window ban the subject for the first of `durations` (microseconds). The next ban takes the
    next duration, if it begins before the last ban is forgotten: as long after its end as the longest duration.
    """

    after: Rate
    durations: tuple[int, ...]

    @classmethod
    def read(cls, value: object) -> Ban:
        """Read a dict of `after`, a rate of refusals, and `for`, one or several durations. Raises `RuleError`."""
        if isinstance(value, Ban):
            return value
        if not isinstance(value, Mapping):
            raise RuleError(f"ban={value!r} is not a dict.", _BAN_EXAMPLE)
        for name in value:
            if name not in ("after", "for"):
                raise RuleError(f"ban has no {name!r}.{did_you_mean(str(name), ('after', 'for'))}", _BAN_EXAMPLE)
        if "after" not in value or "for" not in value:
            raise RuleError(f"ban={dict(value)!r} must have both 'after' and 'for'.", _BAN_EXAMPLE)
        given = value["for"]
        durations = given if isinstance(given, (list, tuple)) else (given,)
        if not 1 <= len(durations) <= MAX_BAN_DURATIONS:
            raise RuleError(f"ban['for']={given!r} does not list 1 to {MAX_BAN_DURATIONS} durations.", _BAN_EXAMPLE)
        try:
            after = parse_rate(value["after"])
            if after.count == 0:
                problem = "a ban after no refusals would never end"
                raise RateError(str(after), 0, problem, "Use, for example, '20/m'.")  # noqa: TRY301
            ALGORITHMS["sliding_window"].validate(after, Options())
            return cls(after, tuple(map(parse_duration, durations)))
        except RateError as error:
            hint = f"{error.hint} As a whole: ban={_BAN}."
            raise RateError(error.text, error.position, error.problem, hint, error.what) from None

    @property
    def window(self) -> Parameters:
        """The sliding window that counts the refusals."""
        return ALGORITHMS["sliding_window"].parameters(self.after, Options(), 0)

    @property
    def encoded(self) -> tuple[str, ...]:
        """The ban as arguments of `lua/decide.lua`."""
        capacity, a, b, _, _ = self.window
        return str(capacity), str(a), str(b), ",".join(map(str, self.durations))

    def __str__(self) -> str:
        durations = ", ".join(map(in_words, self.durations))
        return f"after {self.after.count} refusals in {self.after.window}, for {durations}"


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
            raise RuleError(f"exempt={value!r} names nobody.", _EXEMPT_EXAMPLE)
        functions = tuple(entry for entry in entries if callable(entry))
        texts = [entry for entry in entries if not callable(entry)]
        networks = tuple(cls._read_network(text) for text in texts if text != STAFF)
        return cls(networks, STAFF in texts, functions)

    @staticmethod
    def _read_network(value: object) -> Network:
        try:
            return read_network(value)
        except ValueError as error:
            raise RuleError(f"exempt={value!r}: {error}.", _EXEMPT_EXAMPLE) from None


def read_network(value: object) -> Network:
    """Return the network of a text, or of a network or an address. Raises `ValueError`."""
    if not isinstance(value, (str, IPv4Network, IPv6Network, IPv4Address, IPv6Address)):
        raise ValueError(f"it is {type(value).__name__}, not a text")  # noqa: TRY004
    return ip_network(value)


@dataclass(frozen=True)
class Rule:
    """A named limit: rates, a key, an algorithm and options.

    Raises `RuleError` for a wrong option, and `RateError`, a kind of `RuleError`, for a wrong rate.
    """

    name: str
    rates: tuple[Rate | DynamicRate | Tiers, ...]
    """All rates must have room for a hit; no rate at all means unlimited."""
    key: Any = "ip"
    """How a request tells who is limited: `"ip"`, `"user"`, a function of the request, or several."""
    algorithm: AlgorithmName = "sliding_window"
    cost: int | Callable[[Any], Any] = 1
    """How much a hit takes: a whole number from 0 to 10^12, or a function of the request that returns one."""
    burst: int | None = None
    """How many hits a bucket takes at once; for `token_bucket` and `leaky_bucket`."""
    precision: int | None = None
    """How many entries a sliding window keeps at most, 1 to 1000 (100 unless set)."""
    tz: str | None = None
    """The time zone of `calendar`, such as `"Europe/Berlin"`; UTC unless set."""
    count_refused: bool = False
    """Whether refused hits count too."""
    methods: frozenset[str] | None = None
    """The HTTP methods that are limited (GET includes HEAD); None for all."""
    block: bool = True
    """Whether a refusal answers the request. With False it only shows on `request.quota`."""
    shadow: bool = False
    """Decide and report, but never refuse."""
    skip: Callable[[Any], Any] | None = None
    """A function of the request; where it returns true, the rule does not apply."""
    exempt: Any = None
    """Whom the rule does not limit: networks, `"staff"`, a function of the request, or a list of those."""
    tier: Callable[[Any], Any] | None = None
    """A function of the request that returns its tier; by default `"anonymous"` or `"authenticated"`."""
    match: Match | None = None
    """Where the middleware applies the rule; only for rules in the settings."""
    exclude: Match | None = None
    """Where the middleware does not apply it although `match` fits; only for rules in the settings."""
    on_unavailable: OnUnavailable | None = None
    """The answer while the store does not respond; None takes `QUOTA["ON_UNAVAILABLE"]`.

    With `"local"` each process counts by itself, with its share of the limit.
    """
    ban: Any = None
    """`{"after": "20/m", "for": ["10m", "1h"]}`: that many refusals ban the subject, each time for longer."""
    warn_at: float | None = 0.8
    """The used share of a limit, from 0.001 to 1, that sends `near_limit`; None for never."""
    daily: bool | None = None
    """Whether to count by day what the subject was allowed and refused; None counts users only."""
    distinct: Any = None
    """Limit the different values of this key instead of hits: `"header:X-Device"`, a function of the request.

    True takes the value from `check(..., value=)`.
    """
    cache_refusals: float | None = None
    """Seconds, 0 to 60, for which a process repeats a refusal without asking Redis; 0 for never.

    None takes `QUOTA["CACHE_REFUSALS"]`. Rules with `ban`, `count_refused` or `distinct` ask Redis all the same.
    """
    settle: Callable[[Any, Any], Any] | None = None
    """A function of the request and the response that returns the real cost. Until then `cost` is an estimate."""
    counts: Callable[[Any], Any] | None = None
    """A function of the response that says whether the request counts. If not, what it took is given back."""
    limits: tuple[Limit, ...] = field(init=False, repr=False, compare=False)
    dynamic: bool = field(init=False, repr=False, compare=False)
    """Whether a rate depends on the request: then `limits` is empty, and `with_rates` or `tiers` has the real rule."""
    tiers: Mapping[str, Rule] = field(init=False, repr=False, compare=False)
    """The rule of each tier, by the tier's name; empty if the rates are not by tier."""
    compiled: Any = field(default=None, init=False, repr=False, compare=False)
    """What the engine prepares once for all hits of the rule."""

    def __post_init__(self) -> None:
        _normalize(self)
        _check_options(self)
        dynamic = any(not isinstance(rate, Rate) for rate in self.rates)
        object.__setattr__(self, "dynamic", dynamic)
        object.__setattr__(self, "limits", () if dynamic else _limits(self))
        object.__setattr__(self, "tiers", _rules_of_tiers(self))

    @cached_property
    def settles(self) -> bool:
        """Whether the rule looks at the response: it has `settle` or `counts`."""
        return self.settle is not None or self.counts is not None

    @cached_property
    def is_plain(self) -> bool:
        """Whether the rule needs nothing of a request but its key, once it is known to apply there."""
        of_request = (self.methods, self.skip, self.exempt, self.distinct, self.settle, self.counts)
        return not self.dynamic and not callable(self.cost) and all(option is None for option in of_request)

    @cached_property
    def reads_body(self) -> Literal["", "post", "json"]:
        """The kind of key that `key` or `distinct` is, if that reads the body of the request; else empty."""
        kinds = [part.partition(":")[0] for _, part in key_parts(self) if isinstance(part, str) and ":" in part]
        return next((kind for kind in _BODY_KINDS if kind in kinds), "")

    @cached_property
    def warn_share(self) -> str:
        """`warn_at` in thousandths as `lua/decide.lua` takes it: "0" if the rule emits no "near" events."""
        return "0" if self.shadow else str(int((self.warn_at or 0) * 1000))

    @cached_property
    def encoded(self) -> tuple[str, ...]:
        """The options of the rule as `lua/decide.lua` takes them. A shadow emits nothing, and bans nobody."""
        if self.shadow:
            return ("quiet",)
        return () if self.ban is None else ("ban", *self.ban.encoded)

    @classmethod
    def make(cls, name: str, *rates: object, **options: object) -> Rule:
        """Make a rule from rates as people write them, and options by name.

        Raises `RuleError`; for an unknown option it names the nearest one.
        """
        known = option_names().difference(SETTINGS_ONLY) | {"name"}
        for option in options:
            if option in SETTINGS_ONLY:
                raise RuleError(
                    f"{option}= is only for rules in the settings. A decorator already says which view it limits."
                )
            if option not in known:
                raise RuleError(f"{option!r} is not an option of a rule.{did_you_mean(option, known)}")
        return cls(name, cast("Any", rates), **cast("dict[str, Any]", options))

    @classmethod
    def from_setting(
        cls,
        name: str,
        value: object,
        imported: Callable[[str, object], object] | None = None,
        place: str = 'QUOTA["RULES"]',
    ) -> Rule:
        """Make a rule from an entry of `QUOTA["RULES"]`: a rate, a list of rates, or a dict with `rate` and options.

        `imported(option, value)` resolves the dotted paths in an option. Raises `RuleError` with the `place`
        of the entry.
        """
        try:
            options = {str(option): given for option, given in value.items()} if isinstance(value, Mapping) else {}
            known = option_names() | {"rate", "name"}
            for option in [option for option in options if option not in known]:
                hint = _TIERS_IN_SETTINGS if option in DEFAULT_TIERS else did_you_mean(option, known).strip()
                raise RuleError(f"{option!r} is not an option of a rule.", hint)  # noqa: TRY301
            if isinstance(value, Mapping) and "rate" not in options:
                raise RuleError("it has no 'rate'. Use, for example, {'rate': '10/m', 'key': 'ip'}.")  # noqa: TRY301
            if imported is not None:
                options = {option: imported(option, given) for option, given in options.items()}
            return cls._of_setting(name, options.pop("rate", value), options)
        except RuleError as error:
            raise RuleError(f"{place}[{name!r}]: {error}") from error

    @classmethod
    def _of_setting(cls, name: str, rate: object, options: dict[str, object]) -> Rule:
        if "name" in options:
            raise RuleError("'name' is not an option here.", "The key in RULES is the rule's name.")
        rates = rate if isinstance(rate, (list, tuple)) else (rate,)
        if not rates:
            raise RuleError("it lists no rate.", "Use, for example, '10/m', or None for unlimited.")
        places = {option: options.pop(option) for option in SETTINGS_ONLY if option in options}
        rule = cls.make(name, *rates, **options)
        read = {option: Match.read(option, given) for option, given in places.items() if given is not None}
        if "exclude" in read and "match" not in read:
            raise RuleError(
                "exclude= needs match=, which says where the rule applies.", "Use, for example, 'match': '/'."
            )
        return replace(rule, **cast("Any", read)) if read else rule

    def with_rates(self, *rates: object) -> Rule:
        """Return the rule with other rates, as people write them; None means unlimited."""
        parsed = parse_rates(*rates)
        try:
            return _with_rates(self, parsed)
        except TypeError:  # an option is not hashable
            return replace(self, rates=parsed, tier=None)

    def is_compatible_with(self, other: Rule) -> bool:
        """Say whether two rules of one name differ in rates, key and algorithm alone, and share no count."""
        shared = [(own, limit) for own in self.limits for limit in other.limits if own.state_id == limit.state_id]
        is_same = all(getattr(self, name) == getattr(other, name) for name in _SHARED)
        return is_same and all(own == limit for own, limit in shared)

    def renamed(self, name: str) -> Rule:
        """Return the rule under another name."""
        return replace(self, name=name)


@lru_cache(maxsize=1024)
def _with_rates(rule: Rule, rates: tuple[Rate, ...]) -> Rule:
    return replace(rule, rates=rates, tier=None)


@lru_cache(maxsize=1)
def option_names() -> frozenset[str]:
    """Return the names of all options of a rule, without `name` and `rates`."""
    return frozenset(f.name for f in fields(Rule) if f.init) - {"name", "rates"}


def name_conflict(rule: Rule, other: Rule) -> RuleError:
    """Return the error for two different rules of one name, which would share their counts, overrides and bans."""
    ours, theirs = ("; ".join(map(str, each.rates)) for each in (rule, other))
    return RuleError(
        f"Two rules are named {rule.name!r} ({theirs} and {ours}), but their limits over one window, their costs or "
        "their options differ: they would share one count. Give one of them a name of its own."
    )


def is_valid_name(value: object) -> bool:
    """Say whether a value can name a rule or a slot: a text of at least one character that UTF-8 can encode.

    JSON may bring halves of characters, which no page, database or terminal can show.
    """
    if not isinstance(value, str) or not value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def dotted_path(function: Any) -> str:
    """Return the dotted path of a function or class, with the arguments of a `partial`.

    The path of a lambda ends with its line, so that two lambdas of one function differ.
    """
    if isinstance(function, partial):
        return dotted_path(function.func) + format_arguments(function.args, function.keywords)
    owner = function if hasattr(function, "__qualname__") else type(function)
    qualname = owner.__qualname__
    if isinstance(owner, type):  # Django REST framework's @api_view renames its class by __name__ alone
        qualname = f"{qualname.rpartition('.')[0]}.{owner.__name__}".lstrip(".")
    path = f"{owner.__module__}.{qualname}"
    code = getattr(function, "__code__", None)
    return f"{path}:{code.co_firstlineno}" if path.endswith("<lambda>") and code else path


def format_arguments(args: Iterable[object], keywords: Mapping[str, object]) -> str:
    """Return arguments as a rule's name shows them; the same in every process."""
    shown = [*map(_format_argument, args), *(f"{name}={_format_argument(value)}" for name, value in keywords.items())]
    return f"({', '.join(shown)})"


def _format_argument(value: object) -> str:
    if isinstance(value, tuple) and len(shown := format_arguments(value, {})) <= MAX_ARGUMENT:
        return shown
    if value is None or (isinstance(value, (str, int)) and len(repr(value)) <= MAX_ARGUMENT):
        return repr(value)
    return dotted_path(value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value))


def is_lambda(function: Any) -> bool:
    """Say whether a function, or the function of a `partial`, is a lambda."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__qualname__", "")).endswith("<lambda>")


def functions_of(rule: Rule) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions of a rule, each with the option that it is of; `key_parts` has those in its keys."""
    options: list[tuple[str, Any]] = [("rate", rate) for rate in rule.rates]
    options += [("exempt", function) for function in getattr(rule.exempt, "functions", ())]
    options += [(option, getattr(rule, option)) for option in ("cost", "skip", "tier", *sorted(AFTER_RESPONSE))]
    return ((option, value) for option, value in options if callable(value))


def key_parts(rule: Rule) -> Iterator[tuple[str, Any]]:
    """Yield each part of `key` and `distinct`, with the option that it is of. A tuple in a tuple has parts itself."""
    parts = [("key", part) for part in _flat(rule.key)] + [("distinct", part) for part in _flat(rule.distinct)]
    return ((option, part) for option, part in parts if part is not None and part is not True)


def _flat(key: object) -> list[object]:
    return [inner for part in key for inner in _flat(part)] if isinstance(key, tuple) else [key]


def _normalize(rule: Rule) -> None:
    """Read the options that people may write in several ways."""
    rates: list[Rate | DynamicRate | Tiers] = []
    for rate in cast("tuple[object, ...]", rule.rates):
        if isinstance(rate, (Mapping, Tiers)):
            rates.append(Tiers.read(rate))
        else:
            rates += (rate,) if callable(rate) else parse_rates(rate)
    object.__setattr__(rule, "rates", tuple(rates))
    for option in ("key", "distinct"):
        if isinstance(getattr(rule, option), list):
            object.__setattr__(rule, option, tuple(getattr(rule, option)))
    for option, read in (("ban", Ban.read), ("exempt", Exemption.read), ("methods", _read_methods)):
        if getattr(rule, option) is not None:
            object.__setattr__(rule, option, read(getattr(rule, option)))


def _read_methods(given: object) -> frozenset[str]:
    names: Iterable[object] = [given] if isinstance(given, str) else cast("Iterable[object]", given)
    try:
        methods = frozenset(names)
    except TypeError:
        methods = frozenset()
    if not methods or not all(isinstance(name, str) and name.isalpha() for name in methods):
        raise RuleError(f"methods={given!r} are not HTTP methods. Use, for example, ['POST', 'PUT'].")
    upper = frozenset(str(name).upper() for name in methods)
    for name in sorted(upper - HTTP_METHODS):
        raise RuleError(f"methods={given!r}: {name!r} is not an HTTP method.", did_you_mean(name, HTTP_METHODS).strip())
    return upper | {"HEAD"} if "GET" in upper else upper  # Django answers HEAD with the view for GET


_ALGORITHM_OPTIONS = (("burst", int, "a whole number"), ("precision", int, "a whole number"), ("tz", str, "a text"))


def _check_options(rule: Rule) -> None:
    if not is_valid_name(rule.name):
        raise RuleError(f"{rule.name!r} is not a rule's name. Use a text of at least one character.")
    algorithm = ALGORITHMS.get(rule.algorithm) if isinstance(cast("object", rule.algorithm), str) else None
    if algorithm is None:
        raise AlgorithmError(
            f"algorithm={rule.algorithm!r} is not an algorithm.",
            did_you_mean(str(rule.algorithm), ALGORITHMS).strip(),
        )
    for option, kind, article in _ALGORITHM_OPTIONS:
        given = getattr(rule, option)
        if given is None:
            continue
        if option not in algorithm.takes:
            takers = [name for name, other in ALGORITHMS.items() if option in other.takes]
            take = "take" if len(takers) > 1 else "takes"
            raise RuleError(f"{option}= is not an option of {algorithm.name!r}; {' and '.join(takers)} {take} it.")
        if not isinstance(given, kind) or isinstance(given, bool):
            raise RuleError(f"{option}={given!r} is not {article}.")
    _check_behaviour(rule)


def _is_number(value: object, least: float, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most


def is_refusal_span(value: object) -> bool:
    """Say whether a value is a number of seconds for `cache_refusals`."""
    return _is_number(value, 0, MAX_CACHE_REFUSALS)


_CHECKS: tuple[tuple[str, Callable[[Any], bool], str, str], ...] = (
    ("count_refused", lambda value: isinstance(value, bool), "is not True or False.", ""),
    ("block", lambda value: isinstance(value, bool), "is not True or False.", ""),
    ("shadow", lambda value: isinstance(value, bool), "is not True or False.", ""),
    (
        "skip",
        lambda skip: skip is None or callable(skip),
        "is not a function of the request, such as lambda request: ...",
        "",
    ),
    ("on_unavailable", (None, *get_args(OnUnavailable)).__contains__, "is not 'allow', 'deny' or 'local'.", ""),
    ("daily", (None, True, False).__contains__, "is not True, False or None.", ""),
    (
        "warn_at",
        lambda share: share is None or _is_number(share, MIN_WARN_AT, 1),
        f"is not a share of the limit, from {MIN_WARN_AT} to 1.",
        "Use, for example, 0.8, or None for never.",
    ),
    (
        "cache_refusals",
        lambda seconds: seconds is None or is_refusal_span(seconds),
        f"is not a number of seconds from 0 to {MAX_CACHE_REFUSALS}.",
        "Use, for example, 1.0, or 0 for never.",
    ),
)
"""Options whose values are checked one by one: what is wrong with any other value, and what to write instead."""


def _check_behaviour(rule: Rule) -> None:
    for option, fits, problem, hint in _CHECKS:
        if not fits(getattr(rule, option)):
            raise RuleError(f"{option}={getattr(rule, option)!r} {problem}", hint)
    if not callable(rule.cost):
        object.__setattr__(rule, "cost", validate_cost(rule.cost, rule.name))
    _check_tiers(rule)
    if rule.distinct is not None:
        _check_distinct(rule)
    _check_after_response(rule)


_SETTLE_EXAMPLE = "Use, for example, lambda request, response: len(response.content)."
_COUNTS_EXAMPLE = "Use, for example, lambda response: response.status_code == 401."


def _check_after_response(rule: Rule) -> None:
    for option, example in (("settle", _SETTLE_EXAMPLE), ("counts", _COUNTS_EXAMPLE)):
        given = getattr(rule, option)
        if given is None:
            continue
        if not callable(given):
            raise RuleError(f"{option}={given!r} is not a function.", example)
        if rule.distinct is not None:
            raise RuleError(
                f"{option}= does not go with distinct=: a value that was counted cannot be given back.",
                f"Leave out {option}=, or count hits in another rule.",
            )
        if rule.cost == 0:
            raise RuleError(
                f"{option}= does not go with cost=0: there is nothing to settle.",
                "Use the cost that you expect, at least 1.",
            )


def _check_tiers(rule: Rule) -> None:
    tiers = next((rate for rate in rule.rates if isinstance(rate, Tiers)), None)
    if tiers is None:
        if rule.tier is not None:
            raise RuleError("tier= needs rates by tier.", _TIERS_EXAMPLE)
        return
    if len(rule.rates) > 1:
        raise RuleError(
            f"{tiers} cannot be combined with other rates.",
            "Give a tier several rates, for example {'pro': '10/s; 500/h'}.",
        )
    if rule.tier is None:
        tiers.check_default()
    elif not callable(rule.tier):
        raise RuleError(f"tier={rule.tier!r} is neither a function of the request nor the dotted path of one.")


def _check_distinct(rule: Rule) -> None:
    if rule.algorithm != "sliding_window" or rule.precision is not None or rule.count_refused:
        raise RuleError(
            f"distinct={rule.distinct!r} counts different values in a sliding window.",
            "Leave out algorithm=, precision= and count_refused=.",
        )
    if rule.cost != 1:
        raise RuleError(f"cost={rule.cost!r} does not go with distinct=: each value costs 1.")


def _rules_of_tiers(rule: Rule) -> Mapping[str, Rule]:
    tiers = rule.rates[0] if rule.rates else None
    if not isinstance(tiers, Tiers):
        return {}
    return {name: replace(rule, rates=rates, tier=None) for name, rates in tiers.rates}


def _limits(rule: Rule) -> tuple[Limit, ...]:
    algorithm = ALGORITHMS[rule.algorithm] if rule.distinct is None else DISTINCT
    options = Options(rule.burst, rule.precision, rule.tz, rule.count_refused)
    limits: dict[str, Limit] = {}
    for rate in cast("tuple[Rate, ...]", rule.rates):
        limit = Limit.of(rule.name, rate, algorithm, options)
        other = limits.get(limit.state_id)
        if other is not None:
            low, high = sorted((other.rate, rate), key=lambda r: r.count)
            raise RateError(
                f"{other.rate}; {rate}",
                None,
                "both rates have the same window",
                f"Use {str(low)!r} alone: it refuses everything that {str(high)!r} refuses.",
            )
        limits[limit.state_id] = limit
    return tuple(limits.values())
