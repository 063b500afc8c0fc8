"""`@quota`: limits on views, sync, async and class-based. It makes rules of its arguments; deciding is the limiter's.

Decorators that stand directly on each other are merged into one wrapper, so that their limits are decided in one
call. One with another decorator in between is not: what stands between them must run first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponseBase

from django_quota.conf import conf
from django_quota.edge import enter, leave, refuse
from django_quota.exceptions import ConfigurationError, QuotaExceeded, RateError, RuleError
from django_quota.limiter import adecide_request, decide_request
from django_quota.rules import Rule
from django_quota.subjects import compile_key, is_async_callable

if TYPE_CHECKING:
    from typing import Unpack

    from django_quota.rules import RuleOptions

V = TypeVar("V", bound=Callable[..., Any])
"""A view function, a method of a view, or a class of views."""

RuleSource = Callable[[], Rule]
"""Where a rule comes from, each time it is needed: a decorator's own, or the settings."""

_ATTRIBUTE = "_django_quota"


class Limited:
    """What `@quota` knows of a view: the view itself, and the sources of all rules that stand directly on it."""

    __slots__ = ("sources", "view", "wrapper")

    def __init__(self, view: Callable[..., Any], sources: tuple[RuleSource, ...]) -> None:
        self.view = view
        self.sources = sources
        self.wrapper: Callable[..., Any] | None = None

    @property
    def rules(self) -> list[Rule]:
        """The rules as they stand now."""
        return [source() for source in self.sources]


def quota(
    *rates: str | Callable[[Any], Any] | None,
    rule: str | Rule | None = None,
    name: str | None = None,
    **options: Unpack[RuleOptions],
) -> Callable[[V], V]:
    """Limit a view.

    `rates`: `"10/m"`, several (`"10/s", "500/h"`), or functions of the request that return one, sync or async; None is
    unlimited. `rule`: in their place, the name of a rule of the settings, read at each request. `name`: what the rule
    is called in keys, logs and headers; by default the view's path. The options are those of `Rule`: `key`,
    `algorithm`,
    `cost`, `burst`, `precision`, `tz`, `count_refused`, `methods`, `block`, `shadow`, `skip`, `on_unavailable`.

    The Decision lies on `request.quota`. A refused request is answered with 429, and so is a `QuotaExceeded` raised
    inside the view.

    Raises `RateError` or another `RuleError`, at import, where a rate, a key or an option is wrong.
    """
    if rule is not None:
        if rates or options or name is not None:
            raise RuleError("@quota(rule=...) takes its rates and options from the rule; give one or the other.")
        return _Decorator(None, _named_source(rule))
    if not rates:
        raise RateError("", 0, "@quota got none", "@quota('10/m') or @quota(rule='search') would do.")
    template = Rule.make(name or "unnamed", *rates, **options)
    compile_key(template.key)
    return _Decorator(template, None, named=name is not None)


class _Decorator:
    """One `@quota(...)`: callable on views, functions and classes alike."""

    def __init__(self, template: Rule | None, source: RuleSource | None, *, named: bool = True) -> None:
        self._template = template
        self._source = source
        self._named = named
        self._rules: dict[str, Rule] = {}  # method_decorator calls this once a request: a name is made once

    def __call__(self, view: Any) -> Any:
        if isinstance(view, type):
            return self._limit_class(view)
        return self._limit(view, _path(view))

    def _limit_class(self, cls: type) -> type:
        dispatch = getattr(cls, "dispatch", None)
        if dispatch is None:
            raise ConfigurationError(f"@quota on {cls.__qualname__}: a class without dispatch() is not a view.")
        cls.dispatch = self._limit(dispatch, f"{cls.__module__}.{cls.__qualname__}")  # type: ignore[attr-defined]
        return cls

    def _limit(self, view: Callable[..., Any], path: str) -> Callable[..., Any]:
        inner = limited(view)
        below = inner.sources if inner else ()
        sources = (self._source_for(path, len(below) + 1), *below)
        return _wrap(Limited(inner.view if inner else view, sources))

    def _source_for(self, path: str, position: int) -> RuleSource:
        if self._template is None:
            return cast("RuleSource", self._source)
        if self._named:
            return partial(_itself, self._template)
        name = path if position == 1 else f"{path}#{position}"
        rule = self._rules.get(name)
        if rule is None:
            rule = self._rules[name] = self._template.named(name)
        return partial(_itself, rule)


def _itself(rule: Rule) -> Rule:
    return rule


def _named_source(rule: str | Rule) -> RuleSource:
    return partial(_itself, rule) if isinstance(rule, Rule) else partial(conf.rule, rule)


def limited(view: object) -> Limited | None:
    """Return what `@quota` knows of a view that it wraps itself; None for others, though they may carry its mark.

    `functools.wraps` copies attributes: a view under `@login_required` looks as if it were ours, and is not.
    """
    found = getattr(view, _ATTRIBUTE, None)
    return found if isinstance(found, Limited) and found.wrapper is view else None


def _path(view: Any) -> str:
    """Return the dotted path of a view: what its unnamed rules are called.

    `method_decorator` hands over a partial of a bound method, which may be inherited: then the class of the view that
    is bound counts, so that two views never share a limit because they share a `dispatch`.
    """
    function = view.func if isinstance(view, partial) else view
    bound_to = getattr(function, "__self__", None)
    if bound_to is not None:
        method = getattr(function, "__name__", "dispatch")
        owner = type(bound_to)
        return f"{owner.__module__}.{owner.__qualname__}" + ("" if method == "dispatch" else f".{method}")
    view_class = getattr(view, "view_class", None)  # what as_view() returns
    named = view_class or (function if hasattr(function, "__qualname__") else type(function))
    return f"{named.__module__}.{named.__qualname__}"


# --- wrappers ---------------------------------------------------------------------------------------------------------


def _wrap(spec: Limited) -> Callable[..., Any]:
    view = spec.view
    make = _async_wrapper if _is_async(view) else _wrapper
    spec.wrapper = make(spec)
    setattr(spec.wrapper, _ATTRIBUTE, spec)
    return spec.wrapper


def _wrapper(spec: Limited) -> Callable[..., Any]:
    view = spec.view

    @wraps(view)
    def limited_view(*args: Any, **kwargs: Any) -> Any:
        if getattr(args[0] if args else None, "view_is_async", False):
            # dispatch() of an async class-based view: a plain function that returns a coroutine.
            return _acall(spec, args, kwargs)
        request = _request(args, kwargs)
        refused = enter(request, decide_request(spec.rules, request))
        if refused is not None:
            return refused
        try:
            return leave(request, view(*args, **kwargs))
        except QuotaExceeded as exceeded:
            return refuse(request, exceeded.decision)

    for source in spec.sources:
        _refuse_async_functions(source, view)
    return limited_view


def _async_wrapper(spec: Limited) -> Callable[..., Any]:
    @wraps(spec.view)
    async def limited_view(*args: Any, **kwargs: Any) -> Any:
        return await _acall(spec, args, kwargs)

    return limited_view


async def _acall(spec: Limited, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HttpResponseBase:
    request = _request(args, kwargs)
    refused = enter(request, await adecide_request(spec.rules, request))
    if refused is not None:
        return refused
    try:
        response: Any = spec.view(*args, **kwargs)
        if isawaitable(response):
            response = await response
        return leave(request, cast("HttpResponseBase", response))
    except QuotaExceeded as exceeded:
        return refuse(request, exceeded.decision)


def _is_async(view: Callable[..., Any]) -> bool:
    """Say whether a view must be awaited; also one that `method_decorator` has bound to an async class-based view."""
    bound_to = getattr(view.func if isinstance(view, partial) else view, "__self__", None)
    return bool(iscoroutinefunction(view) or getattr(bound_to, "view_is_async", False))


def _refuse_async_functions(source: RuleSource, view: Callable[..., Any]) -> None:
    """Fail at import where a sync view is given a function that it could not await."""
    if source.func is not _itself or getattr(view, "__name__", "") == "dispatch":  # type: ignore[attr-defined]
        return
    rule = source()
    for option, value in (
        ("key", rule.key),
        ("cost", rule.cost),
        ("skip", rule.skip),
        *(("rate", r) for r in rule.rates),
    ):
        if is_async_callable(value):
            raise RuleError(f"{option}= of {rule.name!r} is async, but the view is not; a sync function would do.")


def _request(args: tuple[Any, ...], kwargs: dict[str, Any]) -> HttpRequest:
    """Return the request of a call: the first argument of a view, the second of a method."""
    if args and isinstance(args[0], HttpRequest):
        return args[0]
    for candidate in (*args[:2], kwargs.get("request")):
        if isinstance(candidate, HttpRequest):
            return candidate
        wrapped = getattr(candidate, "_request", None)  # Django REST framework's request holds Django's
        if isinstance(wrapped, HttpRequest):
            return wrapped
    raise ConfigurationError("@quota stands on a function that got no request: it limits views.")
