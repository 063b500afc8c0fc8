"""The throttles, and answers for an API. The first throttle that a view asks also decides the rules that wait for it.

Django REST framework imports this module while it defines its views, so nothing here imports those views.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, TypeVar, cast

from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from rest_framework import exceptions, throttling

from django_quota import Decision, Rule, adapters
from django_quota.adapters import refusal_response
from django_quota.conf import current
from django_quota.exceptions import QuotaExceeded, RuleError

F = TypeVar("F")

ThrottleRule = Rule | tuple[Rule, str]
"""A rule that a throttle decides, perhaps with the subject that it limits."""


class QuotaThrottled(exceptions.Throttled, QuotaExceeded):
    """A throttle refuses: 429, or 503 if the store did not answer and the rule says `on_unavailable="deny"`.

    A refusal by a counter that holds too little has the status of `CREDITS_STATUS`. The exception handler of the
    project gets it like any `Throttled`. `decision` has the limit, and `detail` says which it is, and when to try
    again.
    """

    def __init__(self, decision: Decision, wait: float | None = None) -> None:
        self.decision = decision
        exceptions.Throttled.__init__(self, wait)
        details = adapters.refusal_details(decision)
        code = self.default_code
        self.status_code = int(details.status)
        if details.status == HTTPStatus.SERVICE_UNAVAILABLE:
            self.wait = details.wait
            code = "unavailable"
        self.detail = exceptions.ErrorDetail(details.message, code)


def with_quota_rules(*rules: str | Rule) -> Callable[[F], F]:
    """Name the rules of a view, a method or an action; on a function write it below `@api_view`.

    It is the same as the attribute `quota_rules` of a class. A method's own rules replace those of its class.
    """

    def decorator(view: F) -> F:
        target: Any = getattr(view, "cls", view)  # what @api_view returns has a class
        target.quota_rules = rules
        return view

    return decorator


class _QuotaMixin:
    """A throttle that decides its own limits; the first one of a view also decides the rules that wait for the view."""

    _decision: Decision | None = None

    def _is_allowed(self, entries: Sequence[ThrottleRule], request: Any, view: Any) -> bool:
        own = {entry.name for entry in entries if isinstance(entry, Rule)}  # they may have another cost
        waiting = [rule for rule in adapters.take_waiting_rules(request) if rule.name not in own]
        if hasattr(request, "_request"):
            adapters.set_body_parser(request, lambda: request.data)
        try:
            decision = adapters.decide(request, [*waiting, *entries])
        except BadRequest as error:  # the body is not what a rule by a field needs
            raise exceptions.ParseError(str(error)) from error
        adapters.attach_decision(request, decision)
        no_slot = None if decision.enforced else adapters.take_waiting_slots(request)
        self._decision = decision if no_slot is None else no_slot
        _prepare(view, request)
        return not self._decision.enforced

    def wait(self) -> float | None:
        """Return the seconds until the same request is allowed; None if waiting does not help."""
        if self._decision is None:
            return cast("float | None", cast("Any", super()).wait())
        return self._decision.retry_after


# --- the view ---------------------------------------------------------------------------------------------------------


@adapters.register_late_views
def asks_a_throttle(view: Any) -> bool:
    """Say whether a view certainly asks one of these throttles, so that it decides the rules that need the user."""
    return carries_a_throttle(view) and own_method(view) is None


def carries_a_throttle(view: Any) -> bool:
    """Say whether a view has one of these throttles."""
    given = getattr(view, "initkwargs", {}).get("throttle_classes")
    classes = getattr(getattr(view, "cls", view), "throttle_classes", ()) if given is None else given
    return any(map(_always_asks, classes))


def own_method(view: Any) -> str | None:
    """Return the method of a view that may skip its throttles; None if only methods of the framework ask them.

    A class with a method of its own may not ask them, even if that method calls the framework's.
    """
    view_class = getattr(view, "cls", view)
    return _own_method(view_class if isinstance(view_class, type) else type(view_class))


@lru_cache(maxsize=1024)
def _own_method(view_class: type) -> str | None:
    for name in ("initial", "check_throttles", "get_throttles"):
        owner = next(base for base in view_class.__mro__ if name in vars(base))
        if owner.__module__.partition(".")[0] not in _FRAMEWORKS:
            return name
    return None


_FRAMEWORKS = ("rest_framework", "adrf")
"""The packages whose own methods ask the throttles of a view: the framework, and its async views."""


def is_throttle(throttle: object) -> bool:
    """Say whether a throttle is one of these."""
    return isinstance(throttle, _QuotaMixin)


def _always_asks(throttle: Any) -> bool:
    """Say whether a throttle of this class decides whenever it is asked: it is one of these, without changes."""
    return getattr(throttle, "allow_request", None) in (QuotaThrottle.allow_request, SimpleRateThrottle.allow_request)


def _prepare(view: Any, request: Any) -> None:
    """Let a view answer a refusal with `QuotaThrottled`, and hold its slot; write its headers without the middleware.

    The framework asks a throttle before the view answers, and never again. So a method of the view, which is a new
    object for each request, calls ours: no setting has to name us. `QuotaMiddleware` does the rest, or else a second
    method.
    """
    if hasattr(view, "finalize_response") and view.__dict__.get(_PREPARED) is not request:
        view.__dict__[_PREPARED] = request
        view.handle_exception = partial(_handle, view.handle_exception)
        if not adapters.has_middleware(request):
            view.finalize_response = partial(_finalize, view.finalize_response)
        _hold_slot(view, request)


_PREPARED = "_django_quota_prepared"
"""The attribute of a view with the request that it is prepared for."""


def _hold_slot(view: Any, request: Any) -> None:
    """Let the method that answers hold the slot of `quota_slots`. Nothing refuses the request after that."""
    given = getattr(view, "quota_slots", None)
    if given is None:
        return
    name = request.method.lower()
    handler = _handler_of(view, name)
    if handler is not None:
        slot = read_slot(type(view), given, getattr(view, "action", "") if "quota_slots" in vars(view) else "")
        setattr(view, name, slot.around(handler, lambda decision: view.throttled(request, decision.retry_after)))


def _handler_of(view: Any, name: str) -> Any:
    """Return the method of a view that answers; None if the framework does: with a 405, or about the view (OPTIONS)."""
    handler = getattr(view, name, None) if name in getattr(view, "http_method_names", ()) else None
    is_of_framework = name == "options" and getattr(handler, "__module__", "").partition(".")[0] in _FRAMEWORKS
    return None if is_of_framework else handler


def read_slot(view_class: type, given: Any, action: str | None = "") -> adapters.SlotRule:
    """Return the slot of `quota_slots`. Raises `RuleError` if it is wrong.

    `action`: the name of the action if it has `quota_slots` of its own.
    """
    path = adapters.dotted_path(view_class)
    options = dict(given) if isinstance(given, Mapping) else {"at_once": given}
    try:
        return adapters.SlotRule.read(options.pop("name", f"{path}.{action}" if action else path), options)
    except RuleError as error:
        raise RuleError(f"quota_slots of {path}: {error.problem}", error.hint) from None


def _finalize(
    method: Callable[..., Any], request: Any, response: HttpResponseBase, *args: Any, **kwargs: Any
) -> HttpResponseBase:
    """Call the view's `finalize_response()`, write the headers, and settle what the request took."""
    response = method(request, response, *args, **kwargs)
    adapters.write_headers(response, request.quota, request)
    if getattr(response, "is_rendered", True):
        _settle(request, request.quota, response)
    else:  # `settle` may look at the content
        cast("Any", response).add_post_render_callback(partial(_settle, request, request.quota))
    return response


def _handle(method: Callable[..., Any], error: Any) -> Any:
    """Call the view's `handle_exception()`, with a `QuotaThrottled` in place of the `Throttled` of our refusal.

    An error of the project's own stays. One that the method raises has no response, and is settled here.
    """
    request = cast("Any", method).__self__.request
    decision = request.quota
    if type(error) is exceptions.Throttled and decision.enforced:
        refused = QuotaThrottled(decision, error.wait)
        if refused.status_code == error.status_code and error.detail != exceptions.Throttled(error.wait).detail:
            refused.detail = error.detail  # `throttled()` of the view has its own words
        error = refused
    try:
        response = method(error)
    except Exception as uncaught:
        adapters.settle(request, uncaught)
        raise
    if decision.enforced:
        response.headers.setdefault("Cache-Control", "no-store")
    return response


def _settle(request: Any, written: Decision, response: HttpResponseBase) -> None:
    """Settle what the request took by rules that look at the response.

    `written`: the decision that is in its headers. If there is another one now, they are written again.
    """
    adapters.settle(request, response)
    if request.quota is not written:
        adapters.write_headers(response, request.quota, request)


# --- configured rules -------------------------------------------------------------------------------------------------


class QuotaThrottle(_QuotaMixin, throttling.BaseThrottle):
    """Limits a view by the rules in its `quota_rules`, by its `throttle_scope`, and by the rules that wait for it.

    `quota_rules` lists names of configured rules and `Rule` objects. `throttle_scope` is such a name too; if there
    is no rule of that name, its rate is in `DEFAULT_THROTTLE_RATES`, as for `ScopedRateThrottle`. `quota_cost`, of the
    view or of an `@action`, is what its requests take of these configured rules and of `quota_rules`.

    `quota_slots = 3` limits how many requests the view answers at once. A dict adds options of `@concurrency`:
    `{"at_once": 3, "key": "user"}`.

    A request that the view does not answer itself takes nothing of these: OPTIONS, or a method that it does not have.
    """

    def allow_request(self, request: Any, view: Any) -> bool:
        is_answered = _handler_of(view, request.method.lower()) is not None
        return self._is_allowed(self._entries(request, view) if is_answered else (), request, view)

    def _entries(self, request: Any, view: Any) -> list[ThrottleRule]:
        scope: Any = getattr(view, "throttle_scope", None)
        names = [*quota_rules_of(view, request.method)]
        if scope in current().rules:
            names.append(scope)
        cost = getattr(view, "quota_cost", None)
        rules: list[ThrottleRule] = [named_rule(rule, view) for rule in names]
        if cost is not None:
            rules = [_at_cost(cast("Rule", rule), cost) for rule in rules]
        if not scope or scope in names or any(isinstance(each, ScopedRateThrottle) for each in view.get_throttles()):
            return rules
        return [*rules, *ScopedRateThrottle().entries(request, view)]


@lru_cache(maxsize=1024)
def _at_cost(rule: Rule, cost: int) -> Rule:
    """Return a rule with the `quota_cost` of a view. Raises `RuleError` if it is wrong."""
    return replace(rule, cost=cost, costs=None)


def quota_rules_of(view: Any, method: str) -> Sequence[str | Rule]:
    """Return the `quota_rules` of the method of a view that answers, or those of the view."""
    found = rules_of_handler(getattr(view, (method or "").lower(), None))
    return as_rules(getattr(view, "quota_rules", ()) if found is None else found)


def rules_of_handler(handler: Any) -> Any:
    """Return the `quota_rules` of a method, or of the function that @api_view put into it; None if it has none."""
    function = getattr(handler, "__func__", handler)
    found = getattr(function, "quota_rules", None)
    for cell in (getattr(function, "__closure__", None) or ()) if found is None else ():
        found = getattr(cell.cell_contents, "quota_rules", found)
    return found


def as_rules(given: str | Rule | Sequence[str | Rule]) -> Sequence[str | Rule]:
    """Return `quota_rules` as a sequence; a single rule may be written without a list."""
    return (given,) if isinstance(given, (str, Rule)) else given


def named_rule(rule: str | Rule, view: Any) -> Rule:
    """Return a rule by its name in the settings. Raises `RuleError` if there is none."""
    if isinstance(rule, Rule):
        return rule
    try:
        return current().rule(rule)
    except RuleError as error:
        place = adapters.dotted_path(view if isinstance(view, type) else type(view))
        raise RuleError(f"quota_rules of {place}: {error.problem}", error.hint) from None


# --- the throttles of the framework -----------------------------------------------------------------------------------


class SimpleRateThrottle(_QuotaMixin, throttling.SimpleRateThrottle):
    """The framework's `SimpleRateThrottle`, decided by the store: give a `scope` or a `rate`, and `get_cache_key()`.

    Each throttle of a view counts by itself, as the framework's do: it counts a request that another one refuses.
    Rates are read as the framework reads them, by the first letter of the unit: "10/month" is ten a minute.
    """

    def allow_request(self, request: Any, view: Any) -> bool:
        entries = self.entries(request, view)
        if not entries and not hasattr(request, "_request"):
            return True  # only a request of the framework can have rules that wait
        if not self._is_allowed(entries, request, view):
            return bool(self.throttle_failure())
        return bool(self.throttle_success()) if entries else True

    def entries(self, request: Any, view: Any) -> list[ThrottleRule]:
        """Return the rule of the rate, and the subject of the cache key; nothing if the request is not limited."""
        if self.rate is None or (key := self.get_cache_key(request, view)) is None:
            return []
        self.key = key
        return [(self.rule, self._subject(request))]

    @property
    def rule(self) -> Rule:
        name = f"rest_framework.{self.scope}" if self.scope else adapters.dotted_path(type(self))
        return _rule_of(name, self.num_requests, self.duration)

    def throttle_success(self) -> bool:
        """Return True: the request is counted already."""
        return True

    def _subject(self, request: Any) -> str:
        """Return the subject of the cache key: a user or an address, if the key is about it."""
        user = request.user
        pk = getattr(user, "pk", None)
        if pk is not None and self.key == self._key_of(pk):
            return adapters.read_subject(user)
        ident = str(self.get_ident(request))
        if self.key == self._key_of(ident) and "+" not in ident:
            with suppress(RuleError):  # a proxy may write something else than an address
                return adapters.read_subject(f"ip:{ident}")
        return f"throttle:{adapters.digest(str(self.key))}"  # the class makes the key itself: it may hold a secret

    def _key_of(self, ident: object) -> str | None:
        """Return the cache key that the framework makes; None if the format is not its own."""
        with suppress(KeyError, TypeError, ValueError):
            return str(self.cache_format % {"scope": self.scope, "ident": ident})
        return None


@lru_cache(maxsize=1024)
def _rule_of(name: str, count: int, seconds: float) -> Rule:
    whole = math.ceil(seconds)
    unit = {60: "m", 3_600: "h", 86_400: "d"}.get(whole, f"{whole}s")
    return Rule.make(name, f"{count}/{unit}", key="user")


class AnonRateThrottle(SimpleRateThrottle, throttling.AnonRateThrottle):
    """Limits each address that has not authenticated, by the rate `"anon"` of `DEFAULT_THROTTLE_RATES`."""


class UserRateThrottle(SimpleRateThrottle, throttling.UserRateThrottle):
    """Limits each user, and each address without one, by the rate `"user"` of `DEFAULT_THROTTLE_RATES`."""


class ScopedRateThrottle(SimpleRateThrottle, throttling.ScopedRateThrottle):
    """Limits each user or address on the views of one `throttle_scope`, by its rate in `DEFAULT_THROTTLE_RATES`."""

    rate: str | None = None

    def entries(self, request: Any, view: Any) -> list[ThrottleRule]:
        """Return the rule of the view's scope; nothing if it has none."""
        scope = getattr(view, self.scope_attr, None)
        if not scope:
            return []
        self.use_scope(scope)
        return super().entries(request, view)

    def use_scope(self, scope: str) -> None:
        self.scope = scope
        self.rate = self.get_rate()
        self.num_requests, self.duration = self.parse_rate(self.rate)


# --- answers for an API -----------------------------------------------------------------------------------------------
#
# One format for all refusals: those of the middleware, and those of the throttles.


def detail_response(request: HttpRequest, decision: Decision) -> HttpResponse | None:
    """Answer as the throttles do, `{"detail": "The limit is ..."}`: for `QUOTA["RESPONSE"]`.

    Returns None for a request that prefers HTML: it gets the page.
    """
    if request.get_preferred_type(["application/json", "text/html"]) == "text/html":
        return None
    refused = QuotaThrottled(decision)
    return JsonResponse({"detail": refused.detail}, status=refused.status_code)


def problem_details(error: Exception, context: dict[str, Any]) -> Any:
    """Answer a refusal of a throttle as the middleware does: for `REST_FRAMEWORK["EXCEPTION_HANDLER"]`.

    All other errors go to the framework's own handler.
    """
    from rest_framework.views import exception_handler  # noqa: PLC0415 — it imports the throttles of the settings

    if not isinstance(error, QuotaThrottled):
        return exception_handler(error, context)
    return refusal_response(context["request"], error.decision)
