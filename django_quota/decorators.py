"""`@quota`: limits on views, sync, async and class-based. It makes rules of its arguments; deciding is the limiter's.

Decorators that stand directly on each other are merged into one wrapper, so that their limits are decided in one call.
One with another decorator in between is not: what stands between them must run first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from inspect import isawaitable
from typing import Any, TypeVar, Unpack, cast

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponseBase

from django_quota.conf import current
from django_quota.edge import aenter, arefuse_in_view, enter, is_taken, leave, refuse_in_view
from django_quota.exceptions import ConfigurationError, QuotaExceeded, RateError, RuleError
from django_quota.request_decisions import adecide_request, decide_request
from django_quota.rules import Rule, RuleOptions, path_of, shared_name
from django_quota.subjects import check_keys, is_async_callable
from django_quota.view_kinds import dispatch_of, is_a_trial, is_async, is_dispatch, naming, request_of

V = TypeVar("V", bound=Callable[..., Any])
"""A view function, a method of a view, or a class of views."""

RuleSource = Callable[[type | None], Rule]
"""Where a rule comes from at each request: a decorator's own, or the settings. It is told the class of the view."""

_MARK = "_django_quota"

BARE_HINT = "Write it with a rate: @quota('10/m')."


class Limited:
    """What `@quota` knows of a view: the view itself, and the sources of all rules that stand directly on it."""

    __slots__ = ("_of_function", "depth", "sources", "view", "wrapper")

    def __init__(self, view: Callable[..., Any], sources: tuple[RuleSource, ...], depth: int) -> None:
        self.view = view
        self.sources = sources
        self.depth = depth
        """How many `@quota` there are up to here, those below other decorators included."""
        self.wrapper: Callable[..., Any] | None = None
        self._of_function: list[Rule] | None = None
        """The rules for a function, where none of them comes from the settings: they never change."""

    @property
    def names(self) -> list[str]:
        """The names of the rules that it takes from the settings."""
        sources = [source for source in self.sources if isinstance(source, partial)]
        return [source.args[0] for source in sources if source.func is _rule_of_the_settings]

    def names_by_view(self, owner: type | None) -> list[str]:
        """Return the names of the rules that were given none, for a view of this class (None: a function)."""
        sources = [source for source in self.sources if isinstance(source, partial)]
        return [source.args[0](owner) for source in sources if source.func not in (_rule_of_the_settings, _itself)]

    def rules(self, owner: type | None) -> list[Rule]:
        """Return the rules as they stand now, for a view of this class (None: a function)."""
        if owner is None and self._of_function is not None:
            return self._of_function
        rules = [source(owner) for source in self.sources]
        if owner is None and not self.names:
            self._of_function = rules
        return rules


def quota(
    *rates: str | Mapping[str, Any] | Callable[[Any], Any] | None,
    rule: str | Rule | None = None,
    name: str | None = None,
    **options: Unpack[RuleOptions],
) -> Callable[[V], V]:
    """Limit a view.

    `rates`: `"10/m"`, several (`"10/s", "500/h"`), a dict of them by tier, or functions of the request that return
    them, sync or async; None is unlimited. `rule`: in their place, the name of a rule of the settings, read at each
    request. `name`: what the rule is called in keys, logs and headers; by default the path of the view's function or
    class, and what `as_view()` was given; a system check names views that share one all the same. The options are those
    of `Rule`: `key`, `algorithm`, `cost`, `burst`, `precision`, `tz`, `count_refused`, `methods`, `block`, `shadow`,
    `skip`, `exempt`, `tier`, `on_unavailable`, `ban`, `warn_at`, `daily`, `distinct`.

    The Decision lies on `request.quota`. A refused request is answered with 429, and so is a `QuotaExceeded` raised
    inside the view.

    Raises `RateError` or another `RuleError`, at import, where a rate, a key or an option is wrong.
    """
    if rule is not None:
        if rates or options or name is not None:
            raise _beside_a_rule(rule, rates, [*(["name"] if name is not None else []), *options])
        if not isinstance(cast("object", rule), (str, Rule)):
            raise RuleError(f"rule={rule!r} is not the name of a rule; @quota(rule='search') would do.")
        return _Decorator(rule)
    for option in _NAMES_OF_A_RATE & options.keys():
        given = cast("dict[str, object]", options)[option]
        raise RuleError(f"@quota takes no {option}=. The rate comes first and has no name: write @quota({given!r}).")
    if not rates:
        raise RateError((), None, "@quota got none", "@quota('10/m') or @quota(rule='search') would do.")
    if len(rates) == 1 and callable(rates[0]) and not options and name is None and _looks_like_a_view(rates[0]):
        raise RateError(path_of(rates[0]), None, "it is a view", "Write @quota('10/m') with a rate.")
    try:
        template = Rule.make("unnamed" if name is None else name, *rates, **options)
    except RateError as error:
        raise _rule_given_as_rate(error) or error from None
    check_keys(template)
    if template.distinct is True:
        raise RuleError("distinct=True needs check(..., value=); on a view, distinct='header:X-Device' would do.")
    return _Decorator(template, named=name is not None)


_NAMES_OF_A_RATE = frozenset({"rate", "rates", "limit"})
"""What people call the argument that has no name."""


def _beside_a_rule(rule: object, rates: tuple[object, ...], options: list[str]) -> RuleError:
    """Return the error of a `@quota(rule=...)` that was given more."""
    given = " and ".join([*map(repr, rates), *(f"{option}=" for option in options)])
    name = rule.name if isinstance(rule, Rule) else rule
    return RuleError(
        f"@quota(rule={name!r}) takes all from the rule: {given} cannot stand beside rule=. Set it in "
        f"QUOTA[\"RULES\"][{name!r}], or write a rate in the place of rule=, such as @quota('10/m')."
    )


def _rule_given_as_rate(error: RateError) -> RateError | None:
    """Return a better error where the name of a rule of the settings was given as a rate; else None."""
    text = error.text
    if not isinstance(text, str) or not text.strip() or any(sign.isdigit() for sign in text):
        return None
    hint = f"Write @quota(rule={text!r})."
    try:
        if text in current().rules:
            return RateError(text, None, "it is the name of a rule of the settings", hint)
    except (ConfigurationError, ImproperlyConfigured):  # said by the system checks
        pass
    return RateError(text, error.position, error.problem, f"{error.hint} If it is a rule of the settings: {hint}")


def _looks_like_a_view(value: object) -> bool:
    """Say whether a bare `@quota`, without a call, has been handed the view as its rate."""
    return isinstance(value, type) or limited(value) is not None


class _Decorator:
    """One `@quota(...)`: callable on views, functions and classes alike."""

    def __init__(self, rule: str | Rule, *, named: bool = True) -> None:
        self._rule = rule
        self._named = named
        self._made: dict[str, Rule] = {}  # by name: method_decorator calls this once a request

    def __call__(self, view: Any) -> Any:
        if isinstance(view, type):
            return self._limit_class(view)
        rates = self._rule.rates if isinstance(self._rule, Rule) else ()
        if isinstance(view, HttpRequest) and rates and callable(rates[0]):
            raise RuleError(f"@quota stands bare on {path_of(rates[0])}.", BARE_HINT)
        if isinstance(view, HttpRequest) or not callable(view):
            raise RuleError(f"@quota stands on {type(view).__name__}, not on a view; @quota('10/m') would do.")
        return self._limit(view)

    def _limit_class(self, cls: type) -> type:
        dispatch = dispatch_of(cls, "@quota")
        if not getattr(cls, "view_is_async", False):
            self._refuse_async_functions()
        cls.dispatch = self._limit(dispatch)  # type: ignore[attr-defined]
        return cls

    def _limit(self, view: Callable[..., Any]) -> Callable[..., Any]:
        inner = limited(view)
        mark = marked(view)  # functools.wraps copies it through what stands in between
        depth = 1 if mark is None else mark.depth + 1
        bare = inner.view if inner else view
        if not (is_async(bare) or is_dispatch(bare) or is_a_trial(bare)):
            self._refuse_async_functions()
        if inner and isinstance(self._rule, Rule) and self._named:
            _refuse_shared_names(self._rule, inner)
        sources = (self._source(bare, depth), *(inner.sources if inner else ()))
        return _wrap(Limited(bare, sources, depth))

    def _source(self, view: Callable[..., Any], depth: int) -> RuleSource:
        if isinstance(self._rule, str):
            return partial(_rule_of_the_settings, self._rule)
        if self._named:
            return partial(_itself, self._rule)
        suffix = "" if depth == 1 else f"#{depth}"
        return partial(self._named_by_view, naming(view, suffix))

    def _named_by_view(self, name_for: Callable[[type | None], str], owner: type | None) -> Rule:
        """Return the rule under the view's path; see `naming`."""
        name = name_for(owner)
        rule = self._made.get(name)
        if rule is None:
            rule = self._made[name] = cast("Rule", self._rule).named(name)
        return rule

    def _refuse_async_functions(self) -> None:
        """Fail at import where a sync view is given a function that it could not await."""
        rule = self._rule
        if isinstance(rule, str):
            return
        keys = [key for given in (rule.key, rule.distinct) for key in (given if isinstance(given, tuple) else (given,))]
        functions = [("cost", rule.cost), ("skip", rule.skip), ("tier", rule.tier)]
        functions += [("exempt", function) for function in getattr(rule.exempt, "functions", ())]
        functions += [("key", key) for key in keys] + [("rate", rate) for rate in rule.rates]
        for option, value in functions:
            if is_async_callable(value):
                raise RuleError(f"{option}={path_of(value)} is async, but the view is not; a sync function would do.")


def _refuse_shared_names(rule: Rule, inner: Limited) -> None:
    """Fail at import where two stacked rules have one name and would share a count, and differ."""
    for source in inner.sources:
        other = source.args[0] if isinstance(source, partial) and source.func is _itself else None
        if not isinstance(other, Rule) or other.name != rule.name or other.key != rule.key:
            continue
        by_state = {limit.state_id: limit for limit in other.limits}
        same = all(by_state.get(limit.state_id, limit) is limit for limit in rule.limits)
        if not same or not rule.agrees_with(other):
            raise shared_name(rule, other)


def _itself(rule: Rule, owner: type | None) -> Rule:  # noqa: ARG001 — a RuleSource
    return rule


def _rule_of_the_settings(name: str, owner: type | None) -> Rule:  # noqa: ARG001 — a RuleSource
    return current().rule(name)


def marked(view: object) -> Limited | None:
    """Return what `@quota` knows of a view or of one that it is wrapped around, as far as the mark was copied."""
    found = getattr(view, _MARK, None)
    return found if isinstance(found, Limited) else None


def under_a_bare_one(view: object) -> Callable[..., Any] | None:
    """Return the view that a bare `@quota`, without a call, has taken for its rate; None where there is none."""
    rule = view._rule if isinstance(view, _Decorator) else None  # noqa: SLF001 — of this module
    rates = rule.rates if isinstance(rule, Rule) else ()
    return rates[0] if rates and callable(rates[0]) else None


def limited(view: object) -> Limited | None:
    """Return what `@quota` knows of a view that it wraps itself; None for others, though they may carry its mark.

    `functools.wraps` copies attributes: a view under `@login_required` looks as if it were ours, and is not.
    """
    found = marked(view)
    return found if found is not None and found.wrapper is view else None


# --- wrappers ---------------------------------------------------------------------------------------------------------


def _wrap(spec: Limited) -> Callable[..., Any]:
    spec.wrapper = _async_wrapper(spec) if is_async(spec.view) else _wrapper(spec)
    setattr(spec.wrapper, _MARK, spec)
    return spec.wrapper


def _wrapper(spec: Limited) -> Callable[..., Any]:
    view = spec.view

    @wraps(view)
    def limited_view(*args: Any, **kwargs: Any) -> Any:
        request, owner = request_of(args, kwargs, "@quota")
        if owner is not None and getattr(owner, "view_is_async", False):
            # dispatch() of an async class-based view: a plain function that returns a coroutine.
            return _acall(spec, request, owner, args, kwargs)
        if not is_taken(request, spec):
            refused = enter(request, decide_request(spec.rules(owner), request))
            if refused is not None:
                return refused
        try:
            response = view(*args, **kwargs)
            if not isinstance(response, HttpResponseBase) and isawaitable(response):
                return _finish(request, response)  # an async view that does not say so
            return leave(request, response)
        except QuotaExceeded as exceeded:
            return refuse_in_view(request, exceeded.decision)

    return limited_view


def _async_wrapper(spec: Limited) -> Callable[..., Any]:
    @wraps(spec.view)
    async def limited_view(*args: Any, **kwargs: Any) -> Any:
        request, owner = request_of(args, kwargs, "@quota")
        return await _acall(spec, request, owner, args, kwargs)

    return limited_view


async def _acall(
    spec: Limited, request: HttpRequest, owner: type | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> HttpResponseBase:
    if not is_taken(request, spec):
        refused = await aenter(request, await adecide_request(spec.rules(owner), request))
        if refused is not None:
            return refused
    try:
        return await _finish(request, spec.view(*args, **kwargs))
    except QuotaExceeded as exceeded:
        return await arefuse_in_view(request, exceeded.decision)


async def _finish(request: HttpRequest, response: Any) -> HttpResponseBase:
    try:
        if isawaitable(response):
            response = await response
        return leave(request, cast("HttpResponseBase", response))
    except QuotaExceeded as exceeded:
        return await arefuse_in_view(request, exceeded.decision)
