"""The verbs: `check`, `acquire`, `peek`, `refund` and `reset`, each sync and async."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Unpack, cast

from django.http import HttpRequest

from django_quota.conf import current, rule_of
from django_quota.core.clock import SECOND
from django_quota.core.decisions import Decision
from django_quota.core.errors import RuleError
from django_quota.core.flow import Flow, run_async, run_sync, sleep
from django_quota.core.rates import parse_seconds, validate_cost
from django_quota.core.rules import ANONYMOUS, AUTHENTICATED, CallOptions, Rule
from django_quota.engine.codec import Mode
from django_quota.engine.plans import Asked, Plan
from django_quota.services.registry import get_limiter, store_call
from django_quota.services.request_decisions import new_plan
from django_quota.services.subjects import asked_by_flow, is_user, named_subject, user_subject, value_digest

RuleOrRate = str | Rule
Subject = Any
"""A text such as "ip:203.0.113.9", a user, or a request."""


def check(
    rule_or_rate: RuleOrRate,
    subject: Subject,
    cost: int | None = None,
    *,
    value: object = None,
    **rule_options: Unpack[CallOptions],
) -> Decision:
    """Take a hit: decide whether it is allowed, and count it if so.

    `rule_or_rate`: the name of a rule in the settings, a rate (`"10/m"`, `"10/s; 500/h"`) with rule options such as
    `algorithm="token_bucket"`, or a `Rule`. Calls with the same rate and subject share one count; `name=` separates
    them. `subject`: a text such as `"ip:203.0.113.9"`, a user, or a request, from which the rule's key takes the
    subject. `cost`: units, 0 to 10^12; by default the rule's own (1). `value`: what a rule with `distinct=` counts: a
    text, bytes or a whole number.

    Raises `RateError` or another `RuleError` if the rule, the rate, an option or the cost is wrong. While Redis does
    not answer, nothing is raised and the Decision is `degraded`.
    """
    return run_sync(_decided_flow(plan_flow(rule_or_rate, subject, cost, value, rule_options), "check"))


async def acheck(
    rule_or_rate: RuleOrRate,
    subject: Subject,
    cost: int | None = None,
    *,
    value: object = None,
    **rule_options: Unpack[CallOptions],
) -> Decision:
    """Take a hit without blocking the event loop; see `check`."""
    return await run_async(_decided_flow(plan_flow(rule_or_rate, subject, cost, value, rule_options), "check"))


def acquire(
    rule_or_rate: RuleOrRate,
    subject: Subject,
    cost: int | None = None,
    *,
    timeout: float,
    value: object = None,
    **rule_options: Unpack[CallOptions],
) -> Decision:
    """Wait until the rule allows a hit, and take it; return the Decision.

    Use it for work that may wait, such as calls of another service. A view that waits holds a thread. If the wait would
    be longer than the timeout, it does not wait, and the Decision is refused. With `leaky_bucket` it also waits for the
    Decision's `delay`, which the timeout does not limit. Callers that wait have no order. If many wait, use `slot`,
    which has a queue, or `leaky_bucket`, which gives each a place. Each refused try counts as a refusal for `ban=` and
    `count_refused`.

    `timeout`: seconds, 0 to 366 days. For the other arguments and the errors see `check`.
    """
    return run_sync(_acquire_flow(timeout, partial(plan_flow, rule_or_rate, subject, cost, value, rule_options)))


async def aacquire(
    rule_or_rate: RuleOrRate,
    subject: Subject,
    cost: int | None = None,
    *,
    timeout: float,  # noqa: ASYNC109 — how long to wait for room; the calls to the store have timeouts of their own
    value: object = None,
    **rule_options: Unpack[CallOptions],
) -> Decision:
    """Take a hit as soon as the rule allows it, without blocking the event loop; see `acquire`."""
    return await run_async(_acquire_flow(timeout, partial(plan_flow, rule_or_rate, subject, cost, value, rule_options)))


def peek(
    rule_or_rate: RuleOrRate,
    subject: Subject,
    cost: int | None = None,
    *,
    value: object = None,
    **rule_options: Unpack[CallOptions],
) -> Decision:
    """Return what `check` would return, and count nothing; `remaining` is what is left now.

    For the arguments and the errors see `check`.
    """
    return run_sync(_decided_flow(plan_flow(rule_or_rate, subject, cost, value, rule_options), "peek"))


async def apeek(
    rule_or_rate: RuleOrRate,
    subject: Subject,
    cost: int | None = None,
    *,
    value: object = None,
    **rule_options: Unpack[CallOptions],
) -> Decision:
    """Return what `acheck` would return; see `peek`."""
    return await run_async(_decided_flow(plan_flow(rule_or_rate, subject, cost, value, rule_options), "peek"))


def refund(
    rule_or_rate: RuleOrRate, subject: Subject, cost: int | None = None, **rule_options: Unpack[CallOptions]
) -> Decision:
    """Give a cost back, but never more than is used; return what `peek` returns after that.

    Refund a hit while it counts: when its window is over, its room has come back already. A sliding window gives back
    its oldest hits, so there is room at once. A token bucket refills all the time: refund soon after the hit, or use
    `reserve`. With `leaky_bucket`, `refund()` has no effect.

    `cost`: units, 0 to 10^12; by default the rule's own (1). For the other arguments see `check`. Raises `RuleError` if
    an argument is wrong, and for a rule with `distinct=`, whose value may have been used before.
    """
    return run_sync(_decided_flow(plan_flow(rule_or_rate, subject, cost, None, rule_options), "refund"))


async def arefund(
    rule_or_rate: RuleOrRate, subject: Subject, cost: int | None = None, **rule_options: Unpack[CallOptions]
) -> Decision:
    """Give a cost back; see `refund`."""
    return await run_async(_decided_flow(plan_flow(rule_or_rate, subject, cost, None, rule_options), "refund"))


def reset(rule_or_rate: RuleOrRate, subject: Subject, **rule_options: Unpack[CallOptions]) -> bool:
    """Delete what a rule has counted for a subject; return whether there was anything.

    This lifts a ban; an override stays. For the arguments see `check`. Raises `RuleError` if one is wrong, and
    `StoreUnavailable` if the store does not answer.
    """
    return run_sync(_reset_flow(plan_flow(rule_or_rate, subject, 0, None, rule_options)))


async def areset(rule_or_rate: RuleOrRate, subject: Subject, **rule_options: Unpack[CallOptions]) -> bool:
    """Delete what a rule has counted for a subject; see `reset`."""
    return await run_async(_reset_flow(plan_flow(rule_or_rate, subject, 0, None, rule_options)))


Entry = tuple[RuleOrRate, Subject] | tuple[RuleOrRate, Subject, int]
"""A rule, a subject, and the cost if it is not the rule's own."""


def check_all(entries: Iterable[Entry]) -> Decision:
    """Take a hit under several rules, each for its own subject and cost: count all of them or none.

    `check_all([("rpm", user), ("tpm", user, 900), ("org-tpm", f"org:{org}", 900)])`.

    Each entry is a rule and a subject as for `check`, and a cost in units, 0 to 10^12; without one the rule's own (1).
    All are decided in one trip to Redis. A Redis Cluster is asked slot by slot, and what was counted is taken back if a
    later slot refuses. The Decision has the outcomes in the order of the entries, and describes the one that binds.

    Raises `RuleError` if there is no entry, if a rule is listed twice for one subject, or if an argument is wrong.
    While Redis does not answer, nothing is raised and the Decision is `degraded`.
    """
    return run_sync(_decided_flow(entries_plan_flow(entries), "check"))


async def acheck_all(entries: Iterable[Entry]) -> Decision:
    """Take a hit under several rules without blocking the event loop; see `check_all`."""
    return await run_async(_decided_flow(entries_plan_flow(entries), "check"))


# --- flows ------------------------------------------------------------------------------------------------------------


def decision_flow(plan: Plan, mode: Mode) -> Flow[Decision]:
    """Decide a plan on the store of the settings. If `ENABLED` is false, everything is allowed."""
    if not current().enabled:
        return plan.unlimited()
    return (yield from get_limiter().decision_flow(plan, mode))


def _decided_flow(planning: Flow[Plan], mode: Mode) -> Flow[Decision]:
    plan = yield from planning
    if mode == "refund":
        for rule in plan.rules:
            if rule.distinct is not None:
                raise RuleError(f"Rule {rule.name!r} counts different values: reset() forgets them, refund() cannot.")
    return (yield from decision_flow(plan, mode))


def _acquire_flow(timeout: float, make_planning: Callable[[], Flow[Plan]]) -> Flow[Decision]:
    left = parse_seconds("timeout", timeout, 5, may_be_zero=True) / SECOND
    while True:
        decision = yield from _decided_flow(make_planning(), "check")
        if decision.allowed:
            if decision.delay:
                yield sleep(decision.delay)
            return decision
        wait = decision.retry_after
        if wait is None or wait > left:
            return decision
        wait += MIN_SLEEP
        yield sleep(wait)
        left -= wait


MIN_SLEEP = 0.001
"""Seconds that `acquire` sleeps at least: clocks differ a little."""


def _reset_flow(planning: Flow[Plan]) -> Flow[bool]:
    plan = yield from planning
    if not plan or not current().enabled:
        return False
    yield from decision_flow(plan, "peek")  # adds the limits of an override to the plan
    try:
        deleted = yield store_call(plan.reset_operation())
    finally:
        get_limiter().refusals.forget(plan.subjects)
    return bool(deleted > 0)


# --- plans ------------------------------------------------------------------------------------------------------------


def plan_flow(
    rule_or_rate: RuleOrRate, subject: Subject, cost: int | None, value: object, options: Mapping[str, object]
) -> Flow[Plan]:
    """Return the plan of one call. Raises `RuleError` if an argument is wrong."""
    return new_plan([(yield from _asked_flow(rule_or_rate, subject, cost, value, options))])


def entries_plan_flow(entries: Iterable[Entry]) -> Flow[Plan]:
    """Return the plan of several rules, each for its own subject and cost. Raises `RuleError` if an entry is wrong."""
    found: list[Asked] = []
    if isinstance(entries, (str, Mapping)):
        raise RuleError(f"{entries!r} is not a list of entries.", _ENTRIES_EXAMPLE)
    for entry in entries:
        if not isinstance(cast("object", entry), (tuple, list)) or not 2 <= len(entry) <= 3:  # noqa: PLR2004
            raise RuleError(f"{entry!r} is not (rule, subject) or (rule, subject, cost).", _ENTRIES_EXAMPLE)
        rule, subject, *cost = entry
        asked = yield from _asked_flow(rule, subject, cost[0] if cost else None, None, {})
        name, whose = asked[0].name, asked[1]
        if any((other.name, its) == (name, whose) for other, its, _, _ in found):
            raise RuleError(f"Rule {name!r} is listed twice for {whose}.", "Give it once, with the whole cost.")
        found.append(asked)
    if not found:
        raise RuleError("There is no entry.", _ENTRIES_EXAMPLE)
    return new_plan(found)


_ENTRIES_EXAMPLE = "Use, for example, [('rpm', user), ('tpm', user, 900)]."


def _asked_flow(
    rule_or_rate: RuleOrRate, subject: Subject, cost: int | None, value: object, options: Mapping[str, object]
) -> Flow[Asked]:
    """Return what one call asks for. Raises `RuleError` if an argument is wrong."""
    rule = rule_of(rule_or_rate, options)
    if isinstance(subject, str):
        name = named_subject(subject)
    elif (request := django_request(subject)) is not None:
        return (yield from asked_by_flow(rule, request, cost, value))
    elif is_user(subject):
        name = user_subject(subject)
    else:
        raise RuleError(f"{subject!r} is not a subject. Use a text such as 'ip:203.0.113.9', a user or a request.")
    if not rule.is_plain:  # most rules have nothing to look at here
        rule = rule_without_request(rule, name, cost, value)
    units = cast("int", rule.cost) if cost is None else validate_cost(cost, rule.name)
    return rule, name, units, "" if value is None else value_digest(rule, value)


def rule_without_request(rule: Rule, subject: str, cost: int | None, value: object) -> Rule:
    """Return the rule for a subject without a request: that of its tier. Raises `RuleError` if it needs a request."""
    if rule.tiers and rule.tier is None:
        rule = rule.tiers[AUTHENTICATED if subject.startswith("user:") else ANONYMOUS]
    if rule.dynamic:
        raise RuleError(f"The rates of rule {rule.name!r} are functions of the request: pass the request as subject.")
    if cost is None and callable(rule.cost):
        raise RuleError(f"The cost of rule {rule.name!r} is a function of the request: pass cost= here.")
    if rule.distinct is not None and value is None and cost != 0:
        raise RuleError(
            f"Rule {rule.name!r} counts different values: check() and peek() take the value as value=.",
            "reset() forgets all of them; refund() and reserve() do not work with such a rule.",
        )
    return rule


def django_request(subject: Subject) -> HttpRequest | None:
    """Return Django's request if a subject is one, or wraps one; else None."""
    if isinstance(subject, HttpRequest):
        return subject
    wrapped = getattr(subject, "_request", None)  # the request of Django REST framework wraps Django's
    return wrapped if isinstance(wrapped, HttpRequest) else None
