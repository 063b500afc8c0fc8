"""Limits on the operations of Django Ninja.

`@limits("10/s", "500/h", key="auth")` below `@api.get("/search")` limits each client that has authenticated.

An operation is decided after its authentication and before its input is validated: so an invalid request counts too.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import wraps
from inspect import unwrap
from typing import Any, TypeVar, Unpack, cast

from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI, throttling
from ninja.decorators import decorate_view
from ninja.errors import Throttled
from ninja.operation import Operation, PathView

from django_quota import ConfigurationError, Decision, QuotaExceeded, Rule, RuleError, StoreUnavailable, check
from django_quota.adapters import (
    RuleOptions,
    adecide,
    apply_decision,
    asettle,
    checks_views,
    client_ip,
    decide,
    digest,
    dotted_path,
    endpoints,
    finds_rules,
    has_middleware,
    is_user,
    message,
    refusal_status,
    rule_of,
    settle,
    whole_wait,
    write_headers,
)

F = TypeVar("F", bound=Callable[..., Any])
"""The function of an operation."""


class OperationRefused(QuotaExceeded, Throttled):
    """A limit of an operation was reached.

    It is Ninja's `Throttled` too, so an exception handler for `Throttled` or `HttpError` answers it. `decision` has the
    limit, `wait` the whole seconds until the same request is allowed (None: waiting does not help).
    """

    def __init__(self, decision: Decision) -> None:
        QuotaExceeded.__init__(self, decision)
        self.wait: int | None = whole_wait(decision)
        self.status_code: int = refusal_status(decision)
        self.message: str = message(decision)


def limits(
    *rates: str | Callable[[Any], Any] | None,
    rule: str | Rule | None = None,
    name: str | None = None,
    **options: Unpack[RuleOptions],
) -> Callable[[F], F]:
    """Limit an operation, sync or async; write it above or below `@api.get(...)`.

    `rates`: `"10/s"`, or several. `rule`: the name of a rule in the settings instead, or a `Rule`. `name`: the name of
    the rule, by default the path of the function. The options are those of `@quota`. `key`: who is limited; the default
    `"auth"` is what the authentication of the operation returned (a user, or else a digest of its text), and the IP
    address of a request without one. Several `@limits` of an operation are decided in one call.

    A refusal goes to the exception handlers of the API as `OperationRefused`. Raises `RuleError` at import.
    """
    if rule is not None and (rates or options or name is not None):
        raise RuleError("@limits(rule=...) takes everything from the rule, so it accepts no other arguments.")

    def decorate(function: F) -> F:
        made = rule
        if made is None:
            given: dict[str, Any] = {"key": "auth", **options}
            given["key"] = auth if given["key"] == "auth" else given["key"]
            made = Rule.make(name or _name_of(function), *rates, **given)
        return decorate_view(lambda run: _limited(run, made))(function)

    return decorate


_COUNT = "_django_quota_limits"
"""The attribute of a function with the number of its `@limits` without a name."""


def _name_of(function: Callable[..., Any]) -> str:
    """Return the path of a function; another `@limits` on it gets a number, since its rates count by themselves."""
    count = getattr(function, _COUNT, 0) + 1
    setattr(function, _COUNT, count)
    return dotted_path(function) if count == 1 else f"{dotted_path(function)}#{count}"


def auth(request: HttpRequest) -> Any:
    """Return who has authenticated with Ninja: a user, or a digest of what the authentication returned."""
    found = getattr(request, "auth", None)
    if found is None or is_user(found):
        return found
    kind: Any = type(found)
    if kind.__str__ is object.__str__:
        key = getattr(found, "pk", None)
        if key is None:
            raise RuleError(
                f"The authentication returned {type(found).__name__}, which identifies nobody.",
                "Return a text, a user or an object with a `pk`, or use a function of the request as key=.",
            )
        return f"{type(found).__name__}.{key}"
    return digest(str(found))


def install(api: NinjaAPI) -> None:
    """Let an API answer what the limiter raises in its operations: 429 for `QuotaExceeded`, 503 for `StoreUnavailable`.

    The answers have the form of the API's own errors, `{"detail": ...}`, with Retry-After and the RateLimit headers.
    """
    undecided = Decision(allowed=False, rule="", subject="", degraded=True, enforced=True)

    def answer(request: HttpRequest, error: Any) -> HttpResponse:
        return _answer(api, request, error.decision if isinstance(error, QuotaExceeded) else undecided)

    api.add_exception_handler(QuotaExceeded, answer)
    api.add_exception_handler(StoreUnavailable, answer)


def _answer(api: NinjaAPI, request: HttpRequest, decision: Decision) -> HttpResponse:
    wait = whole_wait(decision)
    body = {"detail": message(decision), **({} if wait is None else {"retry_after": wait})}
    return _with_headers(api.create_response(request, body, status=refusal_status(decision)), decision)


def _with_headers(response: HttpResponse, decision: Decision) -> HttpResponse:
    wait = whole_wait(decision)
    if wait is not None:
        response.headers["Retry-After"] = str(wait)
    response.headers["Cache-Control"] = "no-store"
    return write_headers(response, decision)


# --- operations -------------------------------------------------------------------------------------------------------

_RULES = "_django_quota_rules"
"""The attribute of an operation with the rules of all its `@limits`."""


def _limited(run: Callable[..., Any], rule: str | Rule) -> Callable[..., Any]:
    """Limit the operation that has this `run`. Ninja calls it again for each copy of the operation."""
    operation: Any = cast("Any", unwrap(run)).__self__
    rules: list[str | Rule] | None = getattr(operation, _RULES, None)
    if rules is not None:  # another @limits has done what follows
        rules.insert(0, rule)
        return run
    rules = [rule]
    setattr(operation, _RULES, rules)
    # Ninja's public place between authentication and validation are throttles, which are never async.
    checks = operation._run_checks  # noqa: SLF001

    if operation.is_async:

        async def acheck_limits(request: HttpRequest) -> HttpResponse | None:
            return await checks(request) or _refusal(operation, request, await adecide(request, rules))

        @wraps(run)
        async def alimited_run(request: HttpRequest, **values: Any) -> Any:
            try:
                response = await run(request, **values)
            except (Exception, CancelledError) as error:
                await asettle(request, error)
                raise
            await asettle(request, response)
            return _finished(request, response)

        operation._run_checks = acheck_limits  # noqa: SLF001
        return alimited_run

    def check_limits(request: HttpRequest) -> HttpResponse | None:
        return checks(request) or _refusal(operation, request, decide(request, rules))

    @wraps(run)
    def limited_run(request: HttpRequest, **values: Any) -> Any:
        try:
            response = run(request, **values)
        except Exception as error:
            settle(request, error)
            raise
        settle(request, response)
        return _finished(request, response)

    operation._run_checks = check_limits  # noqa: SLF001
    return limited_run


def _refusal(operation: Operation, request: HttpRequest, decision: Decision) -> HttpResponse | None:
    """Return the answer of the API's exception handlers if the operation is refused."""
    combined = apply_decision(request, decision)
    if not decision.enforced:
        return None
    return _with_headers(operation.api.on_exception(request, OperationRefused(combined)), combined)


def _finished(request: HttpRequest, response: Any) -> Any:
    decision = getattr(request, "quota", None)
    return write_headers(response, decision) if isinstance(decision, Decision) else response


@finds_rules
def rules_of_operations(patterns: Iterable[Any]) -> Iterator[Rule]:
    """Return the rules of all operations behind the URLs, without the names of rules in the settings."""
    return (rule for _, rule in _limits_behind(patterns) if isinstance(rule, Rule))


@checks_views
def check_operations(patterns: Iterable[Any]) -> Iterator[CheckMessage]:
    """Find `@limits(rule="...")` without its rule, and an API that lacks `install`."""
    unanswered: dict[str, None] = {}
    for operation, rule in _limits_behind(patterns):
        try:
            rule_of(rule)
        except RuleError as error:
            place, hint = dotted_path(operation.view_func), f'Add it to QUOTA["RULES"]. {error.hint}'.strip()
            yield Error(f"@limits(rule={rule!r}) on {place} names no rule.", hint=hint, id="django_quota.E024")
        except ConfigurationError:
            return  # reported with the values of the settings
        if QuotaExceeded not in operation.api._exception_handlers:  # noqa: SLF001 — Ninja has no public way to ask
            unanswered[f"{operation.api.title} ({operation.api.urls_namespace})"] = None
    for api in () if has_middleware() else unanswered:
        yield CheckWarning(
            f"The API {api} does not answer what the limiter raises: a QuotaExceeded or StoreUnavailable in an "
            "operation becomes a 500.",
            hint="Call install(api) of django_quota.contrib.ninja.",
            id="django_quota.W027",
        )


def _limits_behind(patterns: Iterable[Any]) -> Iterator[tuple[Any, str | Rule]]:
    """Return the operations, with each of their limits."""
    for endpoint in endpoints(patterns):
        cells = [cell.cell_contents for cell in getattr(endpoint.callback, "__closure__", None) or ()]
        for view in cells:
            for operation in view.operations if isinstance(view, PathView) else ():
                for rule in getattr(operation, _RULES, ()):
                    yield operation, rule


# --- throttles --------------------------------------------------------------------------------------------------------

_last: ContextVar[Decision] = ContextVar("django_quota_ninja_last")
"""The decision of a throttle, until Ninja asks it for the wait, which it does next."""


class _Throttle(throttling.SimpleRateThrottle):
    """What the three throttles share: they count in the store of django_quota, each rate by itself.

    A refusal is Ninja's own `Throttled`. The address of an anonymous client is found as everywhere in django_quota, by
    TRUSTED_PROXIES. In an async operation a throttle blocks the event loop for the call, as Ninja's do: use `@limits`.
    """

    def allow_request(self, request: HttpRequest) -> bool:
        """Count a request; return whether it is allowed."""
        key = self.get_cache_key(request)
        if key is None or self.num_requests is None:
            return True
        subject = f"throttle:{digest(key)}"  # of a key that a class makes itself nobody knows what it contains
        name = f"ninja.{self.scope}.{self.num_requests}-{self.duration}"
        decision = check(f"{self.num_requests}/{self.duration}s", subject, name=name)
        _last.set(decision)
        apply_decision(request, decision)
        return not decision.enforced

    def wait(self) -> float | None:
        """Return the seconds to wait after a refusal; None if waiting does not help."""
        return _last.get().retry_after

    def get_ident(self, request: HttpRequest) -> str:
        """Return the address of the client."""
        return client_ip(request)


class AnonRateThrottle(_Throttle, throttling.AnonRateThrottle):
    """Ninja's throttle of that name: requests without `request.auth`, by address."""


class AuthRateThrottle(_Throttle, throttling.AuthRateThrottle):
    """Ninja's throttle of that name: by `request.auth`, or by address."""


class UserRateThrottle(_Throttle, throttling.UserRateThrottle):
    """Ninja's throttle of that name: by Django's user, or by address."""
