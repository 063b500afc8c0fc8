"""A limited request: the steps that the middleware, the decorators and the integrations share.

Each of them takes the same steps: it finds the rules (`http/request_rules`), resolves what they ask for
(`limiting/asking`), decides it in one call to the store (`limiting/limiter`), and puts the decision on
`request.quota`. One `RequestState` notes what has happened to a request so far. The outermost of middleware and
`@quota` closes the request: it decides the rules that are still waiting, settles what was taken, and writes the
headers.

A body is read only when it is needed. If some rules limit by a field of a body that is not read yet, the other rules
are decided first, in a separate call. So a request that an address limit or a ban refuses costs no parsing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, Literal, cast

from django.db import connections
from django.http import HttpRequest, HttpResponse

from django_quota.conf import current
from django_quota.core.caching import kept_on
from django_quota.core.decisions import NOTHING_LIMITS, Decision
from django_quota.core.flow import Flow, IOCall, run_async, run_sync
from django_quota.core.rules import Rule
from django_quota.engine.answers import Answer
from django_quota.engine.asks import Ask
from django_quota.features.request_end import closers_of
from django_quota.http.request_rules import Limited, rules_before, rules_of, site_rules
from django_quota.http.responses import aanswer_refusal, add_headers, answer_refusal, decision_of
from django_quota.http.settlements import settle_by_response_flow
from django_quota.limiting.asking import CountedPlaces, asked_flow
from django_quota.limiting.registry import get_limiter
from django_quota.subjects.addresses import is_from_exempt_network
from django_quota.subjects.bodies import has_unread_body, is_readable
from django_quota.subjects.site_functions import starting_flow, starts_of

logger = logging.getLogger("django_quota.web")


class QuotaRequest(HttpRequest):
    """For annotations: a request with a Decision."""

    quota: Decision
    """The decision on the request."""


class RequestState:
    """What has happened to one request so far. The values here are those of a new request."""

    closer: Literal["", "middleware", "decorator"] = ""
    """What closes the request: the outermost of middleware and `@quota`. Empty before and after that."""
    is_cached: bool = False
    """Whether a cache around the limiter stores the response and would show its headers to other clients."""
    is_asked: bool = False
    """Whether the configured rules have been looked up, so that a view called by another view is not limited."""
    claimed: object = None
    """The `@quota` whose rules the middleware decides before it calls the view."""
    waiting: Sequence[Rule] = ()
    """The rules that the view decides itself; see `http/request_rules`."""
    waiting_slots: Sequence[Callable[[], Flow[Decision]]] = ()
    """Each takes a slot that waits as those rules do; see `http/request_slots`."""
    take_slots: Callable[[HttpRequest, object], Flow[HttpResponse | None]] | None = None
    """Takes the slots of the settings, if there are any; see `http/request_slots`."""
    counted: CountedPlaces | None = None
    """The rules with a `match` that have been decided; see `asked_flow`."""
    answers: Sequence[Answer] = ()
    """The answers so far. `undo_flow` refunds what they took."""
    unsettled: Sequence[Answer] = ()
    """The answers that include rules which look at the response; see `http/settlements`."""

    @property
    def has_work_left(self) -> bool:
        """Whether `close_flow` has anything to decide, to settle or to log after the view."""
        if self.waiting or self.waiting_slots or self.unsettled:
            return True
        return self.closer == "middleware" and not self.is_asked


STATE = "_django_quota"
"""The attribute of a request with its state."""


def request_state(request: HttpRequest) -> RequestState:
    """Return the state of a request, made when it is first needed."""
    return kept_on(request, STATE, RequestState)


# --- before, in and after the view ------------------------------------------------------------------------------------


def before_view_flow(request: HttpRequest, view: Callable[..., Any]) -> Flow[HttpResponse | None]:
    """Decide the rules of the settings and those of the view; return the response if they refuse the request."""
    state = request_state(request)
    if state.is_asked:
        return None
    state.is_asked = True
    state.is_cached = _in_a_cache(request)
    rules, state.waiting, state.claimed = rules_before(request, view)
    refused = (yield from limit_flow(request, state, rules)) if rules else None
    if refused is None and state.take_slots is not None:
        refused = yield from state.take_slots(request, view)
    return refused


def enter_view_flow(
    request: HttpRequest, spec: Limited, owner: type | None, args: tuple[Any, ...]
) -> Flow[tuple[RequestState | None, HttpResponse | None]]:
    """Decide the rules of a `@quota`, unless the middleware has; return the response if they refuse the request.

    Return the state, too, if this `@quota` closes the request. `args`: the arguments of this call of the view.
    """
    state = request_state(request)
    if state.claimed is spec:  # for this call; the next one is decided here
        state.claimed = None
        return None, None
    rules, waiting = rules_of(spec, owner, args)
    if waiting:
        state.waiting = (*state.waiting, *waiting)
    refused = (yield from limit_flow(request, state, rules)) if rules else None
    if state.closer or refused is not None:
        return None, refused
    state.closer = "decorator"
    return state, None


def close_request(request: HttpRequest, state: RequestState, response: Any) -> Any:
    """Decide and settle what is left after the view, if anything; return the response to send, with its headers."""
    if state.has_work_left:
        response = run_sync(close_flow(request, state, response))
    state.closer = ""
    return add_headers(request, response, is_cached=state.is_cached)


async def aclose_request(request: HttpRequest, state: RequestState, response: Any) -> Any:
    """Close a request without blocking the event loop; see `close_request`."""
    if state.has_work_left:
        response = await run_async(close_flow(request, state, response))
    state.closer = ""
    return add_headers(request, response, is_cached=state.is_cached)


def close_flow(request: HttpRequest, state: RequestState, response: Any) -> Flow[Any]:
    """Decide the rules that no view has decided, and settle all; return the response to send.

    `response`: the view's response, or the error that left the view.
    """
    try:
        if not isinstance(response, BaseException):
            log_untaken_slots(request, response)
            rules = _rules_left(request, state, response)
            refused = (yield from limit_flow(request, state, rules)) if rules else None
            response = response if refused is None else _replaced(response, refused)
        yield from _settle_flow(request, state, response)
    finally:
        state.closer = ""
    return response


def _settle_flow(request: HttpRequest, state: RequestState, response: Any) -> Flow[None]:
    answers, state.unsettled = state.unsettled, ()
    yield from settle_by_response_flow(request, response, [answer.receipt() for answer in answers])


def _replaced(response: Any, refused: HttpResponse) -> HttpResponse:
    """Return the refusal, which also closes the response that it replaces, such as a file."""
    closers_of(refused).extend(closers_of(response))
    return refused


def _rules_left(request: HttpRequest, state: RequestState, response: Any) -> Sequence[Rule]:
    """Return the rules to decide after the view: those that wait for it; without a view, those of the settings.

    Empty if the request is refused already. Rules that need the body are left out if the view has read it, because it
    cannot be read again.
    """
    if state.closer == "middleware" and not state.is_asked:
        state.is_asked = True
        return site_rules(request)
    waiting, state.waiting = state.waiting, ()
    decision = decision_of(request)
    if not waiting or (decision is not None and decision.enforced):
        return ()
    if _is_done(response):
        names = ", ".join([repr(rule.name) for rule in waiting])
        _log_late(
            request, response, f"these rules waited for it: {names}. They were decided after the view had already run"
        )
    return [rule for rule in waiting if not rule.reads_body or is_readable(request)]


def log_untaken_slots(request: HttpRequest, response: Any) -> None:
    """Log that a view has answered without taking the slots that waited for it."""
    state = request_state(request)
    slots, state.waiting_slots = state.waiting_slots, ()
    if slots and _is_done(response):
        _log_late(request, response, "a slot waited for it. Nothing limited how many ran at once")


def _is_done(response: Any) -> bool:
    """Return whether a view has succeeded: with a status below 400."""
    return bool(getattr(response, "status_code", HTTPStatus.BAD_REQUEST) < HTTPStatus.BAD_REQUEST)


def _log_late(request: HttpRequest, response: Any, what: str) -> None:
    match = request.resolver_match
    _log_once(match.view_name if match else request.path, response.status_code, what)


@lru_cache(maxsize=1024)  # once for each view: clients can cause it often
def _log_once(view: str, status: int, what: str) -> None:
    advice = "Let the view check its throttles, or remove the limits from it."
    logger.error("The view %r answered %s while %s. %s", view, status, what, advice)


# --- deciding ---------------------------------------------------------------------------------------------------------

Pairs = Sequence[tuple[Rule, str]]
"""Rules, each with a subject that the caller names."""


def limit_flow(request: HttpRequest, state: RequestState, rules: Sequence[Rule]) -> Flow[HttpResponse | None]:
    """Decide rules; return the response if they refuse the request."""
    decision = yield from decide_flow(request, state, rules)
    combined = add_decision(request, state, decision)
    return (yield IOCall(answer_refusal, aanswer_refusal, request, combined)) if decision.enforced else None


def decide_flow(request: HttpRequest, state: RequestState, rules: Sequence[Rule], pairs: Pairs = ()) -> Flow[Decision]:
    """Decide a request under these rules, and the subject of each pair under its rule.

    If no rule applies, the request is allowed and has no outcomes.
    """
    if not current().enabled:
        return NOTHING_LIMITS
    limiter = get_limiter()
    later = [rule for rule in rules if rule.reads_body and has_unread_body(request, rule.reads_body)]
    if later and (pairs or len(later) < len(rules)):
        first = yield from _asked_flow(request, state, [rule for rule in rules if rule not in later], pairs)
        decision, answers = yield from limiter.two_step_flow(
            first, partial(_asked_flow, request, state, later), request
        )
    else:
        asks = yield from _asked_flow(request, state, rules, pairs)
        answer = yield from limiter.answer_flow(asks, "check", request)
        decision, answers = answer.decision, [answer]
    for answer in answers:
        state.answers = (*state.answers, answer)
        if any(ask.is_estimate for ask in answer.resolved.asked):
            state.unsettled = (*state.unsettled, answer)
    return decision


def _asked_flow(request: HttpRequest, state: RequestState, rules: Iterable[Rule], pairs: Pairs = ()) -> Flow[list[Ask]]:
    """Return what a request asks for: the rules that apply to it, and the pairs."""
    if state.counted is None:
        state.counted = set()
    asked = yield from asked_flow(rules, request, state.counted)
    if pairs and not is_from_exempt_network(request):
        for rule, subject in pairs:
            started = yield from starting_flow(rule, subject, starts_of(request))
            asked.append(Ask(started, subject, cast("int", rule.cost)))
    return asked


def undo_flow(request: HttpRequest) -> Flow[Sequence[Decision]]:
    """Refund what a request took, because it is refused after all; return its limits after each refund."""
    state = request_state(request)
    answers, state.answers, state.unsettled = state.answers, (), ()
    found = []
    for answer in answers:
        found.append((yield from get_limiter().undo_flow(answer.receipt())))  # noqa: PERF401 — it waits
    return found


# --- the decision on a request ----------------------------------------------------------------------------------------


def add_decision(request: HttpRequest, state: RequestState, decision: Decision) -> Decision:
    """Put a decision on `request.quota`, combined with earlier ones; return the combined one."""
    earlier = decision_of(request)
    if not state.closer and _in_a_cache(request):
        state.is_cached = True
    combined = decision if earlier is None else earlier.combined_with(decision)
    request.quota = combined  # type: ignore[attr-defined]  # as a QuotaRequest has
    return combined


def _in_a_cache(request: HttpRequest) -> bool:
    """Return whether Django's cache (its middleware or `cache_page`) will store the answer of what runs now."""
    return bool(getattr(request, "_cache_update_cache", False))


def settle_own_flow(request: HttpRequest, response: Any) -> Flow[None]:
    """Settle what a request took, unless the middleware or a `@quota` closes the request."""
    state = request_state(request)
    if not state.closer:
        yield from _settle_flow(request, state, response)


def write_own_headers(request: HttpRequest, response: Any) -> Any:
    """Write the headers of the decision to the response, unless the middleware or a `@quota` closes the request."""
    state = request_state(request)
    return response if state.closer else add_headers(request, response, is_cached=state.is_cached)


def refuse(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the response to a `QuotaExceeded` that left a view."""
    return answer_refusal(request, _refused(request, decision))


def refuse_in_view(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the response to a `QuotaExceeded` that a decorator caught, and roll back the view's transaction."""
    _roll_back()
    return refuse(request, decision)


async def arefuse_in_view(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the response without blocking the event loop. Django has no transaction around an async view."""
    return await aanswer_refusal(request, _refused(request, decision))


def unavailable(request: HttpRequest) -> HttpResponse:
    """Return the response to a `StoreUnavailable` that left a view: the 503 of `on_unavailable="deny"`."""
    return answer_refusal(request, add_decision(request, request_state(request), _UNDECIDED))


_UNDECIDED = Decision.without_limit(allowed=False, enforced=True, degraded=True)


def _refused(request: HttpRequest, decision: Decision) -> Decision:
    """Return the decision to answer with: all decisions on the request, if they refuse it."""
    earlier = decision_of(request)
    known = earlier is not None and set(decision.outcomes) <= set(earlier.outcomes)
    combined = earlier if earlier is not None and known else add_decision(request, request_state(request), decision)
    return decision if combined.allowed else combined


def _roll_back() -> None:
    for connection in connections.all(initialized_only=True):
        if connection.settings_dict["ATOMIC_REQUESTS"] and connection.in_atomic_block:
            connection.set_rollback(True)  # as Django does when an exception leaves the view
