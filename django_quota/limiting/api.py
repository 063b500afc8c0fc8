"""What code calls to limit something: `check`, `acquire`, `peek`, `refund` and more, each sync and async."""

from __future__ import annotations

import warnings
from asyncio import _get_running_loop
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, Unpack

from django.conf import settings
from django.http import HttpRequest

from django_quota.conf import current, rule_of
from django_quota.core.clock import SECOND
from django_quota.core.decisions import Decision
from django_quota.core.errors import RateError, RuleError
from django_quota.core.flow import Flow, run_async, run_sync, sleep
from django_quota.core.rates import Duration, parse_duration, validate_cost
from django_quota.core.rules import OF_REQUESTS, CallOptions, Rule, default_tier_of
from django_quota.engine.answers import Answer
from django_quota.engine.asks import Ask, CounterEntry, Place, Take
from django_quota.engine.compiled import CompiledRule
from django_quota.engine.receipts import Settlement
from django_quota.engine.resolving import AskMode
from django_quota.limiting.asking import asked_by_flow, value_digest
from django_quota.limiting.known_rules import looks_like_subject, order_error
from django_quota.limiting.registry import get_limiter
from django_quota.runtime import runtime
from django_quota.subjects.keys import subject_flow
from django_quota.subjects.site_functions import starting_flow
from django_quota.subjects.subject import is_user, named_subject, subject_of, user_subject

T = TypeVar("T")

RuleOrRate = str | Rule
AnySubject = Any
"""A string such as "ip:203.0.113.9", a `Subject`, a user, or a request."""


def check(
    rule_or_rate: RuleOrRate,
    subject: AnySubject,
    cost: int | None = None,
    *,
    value: object = None,
    force: bool = False,
    **rule_options: Unpack[CallOptions],
) -> Decision:
    """Take a hit: decide whether it is allowed, and count it if so.

    `rule_or_rate`: the name of a configured rule, a rate (`"10/m"`, `"10/s; 500/h"`) with rule options such as
    `algorithm="token_bucket"`, or a `Rule`. Calls with the same rate and subject share one count; `name=` separates
    them. A rule with rates by tier also takes the name of one: `tier="team"`. `subject`: a string such as
    `"ip:203.0.113.9"`, a user, or a request, from which the rule's key takes the subject. `cost`: units, 1 to 10^12; by
    default the rule's own (1). `value`: what a rule with `distinct=` counts: a string, bytes or a whole number.
    `force`: count the hit even if there is no room, for work that is done already; `allowed` says whether there was
    room, and `used` of the outcome may then be above the limit. Such a hit is not a refusal, so it begins no ban. Not
    for `distinct=`.

    Raises `RateError` or another `RuleError` if the rule, the rate, an option or the cost is wrong, and
    `ConfigurationError` if the client of a request has no address. While the store does not answer, nothing is raised
    and the Decision is `degraded`.
    """
    if CompiledRule.any_prefetches and not (force or rule_options or value is not None):
        spent = _spend(rule_or_rate, subject, cost)
        if spent is not None:
            return spent
    asking = ask_flow(rule_or_rate, subject, cost, value, rule_options)
    return run_call(_decided_flow(asking, "force" if force else "check", subject))


async def acheck(
    rule_or_rate: RuleOrRate,
    subject: AnySubject,
    cost: int | None = None,
    *,
    value: object = None,
    force: bool = False,
    **rule_options: Unpack[CallOptions],
) -> Decision:
    """Take a hit without blocking the event loop; see `check`."""
    if CompiledRule.any_prefetches and not (force or rule_options or value is not None):
        spent = _spend(rule_or_rate, subject, cost)
        if spent is not None:
            return spent
    asking = ask_flow(rule_or_rate, subject, cost, value, rule_options)
    return await run_async(_decided_flow(asking, "force" if force else "check", subject))


def acquire(
    rule_or_rate: RuleOrRate,
    subject: AnySubject,
    cost: int | None = None,
    *,
    timeout: Duration,
    value: object = None,
    **rule_options: Unpack[CallOptions],
) -> Decision:
    """Wait until the rule allows a hit, and take it; return the Decision.

    Use it for work that may wait, such as calls of another service. A view that waits holds a thread. If the wait would
    be longer than the timeout, `acquire` returns a refused Decision at once. With `leaky_bucket`, it also waits for the
    Decision's `delay`, which the timeout does not limit. Waiting callers are served in no particular order. If many
    wait, use `slot`, whose callers queue in each process, or `leaky_bucket`, which gives each a place. Each refused try
    counts as a refusal for `ban=` and `count_refused`.

    `timeout`: 0 to 366 days. For the other arguments and the errors see `check`.
    """
    return run_call(_acquire_flow(timeout, partial(ask_flow, rule_or_rate, subject, cost, value, rule_options)))


async def aacquire(
    rule_or_rate: RuleOrRate,
    subject: AnySubject,
    cost: int | None = None,
    *,
    timeout: Duration,  # noqa: ASYNC109 — how long to wait for room; the calls to the store have timeouts of their own
    value: object = None,
    **rule_options: Unpack[CallOptions],
) -> Decision:
    """Take a hit as soon as the rule allows it, without blocking the event loop; see `acquire`."""
    return await run_async(_acquire_flow(timeout, partial(ask_flow, rule_or_rate, subject, cost, value, rule_options)))


def peek(
    rule_or_rate: RuleOrRate,
    subject: AnySubject,
    cost: int | None = None,
    *,
    value: object = None,
    **rule_options: Unpack[CallOptions],
) -> Decision:
    """Return what `check` would return, and count nothing; `remaining` is what is left now.

    A rule's `cost` function is not called: without `cost=`, such a rule is asked about one unit. For the arguments
    and the errors see `check`.
    """
    return run_call(_decided_flow(ask_flow(rule_or_rate, subject, cost, value, rule_options, is_peek=True), "peek"))


async def apeek(
    rule_or_rate: RuleOrRate,
    subject: AnySubject,
    cost: int | None = None,
    *,
    value: object = None,
    **rule_options: Unpack[CallOptions],
) -> Decision:
    """Return what `acheck` would return; see `peek`."""
    asking = ask_flow(rule_or_rate, subject, cost, value, rule_options, is_peek=True)
    return await run_async(_decided_flow(asking, "peek"))


def refund(
    rule_or_rate: RuleOrRate, subject: AnySubject, cost: int | None = None, **rule_options: Unpack[CallOptions]
) -> Decision:
    """Give a cost back, but never more than is used; return what `peek` returns after that.

    Refund a hit while it counts: after its window, its room is free anyway. A sliding window gives back
    its oldest hits, so there is room at once. A token bucket refills all the time: refund soon after the hit, or use
    `reserve`. With `leaky_bucket`, `refund()` has no effect.

    `cost`: units, 0 to 10^12; by default the rule's own (1). For the other arguments see `check`. Raises `RuleError` if
    an argument is wrong, and for a rule with `distinct=`, whose value may have been used before.
    """
    return run_call(_decided_flow(ask_flow(rule_or_rate, subject, cost, None, rule_options), "refund"))


async def arefund(
    rule_or_rate: RuleOrRate, subject: AnySubject, cost: int | None = None, **rule_options: Unpack[CallOptions]
) -> Decision:
    """Give a cost back; see `refund`."""
    return await run_async(_decided_flow(ask_flow(rule_or_rate, subject, cost, None, rule_options), "refund"))


class Entry(NamedTuple):
    """What `check_all` and its like take under one rule, for one subject: `Entry("tokens", user, 900, tier="pro")`.

    Without a tier, a tuple is enough: `("tokens", user, 900)`.
    """

    rule: RuleOrRate | CounterEntry
    """A rule, as for `check`, or a counter."""
    subject: AnySubject
    """A subject, as for `check`."""
    cost: int | None = None
    """Units, 1 to 10^12; None takes the rule's own cost (1)."""
    tier: str | None = None
    """The name of a tier of the rule; None takes the tier of the subject."""


AnyEntry = (
    Entry | tuple[RuleOrRate | CounterEntry, AnySubject] | tuple[RuleOrRate | CounterEntry, AnySubject, int | None]
)


def check_all(entries: Iterable[AnyEntry]) -> Decision:
    """Take a hit under several rules, each for its own subject and cost: count all of them or none.

    `check_all([("rpm", user), ("tpm", user, 900), ("org-tpm", f"org:{org}", 900)])`.

    Each entry is a rule and a subject as for `check`, and a cost in units, 1 to 10^12; without one, or with None, the
    rule's own (1). To name a tier, write `Entry("rpm", user, tier="pro")`. All are decided in one call to the store. A
    Redis Cluster is asked slot by slot, and what was counted is given back if a later slot refuses. The Decision has
    the outcomes in the order of the entries, and describes the one that binds.

    An entry may have a counter in place of the rule: `(counter("credits"), f"org:{org}", 900)` takes 900, or refuses if
    the counter holds less. Its `retry_after` is None then, because waiting does not help. Counters are data, not
    limits: overrides and the setting `ENABLED` do not affect them. While the store does not
    answer, a call with a counter is refused; if only the answer was lost, the units were taken.

    Raises `RuleError` if there are no entries or more than 1,000, if a rule or a counter is listed twice for one
    subject, or if an argument is wrong. While the store does not answer, nothing is raised and the Decision is
    `degraded`.
    """
    return run_call(_decided_flow(ask_all_flow(entries), "check"))


async def acheck_all(entries: Iterable[AnyEntry]) -> Decision:
    """Take a hit under several rules without blocking the event loop; see `check_all`."""
    return await run_async(_decided_flow(ask_all_flow(entries), "check"))


def peek_all(entries: Iterable[AnyEntry]) -> Decision:
    """Return what `check_all` would return, and count nothing; each `remaining` is what is left now.

    All are read in one call to the store. For the entries and the errors see `check_all`. No `cost` function runs.
    """
    return run_call(_decided_flow(ask_all_flow(entries, is_peek=True), "peek"))


async def apeek_all(entries: Iterable[AnyEntry]) -> Decision:
    """Return what `acheck_all` would return; see `peek_all`."""
    return await run_async(_decided_flow(ask_all_flow(entries, is_peek=True), "peek"))


# --- flows ------------------------------------------------------------------------------------------------------------


def run_call(flow: Flow[T]) -> T:
    """Run the flow of a public sync function. Under DEBUG, warn once for each place that blocks an event loop."""
    if _get_running_loop() is not None and settings.DEBUG:
        warnings.warn(BLOCKS, RuntimeWarning, stacklevel=3)
    return run_sync(flow)


BLOCKS = "This call blocks the event loop. Await its async form, whose name begins with a: acheck() for check()."
"""The warning for a sync call in async code."""


def answer_flow(
    asks: Sequence[Ask], mode: AskMode, request: HttpRequest | None = None, *, reports_allowed: bool = True
) -> Flow[Answer]:
    """Decide what is asked on the configured store. If `ENABLED` is false, only counters are asked."""
    counters_only = not current().enabled
    return get_limiter().answer_flow(asks, mode, request, counters_only=counters_only, reports_allowed=reports_allowed)


def settlement_flow(settlement: Settlement) -> Flow[Decision]:
    """Settle what was taken. If `ENABLED` is false, only counters are settled."""
    return get_limiter().settle_flow(settlement, counters_only=not current().enabled)


def _spend(rule_or_rate: RuleOrRate, subject: AnySubject, cost: int | None) -> Decision | None:
    """Decide a check by what this process has taken ahead, before anything is made for the store.

    None, and nothing is spent, if the limiter must decide it.
    """
    limiter = get_limiter()
    # A site that is off has taken nothing ahead; but a test may switch it off.
    if not limiter.prefetch.table or runtime.wanted.enabled is False:
        return None
    rule = rule_or_rate if isinstance(rule_or_rate, Rule) else _rule_of_call(rule_or_rate, {})
    if not isinstance(subject, str):
        if django_request(subject) is not None or not is_user(subject):
            return None
        subject = user_subject(subject)
    if not rule.is_plain:
        rule = rule_without_request(rule, subject, cost, None)
    units: Any = rule.cost if cost is None else cost
    return limiter.spend(rule, subject, units) if type(units) is int else None


def _decided_flow(asking: Flow[Sequence[Ask]], mode: AskMode, subject: AnySubject = None) -> Flow[Decision]:
    """Decide what a call asks for. `subject`: as it was given; events say of a request who sent it."""
    asks = yield from asking
    if mode in ("check", "force"):
        check_costs(asks)
    if mode == "refund":
        refuse_distinct(asks, "refund() cannot take one back; reset() forgets all")
    elif mode == "force":
        refuse_distinct(asks, "it cannot be forced")
    request = None if isinstance(subject, str) else django_request(subject)
    answer = yield from answer_flow(asks, mode, request)
    return answer.decision


def refuse_distinct(asks: Iterable[Ask], why: str) -> None:
    """Raise `RuleError` if a rule counts different values."""
    for ask in asks:
        if ask.rule.distinct is not None:
            raise RuleError(f"Rule {ask.rule.name!r} counts different values: {why}.")


def check_costs(asks: Iterable[Ask]) -> None:
    """Raise `RuleError` for a cost of 0; only a cost function may return 0, for a free request."""
    for ask in asks:
        if not ask.cost and not callable(ask.rule.cost):
            raise RuleError(
                f"cost=0 of rule {ask.rule.name!r} takes nothing.", "To look without counting, use peek() or apeek()."
            )


def _acquire_flow(timeout: Duration, make_asking: Callable[[], Flow[Sequence[Ask]]]) -> Flow[Decision]:
    left = parse_duration("timeout", timeout, least=0) / SECOND
    while True:
        decision = yield from _decided_flow(make_asking(), "check")
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
"""Seconds that `acquire` sleeps longer than `retry_after`, because clocks differ a little."""


# --- asks -------------------------------------------------------------------------------------------------------------


def ask_flow(
    rule_or_rate: RuleOrRate,
    subject: AnySubject,
    cost: int | None,
    value: object,
    options: Mapping[str, object],
    *,
    is_peek: bool = False,
) -> Flow[Sequence[Ask]]:
    """Return the one ask of a call, in a tuple; for a peek, no `cost` function is called.

    Raises `RuleError` if an argument is wrong.
    """
    tier = options.get("tier") if options else None
    if isinstance(tier, str):
        options = {option: given for option, given in options.items() if option != "tier"}
    rule = _rule_of_call(rule_or_rate, options)
    if isinstance(tier, str):
        rule = rule_of_tier(rule, tier)
    if is_peek and cost is None and callable(rule.cost):
        cost = 1
    if isinstance(subject, str):
        name = named_subject(subject)
    elif (request := django_request(subject)) is not None:
        return ((yield from asked_by_flow(rule, request, cost, value)),)
    elif is_user(subject):
        name = user_subject(subject)
    else:
        raise RuleError(f"{subject!r} is not a subject. Use a string such as 'ip:203.0.113.9', a user or a request.")
    if not rule.is_plain:  # most rules are
        rule = yield from starting_flow(rule_without_request(rule, name, cost, value), name, {})
    units: Any = rule.cost if cost is None else validate_cost(cost, rule.name)
    return (Ask(rule, name, units, "" if value is None else value_digest(rule, value)),)


def _ask_of_counter(counter: CounterEntry, subject: AnySubject, units: int | None) -> Ask:
    take = counter.as_take
    name = subject_of(subject, "a counter")
    return Ask(take, name, take.cost if units is None else validate_cost(units, take.name))


def ask_all_flow(entries: Iterable[AnyEntry], *, is_peek: bool = False) -> Flow[Sequence[Ask]]:
    """Return the asks of several rules, in the order of the entries; `is_peek` as for `ask_flow`.

    Raises `RuleError` if an entry is wrong.
    """
    found: dict[Place, Ask] = {}
    if isinstance(entries, (str, Mapping)) or not isinstance(entries, Iterable):
        raise RuleError(f"{entries!r} is not a list of entries.", _ENTRIES_EXAMPLE)
    for entry in entries:
        rule, subject, cost, tier = entry if isinstance(entry, Entry) else _entry_of(entry)
        options = {} if tier is None else {"tier": tier}
        if isinstance(rule, CounterEntry):
            if options:
                raise RuleError(f"Counter {rule.as_take.name!r} has no tier {tier!r}.", _ENTRIES_EXAMPLE)
            ask = _ask_of_counter(rule, subject, cost)
        else:
            (ask,) = yield from ask_flow(rule, subject, cost, None, options, is_peek=is_peek)
        if ask.place in found:
            kind = "Counter" if isinstance(ask.rule, Take) else "Rule"
            problem = f"{kind} {ask.rule.name!r} is listed twice for {ask.subject}."
            raise RuleError(problem, "Give it once, with the whole cost.")
        if len(found) == ENTRIES_AT_ONCE:
            raise RuleError(f"There are more than {ENTRIES_AT_ONCE:,} entries.", "Split them into several calls.")
        found[ask.place] = ask
    if not found:
        raise RuleError("There are no entries.", _ENTRIES_EXAMPLE)
    return list(found.values())


def _entry_of(given: Any) -> Entry:
    """Return the entry that a tuple or list stands for. Raises `RuleError`."""
    if isinstance(given, (tuple, list)) and len(given) in (2, 3):
        return Entry(*given)
    problem = f"{given!r} is not (rule, subject), (rule, subject, cost) or an Entry, which may also name a tier."
    raise RuleError(problem, _ENTRIES_EXAMPLE)


ENTRIES_AT_ONCE = 1_000
"""The most entries that one call decides: the store serves no other call meanwhile."""

_ENTRIES_EXAMPLE = "Use, for example, [('rpm', user), ('tpm', user, 900)]."


def _rule_of_call(rule_or_rate: RuleOrRate, options: Mapping[str, object]) -> Rule:
    if options:
        refuse_options_of_requests(options)
    try:
        return rule_of(rule_or_rate, options)
    except RateError:
        if isinstance(rule_or_rate, CounterEntry):
            hint = "Use its take(), or make it an entry of check_all()."
            raise RuleError(f"{rule_or_rate!r} is not a rule or a rate.", hint) from None
        if looks_like_subject(rule_or_rate):
            raise order_error(rule_or_rate) from None
        raise


def refuse_options_of_requests(options: Mapping[str, object]) -> None:
    """Raise `RuleError` if an option of a call chooses which requests are limited, such as `methods`."""
    for option in OF_REQUESTS.intersection(options):
        raise RuleError(f"{option}= chooses requests, so calls do not take it.", "Decide in your code whether to call.")


def rule_of_tier(rule: Rule, tier: str) -> Rule:
    """Return the rule with the rates of a tier. Raises `RuleError` if it has no such tier."""
    found = rule.tiers.get(tier)
    if found is None:
        known = f"Known: {', '.join(map(repr, rule.tiers))}." if rule.tiers else "It has no tiers."
        raise RuleError(f"Rule {rule.name!r} has no tier {tier!r}.", known)
    return found


def rule_without_request(rule: Rule, subject: str, cost: int | None, value: object) -> Rule:
    """Return the rule for a subject of which no request is known: with the rates of its default tier.

    Raises `RuleError` if the rule needs a request, or a value for `distinct=`.
    """
    if rule.tiers and rule.tier is None:
        rule = rule.tiers[default_tier_of(subject)]
    if rule.tiers:
        raise RuleError(
            f"The tier of rule {rule.name!r} is a function of the request: pass the request as subject, or tier=.",
            f"Known: {', '.join(map(repr, rule.tiers))}.",
        )
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


def django_request(subject: AnySubject) -> HttpRequest | None:
    """Return Django's request if the subject is one or wraps one, as Django REST framework's does; else None."""
    if isinstance(subject, HttpRequest):
        return subject
    wrapped = getattr(subject, "_request", None)
    return wrapped if isinstance(wrapped, HttpRequest) else None


def subject_under_flow(rule: Rule, subject: AnySubject, what: str) -> Flow[str]:
    """Return the subject in canonical form; of a request, the subject under the key of the rule.

    `what`: what it is for, in the error: "a counter".
    """
    request = django_request(subject)
    if request is None:
        return subject_of(subject, what)
    return str((yield from subject_flow(rule.key, request)))
