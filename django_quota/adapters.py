"""The functions for integrations: other frameworks, logins, task queues.

The middleware, `@quota` and `django_quota.contrib` decide and answer with the same functions, so an integration that
calls them behaves as they do. For work without a request, use `check_all` and `reserve_all` of `django_quota`. An
exporter of metrics uses `django_quota.metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from django.http import HttpRequest, HttpResponse, HttpResponseBase

from django_quota import conf
from django_quota.core.clock import now
from django_quota.core.decisions import Decision
from django_quota.core.errors import RuleError
from django_quota.core.flow import Flow, run_async, run_sync
from django_quota.core.rules import Rule, dotted_path
from django_quota.http import responses, rule_checks
from django_quota.http.limited_requests import RequestState, add_decision, decide_flow, request_state, settle_own_flow
from django_quota.http.limits import limits_view
from django_quota.http.request_rules import register_late_views
from django_quota.http.request_slots import SlotRule
from django_quota.http.view_lookup import endpoints, register_view_check
from django_quota.http.wording import refusal_details
from django_quota.limiting.api import RuleOrRate, answer_flow, ask_flow, django_request, rule_without_request
from django_quota.limiting.known_rules import register_rule_finder
from django_quota.subjects import addresses
from django_quota.subjects import subject as subjects
from django_quota.subjects.bodies import body_notes
from django_quota.subjects.keys import check_keys
from django_quota.subjects.subject import digest, named_subject

__all__ = [
    "SlotRule",
    "adecide",
    "arefusal_response",
    "asettle",
    "attach_decision",
    "client_ip",
    "decide",
    "digest",
    "dotted_path",
    "endpoints",
    "enter_queue",
    "has_middleware",
    "is_exempt",
    "limits_view",
    "now",
    "read_rule",
    "read_subject",
    "refusal_details",
    "refusal_response",
    "register_late_views",
    "register_rule_finder",
    "register_view_check",
    "set_body_parser",
    "settle",
    "take_waiting_rules",
    "take_waiting_slots",
    "write_headers",
    "write_refusal_headers",
]

R = TypeVar("R", bound=HttpResponseBase)
H = TypeVar("H", bound=HttpResponse)

RuleOrPair = RuleOrRate | tuple[RuleOrRate, str]


def decide(request: Any, rules: RuleOrRate | Iterable[RuleOrPair]) -> Decision:
    """Decide a request under some rules, in one call to the store, and count it if all of them allow it.

    `request`: Django's request, or one that wraps it, such as Django REST framework's. `rules`: names of rules in the
    settings, rates (`"10/m"`, which limits by IP) and `Rule` objects, one or several; a pair `(rule, "user:42")` names
    the subject itself. Rules with the same name share one count. `methods`, `skip` and `exempt` of each rule apply, as
    for `@quota`, except for pairs. A rule that has been decided for this request is left out. If no rule is left, the
    request is allowed, and the Decision has no outcomes.

    `Decision.enforced` says whether to refuse the request. Then answer with `refusal_response`. In any case pass the
    Decision to `attach_decision`, so that it shows on `request.quota` and in the headers.

    Raises `RuleError` if a rule is wrong. While the store does not answer, nothing is raised and the Decision is
    `degraded`.
    """
    read, pairs = _read_rules(rules)
    found = _read_request(request)
    return run_sync(decide_flow(found, request_state(found), read, pairs))


async def adecide(request: Any, rules: RuleOrRate | Iterable[RuleOrPair]) -> Decision:
    """Decide a request without blocking the event loop; see `decide`."""
    read, pairs = _read_rules(rules)
    found = _read_request(request)
    return await run_async(decide_flow(found, request_state(found), read, pairs))


def take_waiting_rules(request: Any) -> list[Rule]:
    """Return the configured rules and those of `@quota` that wait for the view; see `register_late_views`.

    After this call they do not wait any more: pass them to `decide`, with your own rules.
    """
    state = request_state(_read_request(request))
    waiting, state.waiting = state.waiting, ()
    return list(waiting)


def take_waiting_slots(request: Any) -> Decision | None:
    """Take the slots of `@concurrency` that wait for the view, because they need the user; see `register_late_views`.

    Call it when the rules have allowed the request. Return the refusal if a slot is not free, else None. The refusal is
    on `request.quota`, and what the rules took is given back. The slots are given back when the view has answered.
    """
    state = request_state(_read_request(request))
    waiting, state.waiting_slots = state.waiting_slots, ()
    for take_flow in waiting:
        decision = run_sync(take_flow())
        if decision.enforced:
            return decision
    return None


def set_body_parser(request: Any, parse: Callable[[], Any]) -> None:
    """Give the function that returns the parsed body of a request, for a framework that parses bodies by itself.

    The keys `post:` and `json:` take their fields from the result, if that is a dict. The function is called once, and
    only if a rule needs the body. If it raises an error, `decide` raises it too.
    """
    body_notes(_read_request(request)).parse = parse


def attach_decision(request: Any, decision: Decision) -> Decision:
    """Put a Decision on `request.quota`, combined with earlier ones; return the combined one."""
    found = _read_request(request)
    return add_decision(found, request_state(found), decision)


def refusal_response(request: Any, decision: Decision) -> HttpResponse:
    """Return the response to a refused request, as `@quota` sends it: 429, or 503 if the store did not answer.

    `decision`: what `attach_decision` returned. The response has its headers. Raises `ConfigurationError` if the
    `RESPONSE` setting returns anything other than a response.
    """
    return responses.answer_refusal(_read_request(request), decision)


async def arefusal_response(request: Any, decision: Decision) -> HttpResponse:
    """Return the response to a refused request without blocking the event loop; see `refusal_response`."""
    return await responses.aanswer_refusal(_read_request(request), decision)


def has_middleware(request: Any = None) -> bool:
    """Return whether a request passes a `QuotaMiddleware`, which answers a `QuotaExceeded` with 429.

    Without a request: whether MIDDLEWARE has one, for system checks.
    """
    if request is None:
        return rule_checks.lists_middleware(rule_checks.OURS)
    return request_state(_read_request(request)).closer == "middleware"


def read_rule(rule_or_rate: RuleOrRate, **options: Any) -> Rule:
    """Return a rule from what a caller gave: a `Rule`, the name of a configured rule, or a rate with options.

    Raises `RuleError` if it is none of these, or if an option or the key is wrong.
    """
    rule = conf.rule_of(rule_or_rate, options)
    check_keys(rule)
    return rule


def enter_queue(queue: Rule, subject: Any, cost: int | None = None) -> Decision:
    """Take the next place of a queue, a rule with `leaky_bucket`; `delay` of the Decision says how long to wait for it.

    This is a `check`, but metrics and observers do not count an allowed one: they count the work when it starts.
    """
    return run_sync(_place_flow(queue, subject, cost))


def _place_flow(queue: Rule, subject: Any, cost: int | None) -> Flow[Decision]:
    asks = yield from ask_flow(queue, subject, cost, None, {})
    answer = yield from answer_flow(asks, "check", reports_allowed=False)
    return answer.decision


def read_subject(given: Any) -> str:
    """Return the subject of a user (`user:42`), or a string with its addresses as `key="ip"` writes them.

    Raises `RuleError` for anything else.
    """
    return subjects.subject_of(given, "a limit")


def write_headers(response: R, decision: Decision, request: Any = None) -> R:
    """Write RateLimit-Policy and RateLimit to a response, as the settings say, and return it.

    `decision`: what `attach_decision` returned. `request`: pass it, so that a response has no headers if Django's cache
    stores it and shows it to others. With the middleware you need not call this.
    """
    state = RequestState() if request is None else request_state(_read_request(request))
    if not state.closer:
        responses.set_headers(response, decision, is_cached=state.is_cached)
    return response


def write_refusal_headers(response: H, decision: Decision) -> H:
    """Write the headers of a refusal to an answer in a form of your own: Retry-After, no caching and RateLimit.

    `decision`: what `attach_decision` returned. Return the response. `refusal_response` has these headers already.
    """
    responses.set_refusal_headers(response, decision)
    return response


def settle(request: Any, response: HttpResponseBase | BaseException) -> None:
    """Settle what `decide` took for a request by rules with `settle` or `count_when`, once there is a response.

    `response`: the response, or the error that left the view, which counts as the response that Django makes of it. A
    streaming response is settled when it ends. Call `settle` before `write_headers`. With the middleware you need not
    call `settle`, and it does nothing. Raises `RuleError` if a function returns a wrong value.
    """
    run_sync(settle_own_flow(_read_request(request), response))


async def asettle(request: Any, response: HttpResponseBase | BaseException) -> None:
    """Settle what `adecide` took for a request without blocking the event loop; see `settle`.

    After a `CancelledError`, because the client went away, what was taken stays spent.
    """
    await run_async(settle_own_flow(_read_request(request), response))


def client_ip(request: Any) -> str:
    """Return the address of the client, as `key="ip"` counts it: behind `TRUSTED_PROXIES`, and IPv6 as its network.

    Raises `ConfigurationError` if there is no address.
    """
    return addresses.client_address(_read_request(request))


def is_exempt(request: Any) -> bool:
    """Say whether the client is in a network of `QUOTA["EXEMPT"]`; `decide` and slots let such a request pass."""
    return addresses.is_from_exempt_network(_read_request(request))


def _read_rules(rules: RuleOrRate | Iterable[RuleOrPair]) -> tuple[list[Rule], list[tuple[Rule, str]]]:
    """Return the rules whose key takes the subject from the request, and the pairs of a rule and its subject."""
    read, pairs = [], []
    for each in [rules] if isinstance(rules, (str, Rule)) else rules:
        if not isinstance(each, tuple):
            read.append(conf.rule_of(each, {}))
            continue
        rule, subject = conf.rule_of(each[0], {}), named_subject(each[1])
        pairs.append((rule if rule.is_plain else rule_without_request(rule, subject, None, None), subject))
    return read, pairs


def _read_request(request: Any) -> HttpRequest:
    found = django_request(request)
    if found is None:
        raise RuleError(
            f"{request!r} is not a Django request, and does not wrap one.",
            "Without a request, use check_all([(rule, subject), ...]).",
        )
    return found
