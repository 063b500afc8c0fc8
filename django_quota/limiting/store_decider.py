"""The plain path of a plan: one call to the store, and its reply becomes a Decision."""

from __future__ import annotations

import logging

from django_quota.core.clock import MAX_GUESSES, frozen_now, machine_now
from django_quota.core.decisions import Decision
from django_quota.core.errors import StoreUnavailable
from django_quota.core.flow import Flow, IOCall
from django_quota.engine.plans import Plan, PlanMode
from django_quota.signals import Announcement, announce, banned, near_limit, refused
from django_quota.stores.base import Store

logger = logging.getLogger("django_quota")

SIGNALS = {"refused": refused, "banned": banned, "near": near_limit}
"""The signal of each event in a reply."""

_OTHER_TIME = "each answer came in another day or another period of a calendar limit"
"""Why a plan is given up if each answer asks to send it again."""


class StoreDecider:
    """Decides plans by one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._skew = 0
        """Microseconds by which the store's clock is ahead of ours."""

    def decision_flow(self, plan: Plan, mode: PlanMode) -> Flow[Decision]:
        """Decide a plan and send the signals of the reply. Raises `StoreUnavailable` if the store does not answer."""
        store, now = self._store, frozen_now()
        guess = self._guess(plan, now)
        for _ in range(MAX_GUESSES):
            reply = yield IOCall(store.run, store.arun, plan.operation(guess, mode), now)
            decision = plan.read(reply, is_last=mode == "check")
            if decision is not None:
                break
            guess = self._learn_clock(reply[0])
        else:
            raise StoreUnavailable(_OTHER_TIME)
        if plan.has_groups and mode == "check":
            _log_shadows(decision)
        announcements = _announcements(plan, decision)
        if announcements:
            yield announce(announcements)
        return decision

    def _guess(self, plan: Plan, now: int | None) -> int:
        """Guess the time of the store, which calendar limits need. A wrong guess costs another call."""
        if now is not None or plan.timeless:
            return now or 0
        return machine_now() + self._skew

    def _learn_clock(self, store_now: int) -> int:
        self._skew = store_now - machine_now()
        return store_now


def _log_shadows(decision: Decision) -> None:
    """Log what shadow rules would have refused."""
    for outcome in decision.outcomes:
        if outcome.shadow and not outcome.allowed:
            logger.info("Shadow rule %r would have refused %r.", outcome.rule, outcome.subject)


def _announcements(plan: Plan, decision: Decision) -> list[Announcement]:
    """Return the signals that the reply calls for."""
    announcements: list[Announcement] = []
    for what, hit, value in plan.emitted():
        values = {"rule": hit.rule, "subject": hit.subject, "decision": decision}
        announcements.append((SIGNALS[what], {**values, "share": value / 1000} if what == "near" else values))
    return announcements
