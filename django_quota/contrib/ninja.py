"""Limits on the operations of Django Ninja.

`@limits("10/s", "500/h", key="auth")` below `@api.get("/search")` limits each client that has authenticated.

An operation is decided after its authentication and before its input is validated: so an invalid request counts too.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import is_dataclass
from functools import partial, wraps
from inspect import iscoroutinefunction
from types import UnionType
from typing import Any, TypeVar, Union, Unpack, get_args, get_origin, get_type_hints

from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI, throttling
from ninja.conf import settings as ninja_settings
from ninja.errors import Throttled
from ninja.operation import Operation, PathView
from ninja.utils import contribute_operation_callback

from django_quota import Decision, Rule, Subject, adapters, check
from django_quota.conf import current
from django_quota.exceptions import QuotaExceeded, RuleError, StoreUnavailable
from django_quota.types import RuleOptions

F = TypeVar("F", bound=Callable[..., Any])
"""The function of an operation."""


class OperationRefused(QuotaExceeded, Throttled):
    """A limit of an operation was reached.

    It is Ninja's `Throttled` too, so an exception handler for `Throttled` or `HttpError` answers it. `decision` has the
    limit, `wait` the whole seconds until the same request is allowed (None: waiting does not help).
    """

    def __init__(self, decision: Decision) -> None:
        QuotaExceeded.__init__(self, decision)
        self.status_code: int
        self.message: str
        self.wait: int | None
        self.status_code, self.message, self.wait = adapters.refusal_details(decision)


def limits(
    *rates: str | Callable[[Any], Any] | None,
    rule: str | Rule | None = None,
    name: str | None = None,
    **options: Unpack[RuleOptions],
) -> Callable[[F], F]:
    """Limit an operation, sync or async; write it above or below `@api.get(...)`.

    `rates`: `"10/s"`, or several. `rule`: the name of a configured rule instead, or a `Rule`. `name`: the name of
    the rule, by default the path of the function. The options are those of `@quota`. `key`: who is limited; the default
    `"auth"` is what the authentication of the operation returned (a user, or else a digest of its string), or the IP
    address of an anonymous request. Several `@limits` of an operation are decided in one call.

    A refusal goes to the exception handlers of the API as `OperationRefused`. Raises `RuleError` at import if an
    argument is wrong.
    """
    if rule is not None and (rates or options or name is not None):
        raise RuleError("@limits(rule=...) takes everything from the rule, so it accepts no other arguments.")

    def decorate(function: F) -> F:
        made = rule
        if made is None:
            given: dict[str, Any] = {"key": "auth", **options}
            given["key"] = auth if given["key"] == "auth" else given["key"]
            made = Rule.make(name or _name_of(function), *rates, **given)
        operation = _operation_of(function)
        if operation is None:  # Ninja makes it from this function later
            contribute_operation_callback(function, partial(_limit, rule=made))
        else:
            _limit(operation, made)
        return function

    return decorate


_COUNT = "_django_quota_limits"
"""The attribute of a function with the number of its `@limits` without a name."""


def _name_of(function: Callable[..., Any]) -> str:
    """Return the path of a function; another `@limits` on it gets a number, since its rates are counted separately."""
    count = getattr(function, _COUNT, 0) + 1
    setattr(function, _COUNT, count)
    return adapters.dotted_path(function) if count == 1 else f"{adapters.dotted_path(function)}#{count}"


def auth(request: HttpRequest) -> Any:
    """Return who has authenticated with Ninja: a user, or a digest of what the authentication returned."""
    found: Any = getattr(request, "auth", None)
    if found is None or isinstance(found, Subject) or hasattr(found, "is_authenticated"):
        return found
    kind: Any = type(found)
    if getattr(found, "pk", None) is not None:
        return f"{kind.__name__}.{found.pk}"
    if _identifies_nobody(kind):
        raise RuleError(f"The authentication returned {kind.__name__}, which identifies nobody.", _IDENTIFY)
    return adapters.digest(str(found))


_IDENTIFY = (
    "Return a string, a user or an object with a `pk`, or give @limits a key= of your own, for example "
    'key=lambda request: request.auth["sub"].'
)


def _identifies_nobody(kind: Any) -> bool:
    """Say whether objects of this class have no string of their own, such as dicts and dataclasses."""
    return bool(kind.__str__ is object.__str__)


def install(api: NinjaAPI) -> None:
    """Let an API answer what the limiter raises in its operations: 429 for `QuotaExceeded`, 503 for `StoreUnavailable`.

    The answers have the form of the API's own errors, `{"detail": ...}`, with Retry-After and the RateLimit headers.
    """
    undecided = Decision.without_limit(allowed=False, enforced=True, degraded=True)

    def answer(request: HttpRequest, error: Any) -> HttpResponse:
        return _answer(api, request, error.decision if isinstance(error, QuotaExceeded) else undecided)

    api.add_exception_handler(QuotaExceeded, answer)
    api.add_exception_handler(StoreUnavailable, answer)


def _answer(api: NinjaAPI, request: HttpRequest, decision: Decision) -> HttpResponse:
    status, message, wait = adapters.refusal_details(decision)
    body = {"detail": message, **({} if wait is None else {"retry_after": wait})}
    return adapters.write_refusal_headers(api.create_response(request, body, status=status), decision)


# --- operations -------------------------------------------------------------------------------------------------------

_RULES = "_django_quota_rules"
"""The attribute of an operation with the rules of all its `@limits`."""


def _limit(operation: Any, rule: str | Rule) -> None:
    """Limit an operation, and each copy of it that Ninja makes for a router that is mounted again."""
    rules: list[str | Rule] | None = getattr(operation, _RULES, None)
    if rules is not None:  # another @limits has done what follows
        rules.insert(0, rule)
        return
    _decide_before(operation, rules := [rule])

    def find_copy(run: Any) -> Any:
        _decide_before(run.__self__, rules)
        return run

    # `find_copy` is the first, since it finds the copy as the owner of `run`: the others may be decorators without
    # functools.wraps.
    settled = partial(_settled, is_async=iscoroutinefunction(type(operation).run))
    decorators = _decorators_of_run(operation)
    decorators.insert(0, find_copy)
    decorators.append(settled)
    operation.run = settled(operation.run)


def _decide_before(operation: Any, rules: list[str | Rule]) -> None:
    """Decide the rules after the authentication of an operation, and before its input is validated."""
    setattr(operation, _RULES, rules)

    async def arefused(request: HttpRequest) -> HttpResponse | None:
        return _refusal(operation, request, await adapters.adecide(request, rules))

    def refused(request: HttpRequest) -> HttpResponse | None:
        return _refusal(operation, request, adapters.decide(request, rules))

    _check_after_authentication(operation, refused, arefused)


def _settled(run: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
    """Settle what a request took, by its response."""

    @wraps(run)
    def settled_run(request: HttpRequest, **values: Any) -> Any:
        try:
            response = run(request, **values)
        except Exception as error:
            adapters.settle(request, error)
            raise
        adapters.settle(request, response)
        return _finished(request, response)

    @wraps(run)
    async def asettled_run(request: HttpRequest, **values: Any) -> Any:
        try:
            response = await run(request, **values)
        except (Exception, CancelledError) as error:
            await adapters.asettle(request, error)
            raise
        await adapters.asettle(request, response)
        return _finished(request, response)

    return asettled_run if is_async else settled_run


def _refusal(operation: Operation, request: HttpRequest, decision: Decision) -> HttpResponse | None:
    """Return the answer of the API's exception handlers if the operation is refused."""
    combined = adapters.attach_decision(request, decision)
    if not decision.enforced:
        return None
    refused = OperationRefused(combined)
    return adapters.write_refusal_headers(operation.api.on_exception(request, refused), combined)


def _finished(request: HttpRequest, response: Any) -> Any:
    decision = getattr(request, "quota", None)
    return adapters.write_headers(response, decision, request) if isinstance(decision, Decision) else response


@adapters.register_rule_finder
def rules_of_operations(patterns: Iterable[Any]) -> Iterator[Rule]:
    """Return the rules of all operations behind the URLs; the settings have those that are only named."""
    for operation in _operations_behind(patterns):
        yield from (rule for rule in getattr(operation, _RULES, ()) if isinstance(rule, Rule))


@adapters.register_view_check
def check_operations(patterns: Iterable[Any]) -> Iterator[CheckMessage]:
    """Find `@limits(rule="...")` without its rule, an API without `install`, and throttles that know no proxies."""
    for operation in _operations_behind(patterns):
        yield from _check(operation)


def _check(operation: Any) -> Iterator[CheckMessage]:
    rules, api = getattr(operation, _RULES, ()), operation.api
    for rule in rules:
        try:
            adapters.read_rule(rule)
        except RuleError as error:
            place = adapters.dotted_path(operation.view_func)
            yield Error(
                f"@limits(rule={rule!r}) on {place} names an unknown rule.", hint=error.hint, id="django_quota.E024"
            )
    if any(isinstance(rule, Rule) and rule.key is auth for rule in rules):
        yield from _check_authentication(operation)
    if rules and not adapters.has_middleware() and not _has_handler(api, QuotaExceeded):
        yield CheckWarning(
            f"The API {api.title} ({api.urls_namespace}) does not answer what the limiter raises: a QuotaExceeded or "
            "StoreUnavailable in an operation becomes a 500.",
            hint="Call install(api) of django_quota.contrib.ninja.",
            id="django_quota.W027",
        )
    knows_proxies = ninja_settings.NUM_PROXIES is not None or current().trusted_proxies or current().trusted_proxy_count
    if not knows_proxies and any(map(_counts_addresses, operation.throttle_objects)):
        yield CheckWarning(
            "A throttle of Ninja counts anonymous clients by the address that connects: behind a proxy all of them "
            "share one limit.",
            hint='Set NINJA_NUM_PROXIES: the number of your proxies, 0 for none. Or set QUOTA["TRUSTED_PROXIES"].',
            id="django_quota.W028",
        )


def _check_authentication(operation: Any) -> Iterator[CheckMessage]:
    """Find an authentication annotated with a dict or a dataclass, which does not identify anybody."""
    for callback in operation.auth_callbacks:
        function = getattr(callback, "authenticate", callback)
        try:
            returned = get_type_hints(function).get("return")
        except (NameError, TypeError):  # a name that only type checkers know, or no function
            continue
        members: Any = get_args(returned) if get_origin(returned) in (Union, UnionType) else [returned]
        for kind in [get_origin(member) or member for member in members]:
            is_compound = isinstance(kind, type) and (issubclass(kind, dict) or is_dataclass(kind))
            if is_compound and _identifies_nobody(kind) and not _has_pk(kind):
                yield Error(
                    f"{adapters.dotted_path(function)} returns {kind.__name__}, which identifies nobody. @limits on "
                    f"{adapters.dotted_path(operation.view_func)} counts by it: each request will be a 500.",
                    hint=_IDENTIFY,
                    id="django_quota.E035",
                )


def _has_pk(kind: Any) -> bool:
    return hasattr(kind, "pk") or "pk" in getattr(kind, "__dataclass_fields__", ())


# --- where Ninja has no public way; tests/contrib/test_private_names.py tries each with the installed version ---------


def _operation_of(function: Any) -> Any:
    """Return the operation that Ninja has made of a function; None if it has made none yet."""
    return getattr(function, "_ninja_operation", None)


def _operations_behind(patterns: Iterable[Any]) -> Iterator[Any]:
    """Return the operations behind URLs, which only the closure of each view has."""
    for endpoint in adapters.endpoints(patterns):
        cells = [cell.cell_contents for cell in getattr(endpoint.callback, "__closure__", None) or ()]
        for view in cells:
            yield from view.operations if isinstance(view, PathView) else ()


def _check_after_authentication(
    operation: Any,
    check_rules: Callable[[HttpRequest], HttpResponse | None],
    acheck_rules: Callable[[HttpRequest], Awaitable[HttpResponse | None]],
) -> None:
    """Let a check answer a request that has authenticated; publicly Ninja only asks throttles then, never async."""
    checks = operation._run_checks  # noqa: SLF001

    async def arun(request: HttpRequest) -> HttpResponse | None:
        return await checks(request) or await acheck_rules(request)

    def run(request: HttpRequest) -> HttpResponse | None:
        return checks(request) or check_rules(request)

    operation._run_checks = arun if iscoroutinefunction(checks) else run  # noqa: SLF001


def _decorators_of_run(operation: Any) -> list[Any]:
    """Return the decorators that a copy of the operation applies to its own `run`."""
    found: list[Any] = operation.__dict__.setdefault("_run_decorators", [])
    return found


def _has_handler(api: NinjaAPI, kind: type[Exception]) -> bool:
    """Say whether an API has an exception handler for this class."""
    return kind in api._exception_handlers  # noqa: SLF001


# --- throttles --------------------------------------------------------------------------------------------------------

_last: ContextVar[Decision] = ContextVar("django_quota_ninja_last")
"""The decision of a throttle, until Ninja asks it for the wait, which it does next."""


class SimpleRateThrottle(throttling.SimpleRateThrottle):
    """Ninja's throttle of that name, for a `get_cache_key()` of your own: it counts in the store of django_quota.

    Each rate counts by itself. A refusal is Ninja's own `Throttled`. The address of an anonymous client is found by
    `NINJA_NUM_PROXIES`; if that is not set, as everywhere in django_quota, by `TRUSTED_PROXIES`. In an async operation
    a throttle blocks the event loop for the call, as Ninja's do: use `@limits`.
    """

    def allow_request(self, request: HttpRequest) -> bool:
        """Count a request; return whether it is allowed."""
        key = self.get_cache_key(request)
        if key is None or self.num_requests is None:
            return True
        subject = f"throttle:{adapters.digest(key)}"  # the class makes the key itself: it may hold a secret
        name = f"ninja.{self.scope or adapters.dotted_path(type(self))}.{self.num_requests}-{self.duration}"
        decision = check(f"{self.num_requests}/{self.duration}s", subject, name=name)
        _last.set(decision)
        adapters.attach_decision(request, decision)
        return self.throttle_failure() if decision.enforced else self.throttle_success()

    def throttle_success(self) -> bool:
        """Return True: the request is counted already."""
        return True

    def wait(self) -> float | None:
        """Return the seconds to wait after a refusal; None if waiting does not help."""
        return _last.get().retry_after

    def get_ident(self, request: HttpRequest) -> str:
        """Return the address of the client, an IPv6 address as its network."""
        if ninja_settings.NUM_PROXIES is None:
            return adapters.client_ip(request)
        ident = str(super().get_ident(request))
        with suppress(RuleError):  # a proxy may write something else than an address
            return adapters.read_subject(f"ip:{ident}").removeprefix("ip:")
        return ident


def _counts_addresses(throttle: object) -> bool:
    """Say whether a throttle is one of ours that asks for the address of a client."""
    kinds = (AnonRateThrottle, AuthRateThrottle, UserRateThrottle)
    return isinstance(throttle, kinds) and type(throttle).get_ident is SimpleRateThrottle.get_ident


class AnonRateThrottle(SimpleRateThrottle, throttling.AnonRateThrottle):
    """Ninja's throttle of that name: requests without `request.auth`, by address."""


class AuthRateThrottle(SimpleRateThrottle, throttling.AuthRateThrottle):
    """Ninja's throttle of that name: by `request.auth`, or by address."""


class UserRateThrottle(SimpleRateThrottle, throttling.UserRateThrottle):
    """Ninja's throttle of that name: by Django's user, or by address."""
