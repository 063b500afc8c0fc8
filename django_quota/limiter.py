"""The limiter: a plan becomes one store call, the reply a Decision. No HTTP, no models.

Everything that can be decided is decided in flows and plans, once; the sync and the async verbs differ in how they
wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Unpack

from django.core.signals import setting_changed

from django_quota import overrides
from django_quota.clock import frozen_now
from django_quota.conf import QuotaSettings, conf, current
from django_quota.decisions import Decision, told
from django_quota.exceptions import RuleError, StoreFull, StoreUnavailable
from django_quota.outage_telling import TellingStore
from django_quota.outages import Outages, ongoing
from django_quota.planning import RuleOrRate, Subject, plan_of
from django_quota.plans import Plan, forget_published
from django_quota.rules import CallOptions
from django_quota.signals import Announcement, asend, banned, near_limit, refused, send
from django_quota.stores.base import Store
from django_quota.stores.cluster_store import store_of
from django_quota.stores.errands import Watch
from django_quota.stores.memory import MemoryStore
from django_quota.subjects import Ask, Flow, aanswer, answer
from django_quota.tallies import Tally
from django_quota.workers import Workers, part_of

logger = logging.getLogger("django_quota")

MAX_GUESSES = 5
"""How often the store is asked for one plan, where its clock leaves the edges of a calendar limit each time."""

MAX_TRIPS = 1_000
"""How often it is asked for one plan at most, where each time there are more holds that are due."""

SIGNALS = {"refused": refused, "banned": banned, "near": near_limit}
"""The signal of each thing that a store tells."""

_COUNTED = ("check", "reserve")
"""The modes in which a decision is one of those that are counted."""

_SPENDING = (*_COUNTED, "take")

_WITHOUT_HOLDS = {"reserve": "check", "settle": "peek"}

_SLOW = "its answers take longer than the periods of a calendar limit last"


class Limiter:
    """Decides plans on a store, and by each rule's `on_unavailable` while the store does not answer."""

    def __init__(self, store: Store, tally: Tally | None = None, workers: Workers | None = None) -> None:
        self.store = store
        self.workers = workers
        """Knows how many processes share the limits; None: this one has them alone."""
        self.tally = tally
        """What counts its decisions for the overview; None: nobody does."""
        self.local = MemoryStore(most=conf.memory_keys)
        """Decides for rules that say `on_unavailable="local"`, and by default on a full Redis: its part."""
        self.outages = Outages(is_whole=lambda: self.store.is_whole)
        self.telling = TellingStore(self)
        """The store for services that raise `StoreUnavailable`."""
        self._skew = 0

    def decide(self, plan: Plan, mode: str) -> Decision:
        """Decide a plan in one call to the store."""
        if not plan:
            return plan.unlimited()
        now = frozen_now()
        guess = self._guess(plan, now)
        try:
            guesses, trips = 0, 0
            while guesses < MAX_GUESSES and trips < MAX_TRIPS:
                reply = self.store.run(plan.operation(guess, mode), now)
                decision = plan.read(reply)
                if decision is not None:
                    send(self._answered(plan, reply, decision, mode), Limiter)
                    return decision
                guesses, trips = guesses + (not plan.revise(reply)), trips + 1
                guess = self._learn(reply[0])
            raise StoreUnavailable(_SLOW)  # noqa: TRY301 — degrades like any other failure
        except StoreFull:
            return plan.uncounted(plan.rules)
        except StoreUnavailable as error:
            send(self.outages.failed(error, plan.subjects), Limiter)
            return self._degraded(plan, mode, error)

    async def adecide(self, plan: Plan, mode: str) -> Decision:
        """Decide a plan in one call to the store; see `decide`."""
        if not plan:
            return plan.unlimited()
        now = frozen_now()
        guess = self._guess(plan, now)
        try:
            guesses, trips = 0, 0
            while guesses < MAX_GUESSES and trips < MAX_TRIPS:
                reply = await self.store.arun(plan.operation(guess, mode), now)
                decision = plan.read(reply)
                if decision is not None:
                    if announcements := self._answered(plan, reply, decision, mode):
                        await asend(announcements, Limiter)
                    return decision
                guesses, trips = guesses + (not plan.revise(reply)), trips + 1
                guess = self._learn(reply[0])
            raise StoreUnavailable(_SLOW)  # noqa: TRY301 — degrades like any other failure
        except StoreFull:
            return plan.uncounted(plan.rules)
        except StoreUnavailable as error:
            await asend(self.outages.failed(error, plan.subjects), Limiter)
            return self._degraded(plan, mode, error)

    def in_turn(self, first: Plan, then: Callable[[], Flow]) -> Flow:
        """Decide two plans of one request (as the flow's result): `then` makes the second where the first allows it.

        All or nothing, as if they were one: where the second refuses, what the first spent is given back. Whoever comes
        in between may find less room than there is, never more. Where the second cannot be made, since a body is broken
        or too large, the request fails and what the first spent stays counted. So does what was decided without the
        store.
        """
        decision = yield Ask(partial(self.decide, first, "take"), partial(self.adecide, first, "take"))
        if decision.blocked:
            return decision
        last = yield from then()
        decided = yield Ask(partial(self.decide, last, "check"), partial(self.adecide, last, "check"))
        if decided.blocked:
            decision = yield from self._given_back(first, decision)
        else:
            yield from self._confirmed(first, decision)
        return decision.joined(decided)

    def _confirmed(self, plan: Plan, decision: Decision) -> Flow:
        """Count a plan that was taken for the time being, for the day and the overview: now it stands."""
        if self.tally is not None and plan.moment is not None:
            self.tally.count(plan.moment, plan.hits, decision)
        operation = plan.day_counting()
        if operation is None:
            return
        try:
            run = (operation, frozen_now())
            yield Ask(partial(self.store.run, *run), partial(self.store.arun, *run))
        except StoreUnavailable as error:
            logger.warning("A request that has passed is not counted for the day, all or in part: %s", error)

    def _given_back(self, plan: Plan, decision: Decision) -> Flow:
        """Give back what a plan spent; return (as the flow's result) the decision on it as it is then."""
        try:
            operation = plan.compensation()
            if operation is None:
                return decision
            run = (operation, frozen_now())
            return plan.compensated((yield Ask(partial(self.store.run, *run), partial(self.store.arun, *run))))
        except StoreUnavailable as error:
            logger.warning("What a request took of a part of its limits stays taken: %s", error)
            return decision

    def _guess(self, plan: Plan, now: int | None) -> int:
        """Guess the store's time, for the edges of calendar limits; the store corrects it where it is off."""
        if now is not None or plan.timeless:
            return now or 0
        return time.time_ns() // 1_000 + self._skew

    def _learn(self, store_now: int) -> int:
        """Remember how far the store's clock is from ours; return its time."""
        self._skew = store_now - time.time_ns() // 1_000
        return store_now

    def _answered(self, plan: Plan, reply: list[int], decision: Decision, mode: str) -> list[Announcement]:
        """Note that the store has answered; return what is to be announced."""
        announcements: list[Announcement] = []
        if self.outages.is_on:
            announcements = self.outages.answered(wrote=mode.startswith(_SPENDING) and plan.has_spent)
        # What is taken for the time being is counted when it is known to stand.
        if self.tally is not None and (mode.startswith(_COUNTED) or (mode == "take" and decision.blocked)):
            self.tally.count(reply[0], plan.hits, decision)
        if mode in ("check", "take"):
            for outcome in decision.outcomes:
                if outcome.shadow and not outcome.allowed:
                    logger.info("Shadow rule %r would have refused %r.", outcome.rule, outcome.subject)
        for what, hit in told(reply, plan.hits, len(decision.outcomes)):
            announcements.append((SIGNALS[what], {"rule": hit.rule, "subject": hit.subject, "decision": decision}))
        return announcements

    def _degraded(self, plan: Plan, mode: str, failure: StoreUnavailable) -> Decision:
        """Decide without the store, which has failed like this."""
        default = current().without_store(is_full=failure.out_of_memory)
        binding = [rule for rule in plan.rules if rule.limits and not rule.shadow]
        denying = [rule for rule in binding if (rule.on_unavailable or default) == "deny"]
        for rule in denying:
            if rule.block:
                return plan.denied(rule)
        local = [rule for rule in plan.rules if rule.limits and (rule.on_unavailable or default) == "local"]
        workers = 1 if self.workers is None else self.workers.number
        divided = partial(part_of, workers=workers)
        try:
            decision = self._local(plan.only(local, divided), mode) if local else plan.unlimited(degraded=True)
        except StoreFull:
            decision = plan.uncounted(local)
        return decision.joined(plan.denied(denying[0])) if denying else decision

    def _local(self, plan: Plan, mode: str) -> Decision:
        """Decide in this process's memory."""
        now = frozen_now()
        moment = MemoryStore.now() if now is None else now
        # A hold is the store's business: here its estimate is a hit like any other, and stays.
        mode = _WITHOUT_HOLDS.get(mode.partition(" ")[0], mode)
        decision = plan.read(self.local.run(plan.operation(moment, mode), moment), degraded=True)
        if decision is None:
            raise RuntimeError("a plan without overrides and holds, at its own moment, was stale")
        return decision


# --- the limiter of the settings --------------------------------------------------------------------------------------

_limiters: dict[tuple[str, str], Limiter] = {}


def get_limiter() -> Limiter:
    """Return the limiter of the settings, made when it is first needed."""
    return limiter_of(current())


def limiter_of(settings: QuotaSettings) -> Limiter:
    """Return the limiter of these settings; see `get_limiter`."""
    kind, alias = named = (settings.store, settings.cache)
    limiter = _limiters.get(named)
    if limiter is None:
        tally, watch, workers = Tally(), Watch(_overrides_turn, _overrides_due), Workers()
        in_memory = kind == "memory"
        store = MemoryStore(most=settings.memory_keys) if in_memory else store_of(alias, watch, tally, workers)
        tally.carried_to(store)
        limiter = _limiters.setdefault(named, Limiter(store, tally, workers))
    return limiter


def note_failure(error: StoreUnavailable) -> None:
    """Tell of an outage by an error that somebody is about to answer, where it has not been told."""
    if not (isinstance(error, StoreFull) or error.only_here):  # which are told of where they are met
        send(get_limiter().outages.failed(error, []), Limiter)


def _overrides_turn() -> str:
    """Return the key whose absence says that nobody has looked lately whether Redis holds all overrides."""
    return overrides.turn_key(current().prefix) if overrides.on_due else ""


def _overrides_due() -> None:
    if overrides.on_due is not None:
        overrides.on_due()


def clear_memory() -> None:
    """Forget all that this process counts in its own memory. Redis is not asked, and keeps what it has."""
    for limiter in _limiters.values():
        limiter.local.clear()
        if isinstance(limiter.store, MemoryStore):
            limiter.store.clear()
            if limiter.tally is not None:
                limiter.tally.forget()
    forget_published()


def _forget(*, setting: str, **_: object) -> None:
    if setting in ("CACHES", "QUOTA"):
        for limiter in _limiters.values():
            ongoing.discard(limiter.outages)
            limiter.store.close()
            limiter.local.close()
        _limiters.clear()


setting_changed.connect(_forget, dispatch_uid="django_quota.limiter")


# --- the verbs --------------------------------------------------------------------------------------------------------


def check(
    rule_or_rate: RuleOrRate,
    subject: Subject,
    cost: int | None = None,
    *,
    value: object = None,
    **rule_options: Unpack[CallOptions],
) -> Decision:
    """Take a hit: decide whether it may go on, and count it if so.

    `rule_or_rate`: the name of a rule of the settings, a rate (`"10/m"`, `"10/s; 500/h"`) with rule options such as
    `algorithm="token_bucket"`, or a `Rule`. A rate's state is shared by all that use the same rate for the same
    subject, unless `name=` parts them. `subject`: a text such as `"ip:203.0.113.9"`, a user, or a request, whose
    subject the rule's key tells. `cost`: units, 0 to 10^12; the rule's own (1) where not given. `value`: what is
    counted under a rule with `distinct=`: a text, bytes or a whole number.

    Raises `RateError` or another `RuleError` where rule, rate, option or cost is wrong. While Redis does not answer the
    Decision is `degraded`; nothing is raised then.
    """
    plan = answer(plan_of(rule_or_rate, subject, cost, value, rule_options))
    return decide_plan(plan, "check")


async def acheck(
    rule_or_rate: RuleOrRate,
    subject: Subject,
    cost: int | None = None,
    *,
    value: object = None,
    **rule_options: Unpack[CallOptions],
) -> Decision:
    """Take a hit without blocking the event loop; see `check`."""
    plan = await aanswer(plan_of(rule_or_rate, subject, cost, value, rule_options))
    return await adecide_plan(plan, "check")


def peek(
    rule_or_rate: RuleOrRate,
    subject: Subject,
    cost: int | None = None,
    *,
    value: object = None,
    **rule_options: Unpack[CallOptions],
) -> Decision:
    """Say what `check` would, spending nothing and writing nothing; `remaining` is what is left as it stands."""
    plan = answer(plan_of(rule_or_rate, subject, cost, value, rule_options))
    return decide_plan(plan, "peek")


async def apeek(
    rule_or_rate: RuleOrRate,
    subject: Subject,
    cost: int | None = None,
    *,
    value: object = None,
    **rule_options: Unpack[CallOptions],
) -> Decision:
    """Say what `acheck` would; see `peek`."""
    plan = await aanswer(plan_of(rule_or_rate, subject, cost, value, rule_options))
    return await adecide_plan(plan, "peek")


def refund(
    rule_or_rate: RuleOrRate, subject: Subject, cost: int | None = None, **rule_options: Unpack[CallOptions]
) -> Decision:
    """Give a cost back, never more than is used; return what `peek` says afterwards.

    Refund a hit that still counts. A sliding window gives back its oldest hits: so room comes back at once, and what
    stays expires no earlier than the hits that are kept. A hit whose window is over has given its room back already.
    A token bucket refills all the time: refund soon after the hit, or `reserve`, which knows how much of it is left. A
    leaky bucket gives nothing back: whoever stands behind the hit has been told when to leave.

    Raises `RuleError` for a rule with `distinct=`: the value may have been used before.
    """
    plan = _giving_back(answer(plan_of(rule_or_rate, subject, cost, None, rule_options)))
    return decide_plan(plan, "refund")


async def arefund(
    rule_or_rate: RuleOrRate, subject: Subject, cost: int | None = None, **rule_options: Unpack[CallOptions]
) -> Decision:
    """Give a cost back; see `refund`."""
    plan = _giving_back(await aanswer(plan_of(rule_or_rate, subject, cost, None, rule_options)))
    return await adecide_plan(plan, "refund")


def _giving_back(plan: Plan) -> Plan:
    for rule in plan.rules:
        if rule.distinct is not None:
            raise RuleError(f"Rule {rule.name!r} counts different values: reset() forgets them, refund() cannot.")
    return plan


def reset(rule_or_rate: RuleOrRate, subject: Subject, **rule_options: Unpack[CallOptions]) -> bool:
    """Forget all that a rule has counted for a subject; say whether there was anything.

    It lifts a ban; an override stays. Raises `StoreUnavailable` where the store does not answer.
    """
    plan = answer(plan_of(rule_or_rate, subject, 0, None, rule_options))
    if not plan or not current().enabled:
        return False
    decide_plan(plan, "peek")  # brings the limits of an override into the plan
    return bool(get_limiter().telling.run(plan.forgetting()) > 0)


async def areset(rule_or_rate: RuleOrRate, subject: Subject, **rule_options: Unpack[CallOptions]) -> bool:
    """Forget all that a rule has counted for a subject; see `reset`."""
    plan = await aanswer(plan_of(rule_or_rate, subject, 0, None, rule_options))
    if not plan or not current().enabled:
        return False
    await adecide_plan(plan, "peek")  # brings the limits of an override into the plan
    return bool(await get_limiter().telling.arun(plan.forgetting()) > 0)


def decide_plan(plan: Plan, mode: str) -> Decision:
    """Decide a plan on the store of the settings; all is allowed where `ENABLED` is false."""
    settings = current()
    return limiter_of(settings).decide(plan, mode) if settings.enabled else plan.unlimited()


async def adecide_plan(plan: Plan, mode: str) -> Decision:
    """Decide a plan; see `decide_plan`."""
    settings = current()
    return await limiter_of(settings).adecide(plan, mode) if settings.enabled else plan.unlimited()
