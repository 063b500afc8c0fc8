"""Rules: named limits, read strictly once and never changed. Pure; keys and callables are carried, not understood.

A rule is checked when it is made, so that a wrong one fails at import or in a system check, not on a request. The
limits that follow from it are worked out then too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial
from typing import Any, Literal, TypedDict, cast, get_args

from django_quota.algorithms import ALGORITHMS, DISTINCT, AlgorithmName, Limit, Options
from django_quota.bans import Ban
from django_quota.exceptions import AlgorithmError, RateError, RuleError, did_you_mean
from django_quota.exemptions import Exemption
from django_quota.matching import Match
from django_quota.methods import read_methods
from django_quota.names import is_name
from django_quota.rates import Rate, check_cost, parse_rates
from django_quota.tiers import DEFAULT_TIERS, Tiers

OnUnavailable = Literal["allow", "deny", "local"]

_OF_THE_SETTINGS = ("match", "exclude")
"""The options that only rules of the settings have."""

_SHARED = ("shadow", "block", "ban", "warn_at", "daily", "distinct", "on_unavailable")
"""What rules of one name must have in common: it is about the rule and its subject, not about one limit."""

_BY_TIER = "Rates by tier stand under 'rate': {'rate': {'anonymous': '10/m', 'authenticated': '100/m'}}."

MAX_ARGUMENT = 80
"""Characters of an argument above which only its type stands in a rule's name."""

LEAST_SHARE = 0.001
"""The least of `warn_at`."""

DynamicRate = Callable[[Any], Any]
"""A function of the request that returns a rate (`"10/m"`, several, or None for unlimited); may be async."""


class _Options(TypedDict, total=False):
    """The options of a rule by name, with their types; see `Rule`."""

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


class RuleOptions(_Options, total=False):
    """The options that `@quota` takes."""

    cost: int | Callable[[Any], Any]


class CallOptions(_Options, total=False):
    """The options that `check` and its like take with a rate; `cost` is an argument of theirs."""

    name: str


@dataclass(frozen=True)
class Rule:
    """A named limit: rates, a key, an algorithm and options.

    `rates`: several must all have room; none at all means unlimited. `key`: how a request tells who is limited.
    `cost`: units a hit takes, a whole number or a function of the request. `burst`, `precision`, `tz`, `count_refused`:
    see `algorithms.Options`. `methods`: the HTTP methods it holds for (GET means HEAD too); None for all. `block`:
    whether a refusal answers the request, or only shows on `request.quota`. `shadow`: decide and report, never
    refuse. `skip`: a function of the request; where it returns true, the rule does not hold. `exempt`: whom it does not
    hold for: networks, `"staff"`, a function of the request. `tier`: a function of the request that names its tier,
    where the rates are a dict by tier; by default `"anonymous"` or `"authenticated"`. `on_unavailable`: what
    holds while the store does not answer: `"allow"`, `"deny"` or `"local"` (each process counts by itself, its part of
    the limit); None for the setting's. `ban`: `{"after": "20/m", "for": ["10m", "1h"]}`: so many refusals shut the
    subject out, each time longer. `warn_at`: the share of a limit, above 0 and up to 1, whose use is told as
    `near_limit`; None: never. `daily`: whether allowed and refused are counted for the subject, by day; None: for
    users. `distinct`: what is limited are the different values of this key (`"header:X-Device"`, a function of the
    request; True: `check(..., value=)` brings them), not the hits. `match` and `exclude`, of rules of the
    settings alone: where the middleware applies it; see `matching.Match`.

    Raises `RuleError` (of which `RateError` is one) where anything does not fit.
    """

    name: str
    rates: tuple[Rate | DynamicRate | Tiers, ...]
    key: Any = "ip"
    algorithm: AlgorithmName = "sliding_window"
    cost: int | Callable[[Any], Any] = 1
    burst: int | None = None
    precision: int | None = None
    tz: str | None = None
    count_refused: bool = False
    methods: frozenset[str] | None = None
    block: bool = True
    shadow: bool = False
    skip: Callable[[Any], Any] | None = None
    exempt: Any = None
    tier: Callable[[Any], Any] | None = None
    match: Match | None = None
    exclude: Match | None = None
    on_unavailable: OnUnavailable | None = None
    ban: Any = None
    warn_at: float | None = 0.8
    daily: bool | None = None
    distinct: Any = None
    limits: tuple[Limit, ...] = field(init=False, repr=False, compare=False)
    dynamic: bool = field(init=False, repr=False, compare=False)
    """Whether a rate depends on the request: then `limits` is empty, and `with_rates` or `tiers` has the real rule."""
    tiers: Mapping[str, Rule] = field(init=False, repr=False, compare=False)
    """The rule of each tier, by the tier's name; empty where the rates are not by tier."""
    is_plain: bool = field(init=False, repr=False, compare=False)
    """Whether nothing of a request matters to it but its key."""
    needs_body: bool = field(init=False, repr=False, compare=False)
    """Whether its key, or what it tells apart, is a field of a form: then the body of the request is read for it."""
    wire: str = field(init=False, repr=False, compare=False)
    """What `lua/decide.lua` is told of the rule besides its limits: near from, ban, whether its events are told."""

    def __post_init__(self) -> None:
        _normalize(self)
        _check_options(self)
        dynamic = any(not isinstance(rate, Rate) for rate in self.rates)
        object.__setattr__(self, "dynamic", dynamic)
        object.__setattr__(self, "limits", () if dynamic else _limits(self))
        object.__setattr__(self, "tiers", _rules_of_tiers(self))
        asking = (self.methods, self.skip, self.exempt, self.match, self.distinct)
        is_plain = not dynamic and not callable(self.cost) and all(option is None for option in asking)
        object.__setattr__(self, "is_plain", is_plain)
        object.__setattr__(self, "needs_body", _is_of_a_form((self.key, self.distinct)))
        ban = "-" if self.ban is None or self.shadow else self.ban.wire
        object.__setattr__(self, "wire", f"{int((self.warn_at or 0) * 1000)} {ban} {not self.shadow:d}")

    @classmethod
    def make(cls, name: str, *rates: object, **options: object) -> Rule:
        """Make a rule of rates as people write them, and options by name.

        Raises `RuleError`, naming the nearest option where one is unknown.
        """
        known = option_names().difference(_OF_THE_SETTINGS) | {"name"}
        for option in options:
            if option in _OF_THE_SETTINGS:
                raise RuleError(
                    f"{option}= is for rules of the settings, which hold by themselves; elsewhere you say where."
                )
            if option not in known:
                raise RuleError(f"{option!r} is not an option of a rule.{did_you_mean(option, known)}")
        return cls(name, cast("Any", rates), **cast("dict[str, Any]", options))

    @classmethod
    def from_setting(cls, name: str, value: object, imported: Callable[[str, object], object] | None = None) -> Rule:
        """Make a rule of an entry of `QUOTA["RULES"]`: a rate, a list of rates, or a dict with `rate` and options.

        `imported`: is given the name and the value of each option, and returns what a dotted path stands for. Raises
        `RuleError` with the place in the settings.
        """
        place = f'QUOTA["RULES"][{name!r}]'
        try:
            options = {str(option): given for option, given in value.items()} if isinstance(value, Mapping) else {}
            known = option_names() | {"rate", "name"}
            for option in [option for option in options if option not in known]:
                hint = _BY_TIER if option in DEFAULT_TIERS else did_you_mean(option, known).strip()
                raise RuleError(f"{option!r} is not an option of a rule.", hint)  # noqa: TRY301
            if isinstance(value, Mapping) and "rate" not in options:
                raise RuleError("it has no 'rate'; {'rate': '10/m', 'key': 'ip'} would do.")  # noqa: TRY301
            if imported is not None:
                options = {option: imported(option, given) for option, given in options.items()}
            return cls._of_setting(name, options.pop("rate", value), options)
        except RuleError as error:
            raise RuleError(f"{place}: {error}") from error

    @classmethod
    def _of_setting(cls, name: str, rate: object, options: dict[str, object]) -> Rule:
        if "name" in options:
            raise RuleError("'name' is not an option here.", "The rule is called by its key in RULES.")
        rates = rate if isinstance(rate, (list, tuple)) else (rate,)
        if not rates:
            raise RuleError("it lists no rate.", "'10/m' would do, or None for unlimited.")
        places = {option: options.pop(option) for option in _OF_THE_SETTINGS if option in options}
        rule = cls.make(name, *rates, **options)
        read = {option: Match.read(option, given) for option, given in places.items() if given is not None}
        if "exclude" in read and "match" not in read:
            raise RuleError("exclude= takes nothing away where no match= says where the rule holds.", "'match': '/'")
        return replace(rule, **cast("Any", read)) if read else rule

    def with_rates(self, *rates: object) -> Rule:
        """Return the rule with rates as people write them in the place of its own; None means unlimited."""
        parsed = parse_rates(*rates)
        try:
            return _with_rates(self, parsed)
        except TypeError:  # an option that cannot be a key of the cache
            return replace(self, rates=parsed, tier=None)

    def agrees_with(self, other: Rule) -> bool:
        """Say whether this rule and another of its name differ in their rates and algorithm alone."""
        return all(getattr(self, name) == getattr(other, name) for name in _SHARED)

    def named(self, name: str) -> Rule:
        """Return the rule under another name."""
        return replace(self, name=name)


@lru_cache(maxsize=1024)
def _with_rates(rule: Rule, rates: tuple[Rate, ...]) -> Rule:
    return replace(rule, rates=rates, tier=None)


@lru_cache(maxsize=1)
def option_names() -> frozenset[str]:
    """Return the names of the options that a rule takes besides its name and rates."""
    return frozenset(f.name for f in fields(Rule) if f.init) - {"name", "rates"}


def shared_name(rule: Rule, other: Rule) -> RuleError:
    """Return the error of two rules that would share one count, or one override and ban, and differ."""
    ours, theirs = ("; ".join(map(str, each.rates)) for each in (rule, other))
    return RuleError(
        f"Two rules are named {rule.name!r} ({theirs} and {ours}), but their limits over one window, their costs or "
        "their options differ: they would share one count. Give one of them a name of its own."
    )


def path_of(function: Any) -> str:
    """Return the dotted path that a function or class is known by, and the arguments that a `partial` holds.

    A lambda's path has its line, to tell it from its neighbours.
    """
    if isinstance(function, partial):
        return path_of(function.func) + arguments_of(function.args, function.keywords)
    owner = function if hasattr(function, "__qualname__") else type(function)
    qualname = owner.__qualname__
    if isinstance(owner, type):  # Django REST framework's @api_view renames its class by __name__ alone
        qualname = f"{qualname.rpartition('.')[0]}.{owner.__name__}".lstrip(".")
    path = f"{owner.__module__}.{qualname}"
    code = getattr(function, "__code__", None)
    return f"{path}:{code.co_firstlineno}" if path.endswith("<lambda>") and code else path


def arguments_of(args: Iterable[object], keywords: Mapping[str, object]) -> str:
    """Return arguments as they stand in the name of a rule: the same in every process."""
    shown = [*map(_argument, args), *(f"{name}={_argument(value)}" for name, value in keywords.items())]
    return f"({', '.join(shown)})"


def _argument(value: object) -> str:
    if isinstance(value, tuple) and len(shown := arguments_of(value, {})) <= MAX_ARGUMENT:
        return shown
    if value is None or (isinstance(value, (str, int)) and len(repr(value)) <= MAX_ARGUMENT):
        return repr(value)
    return path_of(value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value))


def _is_of_a_form(key: object) -> bool:
    if isinstance(key, tuple):
        return any(map(_is_of_a_form, key))
    return isinstance(key, str) and key.startswith("post:")


def is_lambda(function: Any) -> bool:
    """Say whether a function has no name of its own."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__qualname__", "")).endswith("<lambda>")


def _normalize(rule: Rule) -> None:
    """Bring rates, key and methods, as people write them, into their one form."""
    rates: list[Rate | DynamicRate | Tiers] = []
    for rate in cast("tuple[object, ...]", rule.rates):
        if isinstance(rate, (Mapping, Tiers)):
            rates.append(Tiers.read(rate))
        else:
            rates += (rate,) if callable(rate) else parse_rates(rate)
    object.__setattr__(rule, "rates", tuple(rates))
    if isinstance(rule.key, list):
        object.__setattr__(rule, "key", tuple(rule.key))
    if isinstance(rule.distinct, list):
        object.__setattr__(rule, "distinct", tuple(rule.distinct))
    if rule.ban is not None:
        object.__setattr__(rule, "ban", Ban.read(rule.ban))
    if rule.exempt is not None:
        object.__setattr__(rule, "exempt", Exemption.read(rule.exempt))
    if rule.methods is not None:
        object.__setattr__(rule, "methods", read_methods(rule.methods))


def _check_options(rule: Rule) -> None:
    if not is_name(rule.name):
        raise RuleError(f"{rule.name!r} is not a rule's name: a text of at least one character would do.")
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
            raise RuleError(f"{option}= is not an option of {algorithm.name!r}; {' and '.join(takers)} take it.")
        if not isinstance(given, kind) or isinstance(given, bool):
            raise RuleError(f"{option}={given!r} is not {article}.")
    _check_behaviour(rule)


_ALGORITHM_OPTIONS = (("burst", int, "a whole number"), ("precision", int, "a whole number"), ("tz", str, "a text"))


def _check_behaviour(rule: Rule) -> None:
    for option in ("count_refused", "block", "shadow"):
        if not isinstance(getattr(rule, option), bool):
            raise RuleError(f"{option}={getattr(rule, option)!r} is not True or False.")
    if rule.skip is not None and not callable(rule.skip):
        raise RuleError(f"skip={rule.skip!r} is not a function of the request, such as lambda request: ...")
    if rule.on_unavailable not in (None, *get_args(OnUnavailable)):
        raise RuleError(f"on_unavailable={rule.on_unavailable!r} is not 'allow', 'deny' or 'local'.")
    if not callable(rule.cost):
        object.__setattr__(rule, "cost", check_cost(rule.cost, rule.name))
    if rule.daily not in (None, True, False):
        raise RuleError(f"daily={rule.daily!r} is not True, False or None.")
    _check_share(rule.warn_at)
    _check_tiers(rule)
    if rule.distinct is not None:
        _check_distinct(rule)


def _check_tiers(rule: Rule) -> None:
    tiers = next((rate for rate in rule.rates if isinstance(rate, Tiers)), None)
    if tiers is None:
        if rule.tier is not None:
            raise RuleError("tier= goes with rates by tier: {'anonymous': '10/m', 'authenticated': '100/m'} would do.")
        return
    if len(rule.rates) > 1:
        raise RuleError(f"{tiers} stands beside other rates.", "A tier may have several: {'pro': '10/s; 500/h'}.")
    if rule.tier is None:
        tiers.check_default()
    elif not callable(rule.tier):
        raise RuleError(f"tier={rule.tier!r} is not a function of the request, nor the dotted path of one.")


def _rules_of_tiers(rule: Rule) -> Mapping[str, Rule]:
    tiers = rule.rates[0] if rule.rates else None
    if not isinstance(tiers, Tiers):
        return {}
    return {name: replace(rule, rates=rates, tier=None) for name, rates in tiers.rates}


def _check_share(share: object) -> None:
    if share is None or (isinstance(share, (int, float)) and not isinstance(share, bool) and LEAST_SHARE <= share <= 1):
        return
    raise RuleError(f"warn_at={share!r} is not a share of the limit, from 0.001 to 1; 0.8 would do, or None for never.")


def _check_distinct(rule: Rule) -> None:
    if rule.algorithm != "sliding_window" or rule.precision is not None or rule.count_refused:
        raise RuleError(
            f"distinct={rule.distinct!r} counts different values in a sliding window.",
            "It goes with no other algorithm, and with neither precision= nor count_refused=.",
        )
    if rule.cost != 1:
        raise RuleError(f"cost={rule.cost!r} does not go with distinct=: a value counts one.")


def _limits(rule: Rule) -> tuple[Limit, ...]:
    algorithm = ALGORITHMS[rule.algorithm] if rule.distinct is None else DISTINCT
    options = Options(rule.burst, rule.precision, rule.tz, rule.count_refused)
    limits: dict[str, Limit] = {}
    for rate in cast("tuple[Rate, ...]", rule.rates):
        limit = Limit.of(rule.name, rate, algorithm, options)
        twin = limits.get(limit.state_id)
        if twin is not None:
            low, high = sorted((twin.rate, rate), key=lambda r: r.count)
            raise RateError(
                f"{twin.rate}; {rate}",
                None,
                "both rates have the same window",
                f"{str(low)!r} alone would do: it refuses all that {str(high)!r} does.",
            )
        limits[limit.state_id] = limit
    return tuple(limits.values())
