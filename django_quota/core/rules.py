"""Rules: a named limit with its rates, key and options, checked when you make it.

A wrong rule fails at import or in a system check, never on a request. A rule never changes, so its limits are computed
when it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime
from functools import cached_property, partial
from inspect import signature
from typing import Any, ClassVar, Literal, TypedDict, TypeGuard, cast, get_args

from django_quota.core.algorithms import ALGORITHMS, DISTINCT, SUBSCRIPTION, Algorithm, AlgorithmName, Limit, Options
from django_quota.core.algorithms.subscription import FIRST_DAY, UNITS_WITH_START, same_periods
from django_quota.core.caching import cached
from django_quota.core.clock import SECOND
from django_quota.core.errors import AlgorithmError, RateError, RuleError, Translatable, did_you_mean
from django_quota.core.matching import Match
from django_quota.core.overrides import ALL_RULES
from django_quota.core.rates import Rate, RateChange, parse_override_rates, parse_rates, validate_cost
from django_quota.core.rule_options import (
    MIN_LEASES_PER_WINDOW,
    MIN_SHARE,
    OPTION,
    STORE_HINT,
    STORE_PROBLEM,
    BanOption,
    Exemption,
    OnUnavailable,
    Option,
    RuleStore,
    Shares,
    are_shares,
    declare,
    declare_flag,
    declare_function,
    declare_number,
    names_tiers,
    read_costs,
    read_methods,
    read_prefetch,
    read_refusal_span,
    read_share,
)

DynamicRate = Callable[[Any], Any]
"""A function of the request that returns a rate (`"10/m"`, several, or None for unlimited); it may be async."""

ANONYMOUS = "anonymous"
AUTHENTICATED = "authenticated"

DEFAULT_TIERS = (ANONYMOUS, AUTHENTICATED)
"""The tiers of a rule that has no `tier` function."""

DEFAULT = "default"
"""The tier of a request without a known one, where the rule has no tier for visitors or users."""

MAX_ARGUMENT = 80
"""How many characters of an argument a rule's name shows; of a longer argument it shows only the type."""

DEFAULT_LEASES_PER_WINDOW = 50
"""How many times longer the shortest window of a rule is than the lease of `prefetch=True`.

A window lasts at least a second, so such a lease lasts at least `MIN_LEASE`.
"""

MAX_DEFAULT_LEASE = 10 * SECOND
"""The longest lease of `prefetch=True`, in microseconds: a longer one saves next to nothing."""

_BODY_KINDS: tuple[Literal["post", "json"], ...] = ("post", "json")
"""The kinds of keys that read the body of a request."""

_TIERS_EXAMPLE = "Use, for example, {'anonymous': '10/m', 'authenticated': '100/m'}."


class _Options(TypedDict, total=False):
    """The options of a rule by name, with their types. `Rule` describes them."""

    key: Any
    algorithm: AlgorithmName
    burst: int | None
    precision: int | None
    tz: str | None
    starts: date | Callable[[str], Any] | None
    count_refused: bool
    block: bool
    shadow: bool
    on_unavailable: OnUnavailable | None
    ban: Mapping[str, Any] | None
    warn_at: float | Sequence[float] | None
    daily: bool | None
    distinct: Any
    cache_refusals: float | None
    share: float | Mapping[str, float] | None
    prefetch: bool | float | None
    store: RuleStore | None


class RuleOptions(_Options, total=False):
    """The options that `@quota` takes."""

    cost: int | Callable[[Any], Any]
    costs: Mapping[str, int] | None
    methods: Iterable[str] | None
    skip: Callable[[Any], Any] | None
    exempt: Any
    tier: Callable[[Any], Any] | None
    settle: Callable[[Any, Any], Any] | None
    count_when: Callable[[Any], Any] | None


class CallOptions(_Options, total=False):
    """The options that `check()` and its like take with a rate; `cost` is a separate argument.

    `tier` may also be the name of a tier, with any rule that has rates by tier.
    """

    name: str
    tier: Callable[[Any], Any] | str | None


@dataclass(frozen=True, slots=True)
class Tiers:
    """The rates of each tier; an empty tuple means that the tier is unlimited."""

    rates: tuple[tuple[str, tuple[Rate, ...]], ...]

    @classmethod
    def read(cls, value: object) -> Tiers:
        """Read a dict of rates by tier. Raises `RuleError`, or `RateError` naming the tier."""
        if isinstance(value, Tiers):
            return value
        if not names_tiers(value):
            raise RateError(value, None, "the dict has no tiers", _TIERS_EXAMPLE)
        return cls(tuple((tier, cls._read_rates(tier, given)) for tier, given in value.items()))

    @staticmethod
    def _read_rates(tier: str, given: object) -> tuple[Rate, ...]:
        try:
            return parse_rates(*(given if isinstance(given, (list, tuple)) else (given,)))
        except RateError as error:
            problem = Translatable("%(problem)s, for tier %(tier)s", problem=error.problem, tier=repr(tier))
            raise RateError(error.text, error.position, problem, error.hint) from None

    def __str__(self) -> str:
        return ", ".join(f"{'; '.join(map(str, rates)) or 'unlimited'} for {name}" for name, rates in self.rates)


def default_tier_of(subject: str) -> str:
    """Return the default tier of a subject where there is no request: `"authenticated"` for a user."""
    return AUTHENTICATED if subject.startswith("user:") else ANONYMOUS


def check_default_tiers(names: Collection[str], what: str, hint: str) -> None:
    """Raise `RuleError` unless the tiers are exactly the default ones, which need no `tier` function."""
    for name in names:
        if name not in DEFAULT_TIERS:
            hint = f"Add tier=, a function of the request that returns the tier.{did_you_mean(name, DEFAULT_TIERS)}"
            raise RuleError(f"There is no tier= to say who is in tier {name!r}.", hint)
    for name in DEFAULT_TIERS:
        if name not in names:
            raise RuleError(f"There is no {what} for the tier {name!r}.", hint)


def check_default_shares(shares: Shares) -> None:
    """Raise `RuleError` unless the shares name exactly the default tiers."""
    check_default_tiers(dict(shares.of_tiers), "share", "Use 1.0 if requests of this tier may fill the limit.")


def _as_tuple(given: Any) -> Any:
    return tuple(given) if isinstance(given, list) else given


@dataclass(frozen=True)
class Rule:
    """A named limit: rates, a key, an algorithm and options.

    Raises `RuleError` for a wrong option, and `RateError`, a kind of `RuleError`, for a wrong rate.
    """

    any_in_database: ClassVar[bool] = False
    """Whether any rule or counter of this process has `store="database"`. Until then, no call looks for one."""

    name: str
    rates: tuple[Rate | DynamicRate | Tiers, ...]
    """All rates must have room for a hit; no rate at all means unlimited."""
    key: Any = declare("ip", read=_as_tuple)
    """How a request tells who is limited: `"ip"`, `"user"`, a function of the request, or several."""
    algorithm: AlgorithmName = declare("sliding_window")
    cost: int | Callable[[Any], Any] = declare(
        1,
        fits=lambda cost: cost != 0,
        problem="is below 1.",
        hint="Use 1, or a function of the request that returns 0 for free ones.",
        called_with=("request",),
    )
    """How much a hit takes: a whole number from 1 to 10^12, or a function of the request; 0 from it is a free hit."""
    costs: Any = declare(None, read=read_costs, only_in="views")
    """What a request of some views costs instead, by the name of the URL: `{"export": 50}`."""
    burst: int | None = declare_number()
    """How many hits a bucket takes at once; for `token_bucket` and `leaky_bucket`."""
    precision: int | None = declare_number()
    """How many entries a sliding window keeps at most, 1 to 1000 (100 unless set)."""
    tz: str | None = declare(None, fits=lambda zone: isinstance(zone, str), problem="is not a string.")
    """The time zone of `calendar`, such as `"Europe/Berlin"`; UTC unless set."""
    starts: Any = declare(
        None,
        fits=lambda day: callable(day) or is_day(day),
        problem="is neither a date, nor a function of the subject, nor the dotted path of one.",
        hint="Use, for example, 'shop.plans.started', a function that returns the day on which a plan began.",
        called_with=("subject",),
    )
    """The day on which a week, month or year of `calendar` begins: a date, or a function of the subject.

    The function, sync or async, returns a date or a datetime, whose day in `tz` counts; None takes the calendar's own
    weeks, months and years.
    """
    count_refused: bool = declare_flag(default=False)
    """Whether refused hits count too."""
    methods: frozenset[str] | None = declare(None, read=read_methods, only_in="requests")
    """The HTTP methods that are limited (GET includes HEAD); None for all."""
    block: bool = declare_flag(default=True, is_shared=True)
    """Whether a refusal answers the request. With False it only shows on `request.quota`."""
    shadow: bool = declare_flag(default=False, is_shared=True)
    """Decide and report, but never refuse."""
    skip: Callable[[Any], Any] | None = declare_function(
        "request", problem="is not a function of the request, such as lambda request: ...", only_in="requests"
    )
    """A function of the request; where it returns true, the rule does not apply."""
    exempt: Any = declare(None, read=Exemption.read, only_in="requests")
    """Who is exempt from the rule: networks, `"staff"`, a function of the request, or a list of those."""
    tier: Callable[[Any], Any] | None = declare_function(
        "request", problem="is neither a function of the request nor the dotted path of one."
    )
    """A function of the request that returns its tier; by default `"anonymous"` or `"authenticated"`."""
    match: Match | None = declare(None, read=partial(Match.read, "match"), only_in="settings")
    """Where the middleware applies the rule; only for configured rules."""
    exclude: Match | None = declare(None, read=partial(Match.read, "exclude"), only_in="settings")
    """Where the middleware does not apply the rule, even if `match` fits; only for configured rules."""
    on_unavailable: OnUnavailable | None = declare(
        None, fits=get_args(OnUnavailable).__contains__, problem="is not 'allow', 'deny' or 'local'.", is_shared=True
    )
    """The answer while the store does not respond; None takes `QUOTA["ON_UNAVAILABLE"]`.

    With `"local"` each process counts by itself, with its share of the limit.
    """
    ban: Any = declare(None, read=BanOption.read, is_shared=True)
    """`{"after": "20/m", "for": ["10m", "1h"]}`: 20 refusals in a minute ban for 10 minutes, then for an hour."""
    warn_at: float | Sequence[float] | None = declare(
        0.8,
        read=_as_tuple,
        fits=lambda given: given is None or are_shares(given if isinstance(given, tuple) else (given,)),
        problem=f"is not a share of the limit, from {MIN_SHARE} to 1, nor a list of shares.",
        hint="Use, for example, 0.8 or [0.8, 1.0], or None for never.",
        is_shared=True,
    )
    """The used share of a limit, from 0.001 to 1, that sends `near_limit`, or several; None for never."""
    daily: bool | None = declare_flag(default=None, is_shared=True)
    """Whether to count by day what the subject was allowed and refused; None counts users only."""
    distinct: Any = declare(None, read=_as_tuple, is_shared=True)
    """Limit the different values of this key instead of hits: `"header:X-Device"`, a function of the request.

    True takes the value from `check(..., value=)`.
    """
    cache_refusals: float | None = declare(None, read=read_refusal_span)
    """How long, up to a minute, a process repeats a refusal without asking the store; 0 for never.

    None takes `QUOTA["CACHE_REFUSALS"]`. Rules with `ban`, `count_refused` or `distinct` always ask the store.
    """
    share: Any = declare(None, read=read_share)
    """How much of each limit requests may fill, from 0.001 to 1, or a dict by tier; None for all of it.

    `{"critical": 1.0, "batch": 0.5}` with `tier`: all count together, and batch is refused above half of the limit.
    """
    prefetch: Any = declare(None, read=read_prefetch, is_shared=True)
    """True, or for how many seconds: a process that asks often takes units ahead, and then decides without the store.

    True is a fiftieth of the shortest window, at most 10 seconds. No window ever admits more than its limit.
    """
    store: RuleStore | None = declare(
        None, fits=get_args(RuleStore).__contains__, problem=STORE_PROBLEM, hint=STORE_HINT, is_shared=True
    )
    """Where the rule counts: `"database"` for what must outlive Redis; None for `QUOTA["STORE"]`."""
    settle: Callable[[Any, Any], Any] | None = declare_function(
        "request",
        "response",
        problem="is not a function.",
        hint="Use, for example, lambda request, response: len(response.content).",
        is_shared=True,
        only_in="views",
    )
    """A function of the request and the response that returns the real cost. Until then `cost` is an estimate."""
    count_when: Callable[[Any], Any] | None = declare_function(
        "response",
        problem="is not a function.",
        hint="Use, for example, lambda response: response.status_code == 401.",
        is_shared=True,
        only_in="views",
    )
    """A function of the response that says whether the request counts. If not, its cost is given back."""
    of_tier: str = field(default="", repr=False)
    """The tier that these rates are for, where a function of the request says who is in it; otherwise empty."""
    counts_as: tuple[Rate, ...] = field(default=(), repr=False)
    """Of a tier without a limit: the rates of the other tiers, under which it counts."""

    def __post_init__(self) -> None:
        _read_options(self)
        _check_options(self)
        # A rate that does not fit the algorithm fails here, not when the limits are first needed.
        _ = self.limits, self.tiers
        if self.store is not None:
            Rule.any_in_database = True

    @cached_property
    def dynamic(self) -> bool:
        """Whether its limits depend on the request; then `with_rates` or `tiers` returns the rule that has them."""
        return any(not isinstance(rate, Rate) for rate in self.rates) or isinstance(self.share, Shares)

    @cached_property
    def limits(self) -> tuple[Limit, ...]:
        """One limit for each rate; empty if the rule is `dynamic`."""
        return () if self.dynamic else _limits(self, self.rates)

    @cached_property
    def counting(self) -> tuple[Limit, ...]:
        """Limits that only count, so that what is used under a tier without a limit counts in the other tiers, too.

        A bucket has none, since it refills, and neither has a limit of different values, which would grow without end.
        """
        if self.rates or self.distinct is not None or not ALGORITHMS[self.algorithm].counts_units:
            return ()
        return _limits(self, self.counts_as)

    @cached_property
    def tiers(self) -> Mapping[str, Rule]:
        """The rule of each tier, by the tier's name; empty if neither the rates nor the shares are by tier."""
        if isinstance(self.share, Shares):
            return {name: replace(self, share=share, tier=None) for name, share in self.share.of_tiers}
        tiers = self.rates[0] if self.rates else None
        if not isinstance(tiers, Tiers):
            return {}
        every = [rate for _, rates in tiers.rates for rate in rates]
        counting = {_state_of(self, rate): replace(rate, count=UNCOUNTABLE) for rate in every}
        unlimited: dict[str, Any] = {
            "counts_as": tuple(counting.values()),
            "ban": None,
            "warn_at": None,
            "count_refused": False,
        }
        return {
            name: replace(
                self,
                rates=rates,
                tier=None,
                of_tier=name if self.notes_tier else "",
                starts=_starts_for(self, rates or every),
                **({} if rates else unlimited),
            )
            for name, rates in tiers.rates
        }

    @property
    def notes_tier(self) -> bool:
        """Whether the counts of a day have the tier, because the subject alone does not tell it, such as `org:7`."""
        parts = self.key if isinstance(self.key, tuple) else (self.key,)
        return self.tier is not None or any(part not in ("user", "ip") for part in parts)

    @property
    def most_units(self) -> int | None:
        """The most units that one hit may take, in any of the tiers; None if that is unknown or without a bound."""
        tiers = [[limit.capacity for limit in each.limits] for each in self.tiers.values() or [self]]
        return max(map(min, tiers)) if all(tiers) else None

    @cached_property
    def needs_start(self) -> bool:
        """Whether the periods of its limits are only known by a subject; `starting` returns the rule that has them."""
        return callable(self.starts) and any(limit.algorithm is SUBSCRIPTION for limit in self.limits or self.counting)

    @cached_property
    def _by_start(self) -> dict[date, Rule]:
        """The rules that `starting` has returned, by `same_periods`: so there are few days."""
        return {}

    def starting(self, day: date | None) -> Rule:
        """Return the rule with periods that begin on a day, or with the calendar's own."""
        same = same_periods(day or FIRST_DAY)
        found = self._by_start.get(same)
        if found is None:
            found = self._by_start[same] = replace(self, starts=same)
        return found

    @cached_property
    def without_tier(self) -> Rule:
        """Of a rule by tier: the rule for a request without a tier: it has the smallest share, or no rate at all."""
        if isinstance(self.share, Shares):
            return min(self.tiers.values(), key=lambda of_tier: of_tier.share)
        return next(iter(self.tiers.values())).with_rates("0/d")

    @cached_property
    def has_long_period(self) -> bool:
        """Whether a rate of the rule counts over a week, a month or a year."""
        rates = [
            each for rate in self.rates for each in (_rates_of_tiers(rate) if isinstance(rate, Tiers) else (rate,))
        ]
        return any(isinstance(rate, Rate) and rate.unit in UNITS_WITH_START for rate in rates)

    @cached_property
    def lease(self) -> int:
        """How long a process may spend units that it took ahead, in microseconds; 0 if it takes none."""
        if self.prefetch is None or not self.limits:
            return 0
        if self.prefetch is not True:
            return int(self.prefetch * SECOND)
        return min(_shortest(self.rates) // DEFAULT_LEASES_PER_WINDOW, MAX_DEFAULT_LEASE)

    @cached_property
    def settles(self) -> bool:
        """Whether the rule looks at the response: it has `settle` or `count_when`."""
        return self.settle is not None or self.count_when is not None

    @cached_property
    def is_plain(self) -> bool:
        """Whether the rule needs only the key of a request to which it applies."""
        of_request = (self.costs, self.methods, self.skip, self.exempt, self.distinct, self.settle, self.count_when)
        needs_call = self.dynamic or self.needs_start or callable(self.cost)
        return not needs_call and all(option is None for option in of_request)

    @cached_property
    def reads_body(self) -> Literal["", "post", "json"]:
        """The kind of the key in `key` or `distinct` that reads the body of the request; empty if none does."""
        kinds = [part.partition(":")[0] for _, part in parts_of_key(self) if isinstance(part, str) and ":" in part]
        return next((kind for kind in _BODY_KINDS if kind in kinds), "")

    @cached_property
    def needs_view(self) -> bool:
        """Whether it needs the user, the body, or a function of the request, which may look at the user."""
        if self.tiers or self.reads_body or (self.exempt is not None and self.exempt.staff):
            return True
        if any(option not in AFTER_RESPONSE for option, _ in functions_of(self)):
            return True
        return any(is_about_the_user(part) for _, part in parts_of_key(self))

    @cached_property
    def warn_shares(self) -> tuple[int, ...]:
        """`warn_at` in thousandths, in rising order; empty if the rule emits no "near" events."""
        given = () if self.shadow or self.warn_at is None else self.warn_at
        shares = given if isinstance(given, Sequence) else (given,)
        return tuple(sorted({int(share * 1000 + 1e-6) for share in shares}))

    @cached_property
    def lowest_warn_share(self) -> str:
        """The lowest of `warn_shares`, encoded for `engine/lua/decide.lua`; "0" if there is none."""
        return str(self.warn_shares[0]) if self.warn_shares else "0"

    @property
    def is_quiet(self) -> bool:
        """Whether the rule emits no events."""
        return self.shadow

    @cached_property
    def encoded(self) -> tuple[str, ...]:
        """The options, encoded for `engine/lua/decide.lua`. A shadow rule emits no events and begins no bans."""
        if self.is_quiet:
            return ("quiet",)
        shares = ("shares", ",".join(map(str, self.warn_shares))) if len(self.warn_shares) > 1 else ()
        return shares if self.ban is None else (*shares, "ban", *self.ban.encoded)

    @classmethod
    def make(cls, name: str, *rates: object, **options: object) -> Rule:
        """Make a rule from rates as people write them, and options by name.

        Raises `RuleError`; for an unknown option it suggests the most similar one.
        """
        check_option_names(options)
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
        options = {str(option): given for option, given in value.items()} if isinstance(value, Mapping) else {}
        try:
            check_option_names(options, {*OPTIONS, "rate"}, "at_once")
            if isinstance(value, Mapping) and "rate" not in options:
                raise RuleError(Translatable("it has no 'rate'."), _example("{'rate': '10/m', 'key': 'ip'}"))  # noqa: TRY301
            if imported is not None:
                options = {option: imported(option, given) for option, given in options.items()}
            rate = options.pop("rate", value)
            rates = rate if isinstance(rate, (list, tuple)) else (rate,)
            if not rates:
                hint = Translatable("Use, for example, '10/m', or None for unlimited.")
                raise RuleError(Translatable("the list of rates is empty."), hint)  # noqa: TRY301
            return cls(name, tuple(rates), **options)
        except RuleError as error:
            where = f"{place}[{name!r}]"
            raise RuleError(Translatable("%(place)s: %(problem)s", place=where, problem=error.in_full)) from error

    def with_rates(self, *rates: object) -> Rule:
        """Return the rule with other rates, as people write them; None means unlimited."""
        parsed = parse_rates(*rates)
        # A lease that fits the rule's own window may be too long for that of an override.
        prefetch = self.prefetch if self.prefetch is None or _fits(self.prefetch, parsed) else True
        tier = self.tier if isinstance(self.share, Shares) else None
        return self.but(rates=parsed, tier=tier, prefetch=prefetch, starts=_starts_for(self, parsed))

    def under(self, rates: str) -> Rule:
        """Return the rule with what an override sets: other rates, or a change of the rule's own.

        `"+500"` adds units to the longest window, and `"x2"` multiplies each rate. A rule without limits stays as it
        is, and so does one with rates by tier: the rule of the tier is changed. Raises `RuleError` if the rates do not
        fit, and for units of a bucket: it refills, and has no window.
        """
        change = parse_override_rates(rates)
        if not isinstance(change, RateChange):
            return self.with_rates(*change)
        if not self.limits:
            return self
        if change.units and self.algorithm in ("token_bucket", "leaky_bucket"):
            raise RuleError(
                Translatable(
                    "Rule %(rule)s is a %(algorithm)s, which refills all the time: it has no period to raise.",
                    rule=repr(self.name),
                    algorithm=self.algorithm,
                ),
                Translatable("Use algorithm='calendar' or a window, or an override with a higher rate."),
            )
        own = [limit.rate for limit in self.limits]
        longest = max(own, key=lambda rate: rate.period)
        counts = [rate.count * change.factor + (change.units if rate is longest else 0) for rate in own]
        changed = [replace(rate, count=count) for rate, count in zip(own, counts, strict=True)]
        return self.with_rates(*map(str, changed))  # as strings: they are checked again

    @cached(maxsize=1024)
    def but(self, **options: Any) -> Rule:
        """Return the rule with other options, such as `shadow=True`."""
        return replace(self, **options)

    def renamed(self, name: str) -> Rule:
        """Return the rule under another name."""
        return replace(self, name=name)

    def is_compatible_with(self, other: Rule) -> bool:
        """Return whether two rules may have the same name.

        They may differ in rates, key and algorithm. Limits that share a state must be equal.
        """
        shared = [(own, limit) for own in self.limits for limit in other.limits if own.state_id == limit.state_id]
        is_same = all(
            getattr(self, name) == getattr(other, name) for name, declared in OPTIONS.items() if declared.is_shared
        )
        return is_same and all(own == limit for own, limit in shared)


_ALL_KINDS = "the refusals of one kind of request would count against all kinds"
_KEPT = "a value that was counted cannot be given back"
_UNKNOWN = "a unit that a process spends is counted later, and cannot be given back where it was counted"
_REFUSED = "the store must see each refusal"
_VALUES = "it counts different values in a sliding window, and each value costs 1"
_CONFLICTS = (
    *(("share", other, _ALL_KINDS) for other in ("count_refused", "ban")),
    *((option, "distinct", _KEPT) for option in ("settle", "count_when")),
    *(("prefetch", other, _REFUSED) for other in ("count_refused", "ban")),
    *(("prefetch", other, _UNKNOWN) for other in ("settle", "count_when")),
    ("prefetch", "distinct", "only the store knows the values"),
    ("prefetch", "starts", "a count goes on if the subject's day changes, and its units must not end before it"),
    ("prefetch", "share", "what requests of one kind have taken ahead would be missing for the others"),
    (
        "prefetch",
        "store",
        "a process that is killed loses what it has taken ahead, and this store is for what must last",
    ),
    ("ban", "store", "a ban is kept where the other rules count"),
    ("count_refused", "store", "a request that the other rules refuse takes nothing of the database"),
    *((option, "distinct", _VALUES) for option in ("algorithm", "precision", "count_refused", "cost", "costs")),
)
"""Options that exclude each other, and why."""

OPTIONS: Mapping[str, Option] = {each.name: each.metadata[OPTION] for each in fields(Rule) if OPTION in each.metadata}
"""The options of a rule by name, as `Rule` declares them."""

AFTER_RESPONSE = frozenset(name for name, declared in OPTIONS.items() if "response" in declared.called_with)
"""The options that are functions of the response: they are called after the view has answered."""


OF_REQUESTS = frozenset(name for name, declared in OPTIONS.items() if declared.only_in == "requests")
"""The options that choose which requests a rule limits."""

_IN_CODE = {name for name, declared in OPTIONS.items() if declared.only_in != "settings"} | {"name"}
"""The options that a decorator or a call takes."""


_OTHER_WORDS: dict[str, str] = {
    **dict.fromkeys(("limit", "limits", "rate", "rates", "period", "window", "per", "interval"), "rate"),
    **dict.fromkeys(("on_fail", "on_error", "fail_open"), "on_unavailable"),
    **dict.fromkeys(("group", "scope"), "name"),
    **dict.fromkeys(("increment", "weight"), "cost"),
    **dict.fromkeys(("key_func", "by"), "key"),
    **dict.fromkeys(("allowlist", "whitelist"), "exempt"),
    "exempt_when": "skip",
    "deduct_when": "count_when",
    "per_method": "methods",
}
"""Options of other packages, and what they are called here."""


def check_option_names(options: Mapping[str, object], known: Collection[str] = _IN_CODE, *others: str) -> None:
    """Raise `RuleError` for an option that is unknown or not allowed here. `others`: more names to suggest."""
    for option, value in options.items():
        if option not in known:
            only = "is only for configured rules" if option in OPTIONS else "is not an option of a rule"
            ours = _OTHER_WORDS.get(option)
            hint = f"Here it is called {ours!r}." if ours else did_you_mean(option, {*known, *others})
            if ours == "rate":
                given = value if isinstance(value, str) else "10/m"
                hint = f"The first argument is the rate: write {given!r} first. In the settings it is 'rate'."
            raise RuleError(f"{option!r} {only}.", hint)


def name_conflict(rule: Rule, other: Rule) -> RuleError:
    """Return the error for two different rules of one name, which would share their counts, overrides and bans."""
    ours, theirs = ("; ".join(map(str, each.rates)) for each in (rule, other))
    return RuleError(
        f"Two rules are named {rule.name!r} ({theirs} and {ours}), but their limits over one window, their costs or "
        "their options differ: they would share one count. Give one of them a name of its own."
    )


def is_valid_name(value: object) -> bool:
    """Return whether a value can name a rule or a slot: a string of at least one character that UTF-8 can encode.

    JSON may contain lone surrogates, which no page, database or terminal can show.
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
    """Return whether a function, or the function of a `partial`, is a lambda."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__qualname__", "")).endswith("<lambda>")


def functions_of(rule: Rule) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions of a rule, each with its option; `parts_of_key` yields the functions in keys."""
    options: list[tuple[str, Any]] = [("rate", rate) for rate in rule.rates]
    options += [("exempt", function) for function in getattr(rule.exempt, "functions", ())]
    options += [(option, getattr(rule, option)) for option, declared in OPTIONS.items() if declared.called_with]
    return ((option, value) for option, value in options if callable(value))


def parts_of_key(rule: Rule) -> Iterator[tuple[str, Any]]:
    """Yield each part of `key` and `distinct`, with its option. Nested tuples are flattened."""
    parts = [("key", part) for part in _flat(rule.key)] + [("distinct", part) for part in _flat(rule.distinct)]
    return ((option, part) for option, part in parts if part is not None and part is not True)


def is_about_the_user(part: object) -> bool:
    """Return whether a key, or a part of one, is the user, a function, or the dotted path of one."""
    if isinstance(part, tuple):
        return any(map(is_about_the_user, part))
    if isinstance(part, str):
        return part in ("user", "user_or_ip") or ("." in part and ":" not in part)
    return callable(part)


def _flat(key: object) -> list[object]:
    return [inner for part in key for inner in _flat(part)] if isinstance(key, tuple) else [key]


def _read_options(rule: Rule) -> None:
    """Read the options that people may write in several ways."""
    rates: list[Rate | DynamicRate | Tiers] = []
    for rate in cast("tuple[object, ...]", rule.rates):
        if isinstance(rate, (Mapping, Tiers)):
            rates.append(Tiers.read(rate))
        else:
            rates += (rate,) if callable(rate) else parse_rates(rate)
    object.__setattr__(rule, "rates", tuple(rates))
    for option, declared in OPTIONS.items():
        if (given := getattr(rule, option)) is not None:
            object.__setattr__(rule, option, declared.read(given))


def _check_options(rule: Rule) -> None:
    if not is_valid_name(rule.name):
        raise RuleError(f"{rule.name!r} is not a rule's name. Use a string of at least one character.")
    if rule.name == ALL_RULES:
        raise RuleError(f"{ALL_RULES!r} is not a rule's name: it stands for all rules.", "Use another name.")
    _check_algorithm(rule)
    for option, declared in OPTIONS.items():
        declared.check(option, getattr(rule, option))
    if not callable(rule.cost):
        object.__setattr__(rule, "cost", validate_cost(rule.cost, rule.name))
    if rule.exclude is not None and rule.match is None:
        raise RuleError("exclude= needs match=, which says where the rule applies.", "Use, for example, 'match': '/'.")
    _check_tiers(rule)
    _check_starts(rule)
    _check_prefetch(rule)
    given = {each.name for each in fields(rule) if OPTION in each.metadata and getattr(rule, each.name) != each.default}
    for option, other, why in _CONFLICTS:
        if {option, other} <= given:
            raise RuleError(f"{option}= cannot be combined with {other}=: {why}.", f"Leave out {option}=.")
    for option, function in (*functions_of(rule), *parts_of_key(rule)):
        # @quota without parentheses takes the view for a rate; a system check reports that.
        if callable(function) and option != "rate":
            _check_arguments(option, function)


def _check_algorithm(rule: Rule) -> None:
    algorithm = ALGORITHMS.get(rule.algorithm) if isinstance(cast("object", rule.algorithm), str) else None
    if algorithm is None:
        near = did_you_mean(str(rule.algorithm), ALGORITHMS)
        raise AlgorithmError(f"algorithm={rule.algorithm!r} is not an algorithm.", near)
    for option in ("burst", "precision", "tz", "starts"):
        if getattr(rule, option) is not None and option not in algorithm.takes:
            takers = " and ".join(name for name, other in ALGORITHMS.items() if option in other.takes)
            words = {"option": option, "algorithm": repr(algorithm.name)}
            problem = Translatable("%(option)s= is not an option of %(algorithm)s.", **words)
            raise RuleError(problem, Translatable("It is one of %(takers)s.", takers=takers))


def is_day(value: object) -> TypeGuard[date]:
    """Return whether a value is a date without a time."""
    return isinstance(value, date) and not isinstance(value, datetime)


def _starts_for(rule: Rule, rates: Iterable[Rate]) -> Any:
    """Return `starts` of a rule if one of these rates has a period that it concerns; else None."""
    is_used = rule.starts is not None and any(rate.unit in UNITS_WITH_START for rate in rates)
    return rule.starts if is_used else None


def _check_starts(rule: Rule) -> None:
    """Raise `RuleError` if `starts` has no period to begin."""
    if rule.starts is None:
        return
    given = rule.rates or rule.counts_as
    rates = [each for rate in given for each in (_rates_of_tiers(rate) if isinstance(rate, Tiers) else (rate,))]
    if not any(callable(rate) or rate.unit in UNITS_WITH_START for rate in rates):
        raise RuleError(
            f"starts= says where weeks, months and years begin, but {'; '.join(map(str, rule.rates))} has none.",
            "Leave out starts=, or use a rate such as '1000/month'.",
        )


def _rates_of_tiers(tiers: Tiers) -> list[Rate]:
    return [rate for _, rates in tiers.rates for rate in rates]


def _example(text: str) -> Translatable:
    return Translatable("Use, for example, %(example)s.", example=text)


def _check_prefetch(rule: Rule) -> None:
    if rule.prefetch is None:
        return
    if rule.algorithm == "leaky_bucket":
        raise RuleError(
            "prefetch= cannot be combined with algorithm='leaky_bucket': it spaces the hits of all processes.",
            "Leave out prefetch=, or use 'token_bucket'.",
        )
    if callable(rule.cost):
        raise RuleError(
            "prefetch= cannot be combined with a function as cost=: nobody knows how much to take ahead.",
            "Leave out prefetch=, or give costs= by view.",
        )
    if not _fits(rule.prefetch, rule.rates):
        most = _shortest(rule.rates) // MIN_LEASES_PER_WINDOW / SECOND
        raise RuleError(
            f"prefetch={rule.prefetch!r} is longer than a twentieth of the shortest window, {most:g} seconds.",
            "Use True, or fewer seconds.",
        )


def _shortest(rates: Iterable[Rate | DynamicRate | Tiers]) -> int:
    """Return the shortest window of rates, in microseconds; 0 if it is not known yet."""
    return min((rate.period for rate in rates if isinstance(rate, Rate)), default=0)


def _fits(prefetch: float | Literal[True], rates: Iterable[Rate | DynamicRate | Tiers]) -> bool:
    """Say whether a lease is at most a twentieth of the shortest window."""
    shortest = _shortest(rates)
    return prefetch is True or not shortest or int(prefetch * SECOND) * MIN_LEASES_PER_WINDOW <= shortest


def _check_arguments(option: str, function: Callable[..., Any]) -> None:
    """Raise `RuleError` if a function cannot take what it will be called with."""
    given = OPTIONS[option].called_with or ("request",)
    try:
        taken = signature(function)
    except (NameError, TypeError, ValueError):  # some built-in functions and annotations cannot be read
        return
    try:
        taken.bind(*given)
    except TypeError:
        names = ", ".join(given)
        raise RuleError(
            f"{option}={dotted_path(function)} cannot be called with ({names}).",
            f"Use, for example, lambda {names}: ...",
        ) from None


def _check_tiers(rule: Rule) -> None:
    """Raise `RuleError` if both rates and shares are by tier, or if nothing says who is in a tier."""
    tiers = next((rate for rate in rule.rates if isinstance(rate, Tiers)), None)
    if isinstance(rule.share, Shares):
        if not all(isinstance(rate, Rate) for rate in rule.rates):
            hint = "Use, for example, '1000/m'."
            raise RuleError("share= by tier needs rates that are the same for all tiers.", hint)
        if rule.tier is None:
            check_default_shares(rule.share)
    elif tiers is None:
        if rule.tier is not None:
            raise RuleError("tier= needs rates by tier, or share= by tier.", _TIERS_EXAMPLE)
    elif len(rule.rates) > 1:
        hint = "Give a tier several rates, for example {'pro': '10/s; 500/h'}."
        raise RuleError(f"{tiers} cannot be combined with other rates.", hint)
    elif rule.tier is None:
        check_default_tiers(dict(tiers.rates), "rate", f"{_TIERS_EXAMPLE} None means unlimited.")


UNCOUNTABLE = 10**15
"""The count of a limit that only counts: no state reaches it."""


def _algorithm_of(rule: Rule, rate: Rate) -> tuple[Algorithm[Any], Options]:
    """Return the algorithm of a rate, and its options: of a period that `starts` begins, those of a subscription."""
    options = Options(rule.burst, rule.precision, rule.tz, rule.count_refused)
    if rule.starts is not None and rate.unit in UNITS_WITH_START:
        return SUBSCRIPTION, replace(options, starts=FIRST_DAY if callable(rule.starts) else rule.starts)
    return ALGORITHMS[rule.algorithm] if rule.distinct is None else DISTINCT, options


def _state_of(rule: Rule, rate: Rate) -> str:
    algorithm, options = _algorithm_of(rule, rate)
    return algorithm.state_id(rate, options)


def _limits(rule: Rule, rates: Iterable[object]) -> tuple[Limit, ...]:
    limits: dict[str, Limit] = {}
    for rate in cast("Iterable[Rate]", rates):
        limit = Limit.of(rule.name, rate, *_algorithm_of(rule, rate), 1.0 if rule.share is None else rule.share)
        if limit.state_id in limits:
            both = f"{limits[limit.state_id].rate}; {rate}"
            problem = Translatable("both rates have the same window")
            raise RateError(both, None, problem, Translatable("Use the lower one alone."))
        limits[limit.state_id] = limit
    return tuple(limits.values())


def option_in_words(value: object) -> str:
    """Return the value of a rule's option for people: lists with commas, functions by their dotted paths."""
    if isinstance(value, Exemption):
        value = (*value.networks, *(["staff"] if value.staff else []), *value.functions)
    if isinstance(value, (tuple, frozenset)) and not hasattr(value, "_fields"):
        return ", ".join(
            sorted(map(option_in_words, value)) if isinstance(value, frozenset) else map(option_in_words, value)
        )
    return dotted_path(value) if callable(value) else str(value)
