"""Units that this process takes ahead: it spends them without asking the store.

A process that often checks one subject takes units of its limits together with a hit: a share, which it may spend
during a short lease. Until the share is spent or the lease is over, the process decides without the store. The store
counts the units as of the moment when they were taken, so no window admits more than its limit; see `engine/ahead`.
Every call to the store for the same rule and subject returns the share, except a peek: so a refund, a settlement and a
refusal are based on what was really spent.

What is spent is counted at the share. The metrics and the days take it from there each second, and when the share ends.

A lease is measured from before the call was sent, by a clock that goes on while the machine sleeps. If the answer of a
call is lost, its units are never spent: the store counts them until they expire. A forked process begins without
shares.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from django_quota.core import clock
from django_quota.core.algorithms.fixed_window import FixedWindow
from django_quota.core.clock import SECOND, steady_now
from django_quota.core.decisions import Decision, Outcome, Outcomes
from django_quota.core.flow import Flow
from django_quota.core.forks import register_fork_aware
from django_quota.core.overrides import Override, OverrideTable
from django_quota.engine.answers import Answer
from django_quota.engine.asks import Ask, Asked
from django_quota.engine.codec import Flag
from django_quota.engine.hits import NOTHING_AHEAD, Ahead, Hit
from django_quota.engine.receipts import Settlement
from django_quota.engine.resolving import AskMode, Resolved
from django_quota.limiting.flusher import flusher
from django_quota.limiting.metrics import DecisionMetrics
from django_quota.limiting.unasked import UnaskedHits, place_of_hit

MAX_DEMANDS = 4_096
"""For how many rules and subjects a process counts the demand. Above that it forgets those without a share."""

MIN_DEMAND = 8
"""Units that must be asked for within a lease before a process takes any ahead."""

MARGIN = 100
"""A lease ends a hundredth of itself sooner here, because clocks do not run at quite the same speed."""


@dataclass(slots=True, eq=False)
class _Share:
    """Units that this process has taken ahead."""

    id: str
    left: int
    begins: int
    """From when it may be spent, by `steady_now`: before the call was sent that took it."""
    ends: int
    """Until when it may be spent, by `steady_now`: at most until the end of the day, if its hits count by day."""
    ahead: int
    """How far the clock of the store is ahead of `steady_now`, in microseconds."""
    hit: Hit
    """The hit with which it was taken, with the day on which it is spent."""
    outcomes: Sequence[Outcome]
    """What the store said of the limits when it granted the share."""
    override: Override | None
    """The override under which it was taken."""
    spent: int = 0
    hits: int = 0
    """How many hits spent of it and wait to be counted by day."""
    units: int = 0
    """The units of these hits."""
    parts: int = 0
    """How many of them belong to requests that the limiter counts in the metrics when they are decided."""

    def outcomes_at(self, cost: int, spent: int, now: int) -> list[Outcome]:
        """Return the outcomes of a hit that was spent of the share, as far as this process knows."""
        return [_later(outcome, cost, spent, (now - self.begins) / SECOND) for outcome in self.outcomes]


def _later(outcome: Outcome, cost: int, spent: int, seconds: float) -> Outcome:
    """Return an outcome after units were spent, some seconds later."""
    is_window = isinstance(getattr(outcome.of, "algorithm", None), FixedWindow)
    return outcome._replace(
        cost=cost,
        remaining=max(0, (outcome.remaining or 0) - spent),
        reset_after=max(0.0, outcome.reset_after - seconds) if is_window else outcome.reset_after,
        next_after=None if outcome.next_after is None else max(0.0, outcome.next_after - seconds),
    )


_Asking = tuple[Asked, str, int, str, bool]
"""What an `Ask` has."""

_Part = tuple[_Share, int, int, int]
"""A share, what a hit spent of it, what was spent of it after that, and when, by `steady_now`."""


class Parts(list[_Part]):
    """What was spent for one request, of all the shares that it needs. Called, it returns the outcomes."""

    __slots__ = ()

    def __call__(self) -> Outcomes:
        return tuple([each for share, *spent in self for each in share.outcomes_at(*spent)])

    @property
    def moment(self) -> int:
        """When it was spent, by the clock of the store (microseconds)."""
        share, _, _, now = self[0]
        return now + share.ahead

    def answer(self, asks: Sequence[Ask]) -> Answer:
        """Return the answer to what was asked."""
        moment = self.moment
        hits = [share.hit._replace(cost=cost) for share, cost, *_ in self]
        shares = [share.id for share, *_ in self]
        decision = Decision.approximately_allowed(self)
        return Answer(Resolved(asks, asks, moment), decision, hits, spent_at=moment, shares=shares)


@dataclass(slots=True, eq=False)
class _Entry:
    """What this process knows of a rule and a subject."""

    rule: Asked
    """It keeps the rule alive, so that no other one gets its `id`."""
    since: int
    """Since when the demand is counted, by `steady_now`."""
    asked: int = 0
    """Units that were asked for since then."""
    share: _Share | None = None
    is_taking: bool = False
    """Whether a call that takes a share has not been answered yet; then no other call takes one."""


class _Question(NamedTuple):
    """The hits of one call to the store: some return a share of this process, and some ask for a new one."""

    hits: Sequence[Hit]
    taking: Mapping[int, _Entry]
    """The entries that ask for a share, by the index of their hit."""
    began: int
    """When the call began, by `steady_now`."""


class Prefetch:
    """The shares of this process. Any thread may use it."""

    def __init__(self, unasked: UnaskedHits, metrics: DecisionMetrics, number_of_workers: Callable[[], int]) -> None:
        self._unasked = unasked
        self._metrics = metrics
        self._number_of_workers = number_of_workers
        self.after_fork()
        register_fork_aware(self)
        unasked.collect = metrics.collect = self.count_waiting

    def after_fork(self) -> None:
        """Start empty in a forked process: the shares are the parent's."""
        self._lock = threading.RLock()  # a signal handler may check a limit while its thread spends
        self._process = secrets.token_hex(6)
        self._numbers = itertools.count(1)
        self.table: dict[tuple[int, str], _Entry] = {}
        """By the `id` of the rule as it was asked, and the subject."""
        self._dropped = -SECOND
        """When subjects without a share were forgotten last, by `steady_now`."""

    # --- spending -----------------------------------------------------------------------------------------------------

    def spend(self, asks: Iterable[_Asking], overrides: OverrideTable, *, decides: bool) -> Parts | None:
        """Spend what is asked of the shares of this process; None, and nothing is spent, if the store must decide.

        `asks`: at least one, and no estimates. `decides`: whether this decides the whole request, of one rule; then the
        metrics count it.
        """
        now, find, parts = steady_now(), self.table.get, Parts()
        lock = self._lock
        lock.acquire()  # a `with` takes twice as long
        try:
            for rule, subject, cost, _, _ in asks:
                entry = find((id(rule), subject))
                share = None if entry is None else entry.share
                if (
                    entry is None
                    or share is None
                    or not 0 < cost <= share.left
                    or not share.begins <= now < share.ends
                    or (overrides.by_pk and overrides.find(rule.name, subject, clock.now()) is not share.override)
                ):
                    self._take_back(parts)
                    return None
                share.left -= cost
                share.spent = spent = share.spent + cost
                share.hits += 1
                share.units += cost
                if not decides:
                    share.parts += 1
                parts.append((share, cost, spent, now))
        finally:
            lock.release()
        if not flusher.is_woken:
            flusher.wake()
        return parts

    @staticmethod
    def _take_back(parts: Sequence[_Part]) -> None:
        """Undo what a request of several rules has spent of its first shares: it needs all."""
        for share, cost, _, _ in parts:
            share.left += cost
            share.spent -= cost
            share.hits -= 1
            share.units -= cost
            share.parts -= 1

    def count_waiting(self) -> None:
        """Count what was spent since the last time, in the metrics and by day."""
        with self._lock:
            for entry in self.table.values():
                self._count(entry.share)

    def _count(self, share: _Share | None) -> None:
        if share is None or not share.hits:
            return
        if share.hits > share.parts:
            self._metrics.count_spent(share.begins + share.ahead, share.hit.compiled.spent, share.hits - share.parts)
        if share.hit.day is not None:
            self._unasked.add(place_of_hit(share.hit), {"a": share.hits, "u": share.units - share.hits})
        share.hits = share.units = share.parts = 0

    # --- asking the store ---------------------------------------------------------------------------------------------

    def around_flow(
        self,
        resolved: Resolved,
        hits: Sequence[Hit],
        mode: AskMode | Settlement,
        overrides: OverrideTable,
        ask: Callable[[Sequence[Hit]], Flow[Answer]],
    ) -> Flow[Answer]:
        """Ask the store, return the shares of this process with the question, and keep what it grants."""
        if mode == "peek":
            return (yield from ask(hits))
        question = self._begin(resolved, hits, mode)
        answer = None
        try:
            answer = yield from ask(question.hits)
        finally:
            self._end(question, answer, overrides)
        return answer

    def _begin(self, resolved: Resolved, asked_hits: Sequence[Hit], mode: AskMode | Settlement) -> _Question:
        """Return the question. From now on nobody spends of the shares that it returns."""
        now, asked = steady_now(), {ask.place: ask for ask in resolved.asked}
        is_single = len(asked) == len(resolved.asked)  # several rules of one name share a hit, and take nothing
        hits, taking = list(asked_hits), dict[int, _Entry]()
        found: list[tuple[int, _Entry, int]] = []
        with self._lock:
            for number, hit in enumerate(hits):
                if hit.ahead is not None and is_single:
                    entry = self._entry(asked[hit.place], now)
                    share, entry.share = entry.share, None
                    if share is not None:
                        entry.asked += share.spent
                        self._count(share)
                    wish = self._wish(entry, hit, now) if mode == "check" else 0
                    hits[number] = hit._replace(ahead=NOTHING_AHEAD if share is None else Ahead(share.id, share.spent))
                    found.append((number, entry, wish))
            # Only a request whose every rule has a share can do without the store.
            is_whole = len(found) == len(hits) == len(asked) and not any(ask.is_estimate for ask in resolved.asked)
            if is_whole and all(wish and not entry.is_taking for _, entry, wish in found):
                for number, entry, wish in found:
                    hits[number] = self._taking(hits[number], wish)
                    entry.is_taking = True
                    taking[number] = entry
        return _Question(hits, taking, now)

    def _taking(self, hit: Hit, wish: int) -> Hit:
        """Return a hit that wishes to take so many units."""
        ahead = (hit.ahead or NOTHING_AHEAD)._replace(
            new_id=f"{self._process}{next(self._numbers):x}",
            wish=wish,
            divisor=2 * self._number_of_workers(),
            lease=hit.compiled.lease,
        )
        return hit._replace(ahead=ahead)

    def _entry(self, ask: Ask, now: int) -> _Entry:
        key = id(ask.rule), ask.subject
        entry = self.table.get(key)
        if entry is None:
            entry = _Entry(ask.rule, now)
            if len(self.table) >= MAX_DEMANDS and not 0 <= now - self._dropped < SECOND:
                self._drop_idle(now)
            if len(self.table) < MAX_DEMANDS:
                self.table[key] = entry
        return entry

    def _drop_idle(self, now: int) -> None:
        """Forget the subjects without a share; at most once a second, since it looks at all."""
        self._dropped = now
        kept = {}
        for key, entry in self.table.items():
            if entry.is_taking or (entry.share is not None and entry.share.begins <= now < entry.share.ends):
                kept[key] = entry
            else:
                self._count(entry.share)
        self.table = kept

    def _wish(self, entry: _Entry, hit: Hit, now: int) -> int:
        """Count a hit; return how many units to take: what a lease needs at the present pace, at most twice as many."""
        if not hit.cost:
            return 0
        entry.asked += hit.cost
        lease, asked, elapsed = hit.compiled.lease, entry.asked, max(1, now - entry.since)
        if elapsed > lease:
            entry.since, entry.asked = now, 0
        wish = asked * lease // elapsed
        return min(wish, 2 * asked) if min(wish, asked) >= MIN_DEMAND else 0

    def _end(self, question: _Question, answer: Answer | None, overrides: OverrideTable) -> None:
        """Keep what the store has granted."""
        with self._lock:
            for entry in question.taking.values():
                entry.is_taking = False
            if answer is None or answer.reply is None:
                return
            reply = answer.reply
            flags = {(hit, flag): value for hit, flag, value in reply.flags if flag in (Flag.GRANTED, Flag.LEASED)}
            for number, entry in question.taking.items():
                granted = flags.get((number, Flag.GRANTED))
                if granted is None:
                    continue
                hit, lease = answer.hits[number], flags[number, Flag.LEASED]
                ahead, ends = reply.now - question.began, question.began + lease - lease // MARGIN
                entry.share = _Share(
                    id=hit.ahead.new_id if hit.ahead else "",
                    left=granted,
                    begins=question.began,
                    ends=ends if hit.day is None else min(ends, hit.day.ends - ahead),
                    ahead=ahead,
                    hit=hit,
                    outcomes=[each for each in answer.decision.outcomes if (each.rule, each.subject) == hit.place],
                    override=overrides.find(entry.rule.name, hit.subject, answer.resolved.now),
                )
                entry.since, entry.asked = question.began, 0

    # --- what ends shares ---------------------------------------------------------------------------------------------

    def give_back(self, settlement: Settlement) -> Settlement:
        """Give units back to the shares of which they were spent; return what the store must still settle."""
        receipt = settlement.receipt
        taken = dict(receipt.taken)
        with self._lock:
            live = {entry.share.id: entry.share for entry in self.table.values() if entry.share is not None}
            for ask in receipt.asks:
                place = ask.place
                hit = taken.get(place)
                share = live.get(hit.share) if hit is not None and hit.share else None
                units = ask.cost - settlement.actual[place]
                if hit is not None and share is not None and 0 <= units <= share.spent:
                    share.left += units
                    share.spent -= units
                    taken[place] = hit._replace(limits={}, share="")  # what the day counted is settled as for others
        return settlement._replace(receipt=receipt._replace(taken=taken))

    def forget(self, subjects: Collection[str] | None = None) -> None:
        """End the shares of these subjects: what was spent of them is forgiven. None: forget all there is."""
        with self._lock:
            if subjects is None:
                self.count_waiting()
                self.table.clear()
                return
            for (_, subject), entry in self.table.items():
                if subject in subjects and entry.share is not None:
                    entry.share.left = entry.share.spent = 0


def takes_ahead(hits: Sequence[Hit]) -> bool:
    """Say whether units may be taken ahead of any of these hits."""
    return any(map(_ahead_of, hits))


_ahead_of = attrgetter("ahead")
