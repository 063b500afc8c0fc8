"""The limiter: rules and subjects become a plan, the plan one store call, the reply a Decision. No HTTP, no models.

Everything that can be decided is decided in flows and plans, once; the sync and the async verbs differ in how they
wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

from django.core.signals import setting_changed
from django.http import HttpRequest

from django_quota.clock import frozen_now
from django_quota.conf import QuotaSettings, conf, current, rule_of
from django_quota.decisions import Decision
from django_quota.exceptions import RateError, RuleError, StoreUnavailable
from django_quota.operations.decide import Decide, Mode
from django_quota.operations.forget import Forget
from django_quota.plans import Plan
from django_quota.rules import Rule, check_cost, path_of
from django_quota.stores.base import Store
from django_quota.stores.memory import MemoryStore
from django_quota.stores.redis import RedisStore
from django_quota.subjects import Flow, aanswer, answer, call, is_user, named_subject, subject_flow, user_subject

logger = logging.getLogger("django_quota")

MAX_GUESSES = 5
"""How often the store is asked for one plan, where its clock leaves the edges of a calendar limit each time."""

_SLOW = "its answers take longer than the periods of a calendar limit last"

RuleOrRate = str | Rule
Subject = Any
"""A text such as "ip:203.0.113.9", a user, or a request."""


class Limiter:
    """Decides plans on a store, and by each rule's `on_unavailable` while the store does not answer."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.local = MemoryStore()
        """Decides for the rules that say `on_unavailable="local"`: each process by itself."""
        self._skew = 0
        self._is_down = False

    def decide(self, plan: Plan, mode: Mode) -> Decision:
        """Decide a plan in one call to the store."""
        if not plan:
            return plan.unlimited()
        now = frozen_now()
        guess = self._guess(plan, now)
        try:
            for _ in range(MAX_GUESSES):
                reply = self.store.run(Decide(plan.steps(guess), mode), now)
                decision = plan.read(reply)
                if decision is not None:
                    return self._answered(decision, mode)
                guess = self._learn(reply[0])
            raise StoreUnavailable(_SLOW)  # noqa: TRY301 — degrades like any other failure
        except StoreUnavailable as error:
            return self._degraded(plan, mode, error)

    async def adecide(self, plan: Plan, mode: Mode) -> Decision:
        """Decide a plan in one call to the store; see `decide`."""
        if not plan:
            return plan.unlimited()
        now = frozen_now()
        guess = self._guess(plan, now)
        try:
            for _ in range(MAX_GUESSES):
                reply = await self.store.arun(Decide(plan.steps(guess), mode), now)
                decision = plan.read(reply)
                if decision is not None:
                    return self._answered(decision, mode)
                guess = self._learn(reply[0])
            raise StoreUnavailable(_SLOW)  # noqa: TRY301 — degrades like any other failure
        except StoreUnavailable as error:
            return self._degraded(plan, mode, error)

    def _guess(self, plan: Plan, now: int | None) -> int:
        """Guess the store's time, for the edges of calendar limits; the store corrects it where it is off."""
        if now is not None or plan.timeless:
            return now or 0
        return time.time_ns() // 1_000 + self._skew

    def _learn(self, store_now: int) -> int:
        """Remember how far the store's clock is from ours; return its time."""
        self._skew = store_now - time.time_ns() // 1_000
        return store_now

    def _answered(self, decision: Decision, mode: Mode) -> Decision:
        if self._is_down:
            self._is_down = False
            logger.warning("The quota store answers again.")
        if mode == "check":
            for outcome in decision.outcomes:
                if outcome.shadow and not outcome.allowed:
                    logger.info("Shadow rule %r would have refused %r.", outcome.rule, outcome.subject)
        return decision

    def _degraded(self, plan: Plan, mode: Mode, error: StoreUnavailable) -> Decision:
        """Decide without the store."""
        if not self._is_down:
            self._is_down = True
            logger.error("%s. Rules decide by on_unavailable until it answers again.", error)
        default = conf.on_unavailable
        binding = [rule for rule in plan.rules if rule.limits and not rule.shadow]
        denying = [rule for rule in binding if (rule.on_unavailable or default) == "deny"]
        for rule in denying:
            if rule.block:
                return plan.denied(rule)
        local = [rule for rule in plan.rules if rule.limits and (rule.on_unavailable or default) == "local"]
        decision = self._local(plan.only(local), mode) if local else plan.unlimited(degraded=True)
        return decision.joined(plan.denied(denying[0])) if denying else decision

    def _local(self, plan: Plan, mode: Mode) -> Decision:
        """Decide in this process's memory."""
        now = frozen_now()
        moment = MemoryStore.now() if now is None else now
        decision = plan.read(self.local.run(Decide(plan.steps(moment), mode), moment), degraded=True)
        return plan.unlimited(degraded=True) if decision is None else decision


# --- the limiter of the settings --------------------------------------------------------------------------------------

_limiters: dict[tuple[str, str], Limiter] = {}


def get_limiter() -> Limiter:
    """Return the limiter of the settings, made when it is first needed."""
    return _limiter_of(current())


def _limiter_of(settings: QuotaSettings) -> Limiter:
    kind, alias = named = (settings.store, settings.cache)
    limiter = _limiters.get(named)
    if limiter is None:
        store: Store = MemoryStore() if kind == "memory" else RedisStore(alias)
        limiter = _limiters.setdefault(named, Limiter(store))
    return limiter


def _forget(*, setting: str, **_: object) -> None:
    if setting in ("CACHES", "QUOTA"):
        for limiter in _limiters.values():
            limiter.store.close()
            limiter.local.close()
        _limiters.clear()


setting_changed.connect(_forget, dispatch_uid="django_quota.limiter")


# --- plans ------------------------------------------------------------------------------------------------------------


def request_plan(rules: Iterable[Rule], request: HttpRequest) -> Flow:
    """Return (as the flow's result) the plan of a request: the rules that hold for it, with their costs."""
    settings = current()
    plan = Plan(settings.prefix)
    if not settings.enabled:
        return plan
    key: object = None
    subject = ""
    for rule in rules:
        if rule.methods is not None and request.method not in rule.methods:
            continue
        if rule.skip is not None and (yield from call(rule.skip, request)):
            continue
        if rule.key != key:  # stacked rules mostly share their key
            key, subject = rule.key, (yield from subject_flow(rule.key, request))
        cost = check_cost((yield from call(rule.cost, request)), rule.name) if callable(rule.cost) else rule.cost
        plan.add((yield from _with_rates(rule, request)) if rule.dynamic else rule, subject, cost)
    return plan


def _plan(rule_or_rate: RuleOrRate, subject: Subject, cost: int | None, options: dict[str, object]) -> Plan | Flow:
    """Return the plan of one rule for a subject as the verbs take it; a flow of it where a request must be asked."""
    rule = rule_of(rule_or_rate, options)
    if isinstance(subject, str):
        name = named_subject(subject)
    elif (request := _request_of(subject)) is not None:
        return _asked_plan(rule, request, cost)
    elif is_user(subject):
        name = user_subject(subject)
    else:
        raise RuleError(f"{subject!r} is no subject: a text such as 'ip:203.0.113.9', a user or a request would do.")
    if rule.dynamic:
        raise RuleError(f"The rates of rule {rule.name!r} are functions of the request: pass the request as subject.")
    if cost is None and callable(rule.cost):
        raise RuleError(f"The cost of rule {rule.name!r} is a function of the request: pass cost= here.")
    plan = Plan(current().prefix)
    plan.add(rule, name, check_cost(rule.cost if cost is None else cost, rule.name))
    return plan


def _asked_plan(rule: Rule, request: HttpRequest, cost: int | None) -> Flow:
    """Return (as the flow's result) the plan of one rule for a request."""
    subject = yield from subject_flow(rule.key, request)
    if rule.dynamic:
        rule = yield from _with_rates(rule, request)
    asked = cost
    if asked is None:
        asked = (yield from call(rule.cost, request)) if callable(rule.cost) else rule.cost
    plan = Plan(current().prefix)
    plan.add(rule, subject, check_cost(asked, rule.name))
    return plan


def _with_rates(rule: Rule, request: HttpRequest) -> Flow:
    """Return the rule with the rates that its functions of the request give."""
    rates: list[object] = []
    for rate in rule.rates:
        given = (yield from call(rate, request)) if callable(rate) else rate
        rates += given if isinstance(given, (list, tuple)) else (given,)
    try:
        return rule.with_rates(*rates)
    except RateError as error:
        functions = ", ".join(path_of(rate) for rate in rule.rates if callable(rate))
        hint = f"{error.hint} It came from {functions}, for rule {rule.name!r}."
        raise RateError(error.text, error.position, error.problem, hint) from error


def _request_of(subject: Subject) -> HttpRequest | None:
    if isinstance(subject, HttpRequest):
        return subject
    wrapped = getattr(subject, "_request", None)  # Django REST framework's request holds Django's
    return wrapped if isinstance(wrapped, HttpRequest) else None


# --- the verbs --------------------------------------------------------------------------------------------------------


def check(rule_or_rate: RuleOrRate, subject: Subject, cost: int | None = None, **rule_options: object) -> Decision:
    """Take a hit: decide whether it may go on, and count it if so.

    `rule_or_rate`: the name of a rule of the settings, a rate (`"10/m"`, `"10/s; 500/h"`) with rule options such as
    `algorithm="token_bucket"`, or a `Rule`. A rate's state is shared by all that use the same rate for the same
    subject, unless `name=` parts them. `subject`: a text such as `"ip:203.0.113.9"`, a user, or a request, whose
    subject the rule's key tells. `cost`: units, 0 to 10^12; the rule's own (1) where not given.

    Raises `RateError` or another `RuleError` where rule, rate, option or cost is wrong. While Redis does not answer the
    Decision is `degraded`; nothing is raised then.
    """
    plan = answer(_plan(rule_or_rate, subject, cost, rule_options))
    return _decide(plan, "check")


async def acheck(
    rule_or_rate: RuleOrRate, subject: Subject, cost: int | None = None, **rule_options: object
) -> Decision:
    """Take a hit without blocking the event loop; see `check`."""
    plan = await aanswer(_plan(rule_or_rate, subject, cost, rule_options))
    return await _adecide(plan, "check")


def peek(rule_or_rate: RuleOrRate, subject: Subject, cost: int | None = None, **rule_options: object) -> Decision:
    """Say what `check` would, spending nothing and writing nothing; `remaining` is what is left as it stands."""
    plan = answer(_plan(rule_or_rate, subject, cost, rule_options))
    return _decide(plan, "peek")


async def apeek(
    rule_or_rate: RuleOrRate, subject: Subject, cost: int | None = None, **rule_options: object
) -> Decision:
    """Say what `acheck` would; see `peek`."""
    plan = await aanswer(_plan(rule_or_rate, subject, cost, rule_options))
    return await _adecide(plan, "peek")


def refund(rule_or_rate: RuleOrRate, subject: Subject, cost: int | None = None, **rule_options: object) -> Decision:
    """Give a cost back, never more than is used; return what `peek` says afterwards.

    Refund a hit that still counts. A sliding window gives back its oldest hits: so room comes back at once, and what
    stays expires no earlier than the hits that are kept. A hit whose window is over has given its room back already.
    """
    plan = answer(_plan(rule_or_rate, subject, cost, rule_options))
    return _decide(plan, "refund")


async def arefund(
    rule_or_rate: RuleOrRate, subject: Subject, cost: int | None = None, **rule_options: object
) -> Decision:
    """Give a cost back; see `refund`."""
    plan = await aanswer(_plan(rule_or_rate, subject, cost, rule_options))
    return await _adecide(plan, "refund")


def reset(rule_or_rate: RuleOrRate, subject: Subject, **rule_options: object) -> bool:
    """Forget all that a rule has counted for a subject; say whether there was anything.

    Raises `StoreUnavailable` where the store does not answer.
    """
    plan = answer(_plan(rule_or_rate, subject, 0, rule_options))
    return bool(plan) and get_limiter().store.run(Forget(plan.keys)) > 0


async def areset(rule_or_rate: RuleOrRate, subject: Subject, **rule_options: object) -> bool:
    """Forget all that a rule has counted for a subject; see `reset`."""
    plan = await aanswer(_plan(rule_or_rate, subject, 0, rule_options))
    return bool(plan) and await get_limiter().store.arun(Forget(plan.keys)) > 0


def _decide(plan: Plan, mode: Mode) -> Decision:
    settings = current()
    return _limiter_of(settings).decide(plan, mode) if settings.enabled else plan.unlimited()


async def _adecide(plan: Plan, mode: Mode) -> Decision:
    settings = current()
    return await _limiter_of(settings).adecide(plan, mode) if settings.enabled else plan.unlimited()


def decide_request(rules: Iterable[Rule], request: HttpRequest) -> Decision:
    """Decide a request under these rules, in one store call; allowed, with no outcomes, where none of them holds."""
    return _decide(answer(request_plan(rules, request)), "check")


async def adecide_request(rules: Iterable[Rule], request: HttpRequest) -> Decision:
    """Decide a request under these rules; see `decide_request`."""
    return await _adecide(await aanswer(request_plan(rules, request)), "check")
