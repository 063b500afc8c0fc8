"""`@quota` and `@concurrency`: limits on views, sync, async and class-based.

Stacked `@quota` become one wrapper, so that their limits are decided in one call. Another decorator between them
keeps them separate, because it must run between them.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import Any, ClassVar, Unpack, cast

from django.http import HttpRequest, HttpResponseBase

from django_quota.conf import is_async_callable
from django_quota.core.decisions import QuotaExceeded
from django_quota.core.errors import RateError, RuleError
from django_quota.core.flow import run_async, run_sync
from django_quota.core.rules import (
    Rule,
    RuleOptions,
    check_option_names,
    dotted_path,
    functions_of,
    name_conflict,
    parts_of_key,
)
from django_quota.http.limited_requests import (
    RequestState,
    aclose_request,
    arefuse_in_view,
    close_flow,
    close_request,
    enter_view_flow,
    refuse_in_view,
)
from django_quota.http.request_rules import Limited, RuleSource
from django_quota.http.request_slots import SlotOptions, SlotRule
from django_quota.http.view_lookup import rules_of_decorators, slots_of_views
from django_quota.http.views import (
    Mark,
    V,
    dispatch_of,
    is_async,
    is_dispatch,
    is_stand_in,
    mark,
    marks_of,
    own,
    path_of_view,
    wrap_view,
)
from django_quota.limiting.known_rules import register_rule_finder, slot_finders
from django_quota.subjects.keys import check_keys
from django_quota.subjects.subject import GLOBAL

register_rule_finder(rules_of_decorators)
slot_finders.append(lambda patterns: (name for name, _ in slots_of_views(patterns)))

BARE_HINT = "Write it with a rate: @quota('10/m')."


def quota(
    *rates: str | Mapping[str, Any] | Callable[[Any], Any] | None,
    rule: str | Rule | None = None,
    name: str | None = None,
    **options: Unpack[RuleOptions],
) -> Callable[[V], V]:
    """Limit a view.

    `rates`: `"10/m"`, several (`"10/s", "500/h"`), a dict of them by tier, or functions of the request that return
    them, sync or async; None is unlimited. `rule`: the name of a configured rule instead. `name`: the name of the
    rule in keys, logs and headers; by default the path of the function, of the class, or of the class and the method,
    with the arguments of `as_view()`. A system check reports views that share a name by accident.

    The options are those of `Rule`: `key`, `algorithm`, `cost`, `costs`, `burst`, `precision`, `tz`, `starts`,
    `count_refused`, `methods`, `block`, `shadow`, `skip`, `exempt`, `tier`, `on_unavailable`, `ban`, `warn_at`,
    `daily`, `distinct`, `cache_refusals`, `share`, `settle`, `count_when`.

    The Decision is on `request.quota`. A refusal is answered with 429, and so is a `QuotaExceeded` in the view.

    Raises `RateError` or another `RuleError` at import if a rate, a key or an option is wrong.
    """
    if rule is not None:
        if rates or options or name is not None:
            given = ", ".join(
                [*map(repr, rates), *(f"{option}=" for option in ({"name": name} if name else {}) | options)]
            )
            raise RuleError(
                f"@quota(rule=...) takes everything from the rule, and no other arguments: {given}.",
                "Set them in QUOTA[\"RULES\"], or use a rate instead of rule=, for example @quota('10/m').",
            )
        if not isinstance(cast("object", rule), (str, Rule)):
            raise RuleError(f"rule={rule!r} is not the name of a rule. Use, for example, @quota(rule='search').")
        return _Decorator(rule)
    check_option_names(options)
    if not rates:
        raise RateError((), None, "@quota has no rate", "Use, for example, @quota('10/m') or @quota(rule='search').")
    if len(rates) == 1 and callable(rates[0]) and not options and name is None and _looks_like_a_view(rates[0]):
        raise RateError(dotted_path(rates[0]), None, "it is a view", "Write @quota('10/m') with a rate.")
    try:
        template = Rule.make("unnamed" if name is None else name, *rates, **options)
    except RateError as error:
        text = error.text
        if not isinstance(text, str) or not text.strip() or any(character.isdigit() for character in text):
            raise
        hint = f"If it is the name of a configured rule, write @quota(rule={text!r}); if it is the key, key={text!r}."
        raise RateError(text, error.position, error.problem, f"{error.hint} {hint}") from None
    check_keys(template)
    if template.distinct is True:
        raise RuleError(
            "distinct=True needs check(..., value=). On a view, use, for example, distinct='header:X-Device'."
        )
    return _Decorator(template, named=name is not None)


def _looks_like_a_view(value: object) -> bool:
    """Return whether `@quota` was used without parentheses, so that its rate is the view."""
    return isinstance(value, type) or own(value, Limited) is not None


class _Decorator:
    """One `@quota(...)`, for functions, methods and classes."""

    def __init__(self, rule: str | Rule, *, named: bool = True) -> None:
        self._rule = rule
        self._named = named
        self._made: dict[str, Rule] = {}  # see RuleSource
        rates = rule.rates if isinstance(rule, Rule) else ()
        self._function: Any = rates[0] if rates and callable(rates[0]) else None
        """The first rate if it is a function. It is the view if the parentheses are missing."""
        if self._function is not None:
            missing = Mark(WithoutRate(), self._function, dotted_path(self._function), self)
            setattr(self, WithoutRate.attribute, (missing,))

    def __call__(self, view: Any) -> Any:
        if isinstance(view, type):
            return self._limit_class(view)
        if isinstance(view, HttpRequest) and self._function is not None:
            raise RuleError(f"@quota has no parentheses on {dotted_path(self._function)}.", BARE_HINT)
        if not callable(view):
            raise RuleError(f"@quota is on {type(view).__name__}, not on a view. Write @quota('10/m') above a view.")
        return self._limit(view)

    def _limit_class(self, cls: type) -> type:
        dispatch = dispatch_of(cls, "@quota")
        if not getattr(cls, "view_is_async", False):
            self._refuse_async_functions()
        cls.dispatch = self._limit(dispatch)  # type: ignore[attr-defined]
        return cls

    def _limit(self, view: Callable[..., Any]) -> Callable[..., Any]:
        inner = own(view, Limited)
        below = sum(len(each.noted.sources) for each in marks_of(view, Limited))
        bare = inner.view if inner else view
        if not (is_async(bare) or is_dispatch(bare) or is_stand_in(bare)):
            self._refuse_async_functions()
        if inner and isinstance(self._rule, Rule) and self._named:
            _refuse_shared_names(self._rule, inner)
        suffix = None if self._named else f"#{below + 1}" if below else ""
        sources = (RuleSource(self._rule, suffix, self._made), *(inner.sources if inner else ()))
        path = path_of_view(bare)
        spec = Limited(bare, path, sources)
        wrapper = wrap_view(bare, "@quota", partial(_call, spec), partial(_acall, spec))
        mark(wrapper, bare, path, spec)
        return wrapper

    def _refuse_async_functions(self) -> None:
        """Fail at import if a sync view gets an async function."""
        rule = self._rule
        if isinstance(rule, str):
            return
        for option, value in (*functions_of(rule), *parts_of_key(rule)):
            if is_async_callable(value):
                raise RuleError(f"{option}={dotted_path(value)} is async, but the view is not. Use a sync function.")


def _refuse_shared_names(rule: Rule, inner: Limited) -> None:
    """Fail at import if two stacked rules have the same name and key, but are different."""
    for source in inner.sources:
        other = source.rule
        if not isinstance(other, Rule) or source.suffix is not None or other.name != rule.name or other.key != rule.key:
            continue
        if not rule.is_compatible_with(other) or _always_cost_differently(rule, other):
            raise name_conflict(rule, other)


def _always_cost_differently(rule: Rule, other: Rule) -> bool:
    """Return whether each request under both rules would take different units by one count, which is an error."""
    costs = {each.cost for each in (rule, other) if not callable(each.cost)}
    are_conditional = any(each.skip is not None or each.exempt is not None for each in (rule, other))
    are_apart = rule.methods is not None and other.methods is not None and rule.methods.isdisjoint(other.methods)
    return len(costs) > 1 and not are_conditional and not are_apart


class WithoutRate:
    """What a `@quota` notes whose rate is a function: if that function is a view, the parentheses are missing."""

    attribute: ClassVar[str] = "django_quota_without_rate"


# --- calls of a limited view ------------------------------------------------------------------------------------------


def _call(
    spec: Limited, request: HttpRequest, owner: type | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    state, refused = run_sync(enter_view_flow(request, spec, owner, args))
    if refused is not None:
        return refused
    try:
        response = spec.view(*args, **kwargs)
        if not isinstance(response, HttpResponseBase) and isawaitable(response):
            return _finish(request, state, lambda: response)  # an async view behind a sync wrapper
    except QuotaExceeded as exceeded:
        response = refuse_in_view(request, exceeded.decision)
    except Exception as error:
        if state is not None:
            run_sync(close_flow(request, state, error))
        raise
    return response if state is None else close_request(request, state, response)


async def _acall(
    spec: Limited, request: HttpRequest, owner: type | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    state, refused = await run_async(enter_view_flow(request, spec, owner, args))
    return refused if refused is not None else await _finish(request, state, partial(spec.view, *args, **kwargs))


async def _finish(request: HttpRequest, state: RequestState | None, view: Callable[[], Any]) -> Any:
    """Call a view, and close its request with the response, or with the error that left the view."""
    try:
        response = view()
        if isawaitable(response):
            response = await response
    except QuotaExceeded as exceeded:
        response = await arefuse_in_view(request, exceeded.decision)
    except (Exception, CancelledError) as error:
        if state is not None:
            await run_async(close_flow(request, state, error))
        raise
    return response if state is None else await aclose_request(request, state, response)


# --- @concurrency -----------------------------------------------------------------------------------------------------


def concurrency(
    limit: int, key: Any = GLOBAL, *, name: str | None = None, **options: Unpack[SlotOptions]
) -> Callable[[V], V]:
    """Limit how many requests are in a view at once.

    `limit`: 1 to 1,000,000, for each subject. `key`: the key of a rule: `"user"`, `"ip"`, a function of the request;
    `"global"` counts all requests together. `lease`: the time after which a slot is free again, even if its worker was
    killed: above 0 and up to 366 days, by default 30 seconds. Choose more than the view takes. `wait`: how long to wait
    for a slot; None or 0: do not wait. `name`: the name of the slot, by default the path of the function, of the class,
    or of the class and the method. Views with the same name share it. `renew`: renew the lease in the background, for
    views that may take longer. `on_unavailable`: what happens while the store does not answer: `"allow"`, `"deny"`
    (503) or `"local"` (each process counts by itself); None for the setting. `block`: if False, a refusal only shows on
    `request.quota`, and the view runs without a slot. `share`: how much of the limit requests of each tier may fill,
    `{"critical": 1.0, "batch": 0.5}`: all count together, and batch is refused above half of the limit. `tier`: a
    function of the request that returns the tier; by default `"anonymous"` or `"authenticated"`.

    A `TemplateResponse` is rendered after the slot has been given back.

    Raises `RuleError` at import if an argument is wrong.
    """
    if callable(cast("object", limit)):
        raise RuleError(f"@concurrency has no limit on {dotted_path(limit)}. Write, for example, @concurrency(10).")
    named = SlotRule.make("@concurrency" if name is None else name, limit, key=key, **options)

    def decorate(view: Any) -> Any:
        if isinstance(view, type):
            cast("Any", view).dispatch = decorate(dispatch_of(view, "@concurrency"))
            return view
        if not callable(view):
            raise RuleError(f"@concurrency is on {type(view).__name__}, not on a view.")
        path = path_of_view(view)
        rule = replace(named, name_for=partial(_name_of, view, path)) if name is None else named
        wrapped = rule.around(view)
        mark(wrapped, view, path, rule)
        return wrapped

    return decorate


def _name_of(view: Any, path: str, owner: type | None) -> str:
    """Return the name of the slot of a view: its path, with the class if it is a method."""
    return path if owner is None else path_of_view(view, owner)
