"""What an operation comes to whose keys lie in several places, such as the slots of a Redis Cluster. Pure.

A spread yields operations of one place each, all at once to be done, takes their replies, and returns the reply of the
whole. So a sync and an async driver do the same, and the memory store can show that it is right.

A plan over several places takes its parts in turn, and undoes what an earlier one took where a later one refuses: it
never looks first and spends later. Between the two, others may find less room than there is, never more. A transfer
between two places notes what is on the way, so that others can carry it on; see `operations.transfers`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import singledispatch
from itertools import pairwise
from typing import Any

from django_quota.algorithms import NEVER, NUMBERS, Step
from django_quota.exceptions import QuotaError, StoreUnavailable
from django_quota.operations.announce import Announce, News
from django_quota.operations.base import Operation
from django_quota.operations.counters import Transfer
from django_quota.operations.decide import ALLOWED, FAR_LOG, REFUSED, STALE, Decide, Log
from django_quota.operations.forget import Forget
from django_quota.operations.hits import Hit
from django_quota.operations.look import LiftBans
from django_quota.operations.standing import BAN_BEGAN, BAN_LEVEL, EXEMPT, KNOWN_BEFORE, NEAR_TOLD, REFUSAL_TOLD
from django_quota.operations.sweep import Sweep
from django_quota.operations.transfers import moved
from django_quota.operations.undo import Mark, Spent, counts_values, is_noted, undoing

logger = logging.getLogger("django_quota")

Home = Callable[[str], object]
"""Returns where a key lies."""

Spread = Generator[Sequence[Operation], list[Any], Any]


@singledispatch
def spread(operation: Operation, home: Home) -> Spread:  # noqa: ARG001 — others part by it
    """Return the spread of an operation; one that is not named here has its keys in one place."""
    (reply,) = yield [operation]
    return reply


# --- decisions --------------------------------------------------------------------------------------------------------


@spread.register
def _decide(operation: Decide, home: Home) -> Spread:
    hits, log = operation.hits, operation.log
    if len(hits) == 1 or len({home(hit.standing) for hit in hits}) == 1:  # nearly always
        (reply,) = yield [operation if log is None else Decide(hits, operation.mode, FAR_LOG)]
        if reply[1] == STALE or len(reply) == 2 + NUMBERS * sum(len(hit.steps) for hit in hits):
            return reply
        replies = [reply]
        parts = _parts(hits, home)
    else:
        parts = _parts(hits, home)
        replies = yield from _joined(parts, operation.mode, log)
    reply = _whole(parts, replies, hits, operation.mode)
    if log is not None and reply[1] != STALE:
        told = [news for part, its_reply in zip(parts, replies, strict=True) for news in _news(part, its_reply)]
        yield from _announced(log, told)
    return reply


class _Part:
    """The hits of a plan that lie in one place."""

    def __init__(self) -> None:
        self.hits: list[Hit] = []
        self.numbers: list[int] = []
        """Which they are in the plan."""

    def asked(self, mode: str, log: Log | None) -> Decide:
        """Return the operation that decides them."""
        if mode.startswith("undo "):  # it says of each hit what that spent
            name, *spent = mode.split(" ")
            mode = " ".join([name, *(spent[number] for number in self.numbers)])
        return Decide(self.hits, mode, None if log is None else FAR_LOG)


def _parts(hits: Sequence[Hit], home: Home) -> list[_Part]:
    parts: dict[object, _Part] = {}
    for number, hit in enumerate(hits):
        part = parts.setdefault(home(hit.standing), _Part())
        part.hits.append(hit)
        part.numbers.append(number)
    return sorted(parts.values(), key=_is_undone_last)


def _is_undone_last(part: _Part) -> tuple[bool, bool, bool]:
    """Order parts by what undoing them may leave behind, so that it is seldom done: those that leave most come last."""
    steps = [step for hit in part.hits for step in hit.steps]
    return (
        any(step.limit.algorithm.name == "leaky_bucket" for step in steps),
        any(hit.day is not None for hit in part.hits),
        any(counts_values(step) for step in steps),
    )


def _in_turn(part: _Part, mode: str, log: Log | None) -> Spread:
    (reply,) = yield [part.asked(mode, log)]
    return reply


def _joined(parts: Sequence[_Part], mode: str, log: Log | None) -> Spread:
    """Return (as the spread's result) the replies of the parts, as if they had been decided in one."""
    if mode not in ("check", "take"):
        return (yield [part.asked(mode, log) for part in parts])
    replies: list[Any] = []
    try:
        for part in parts:
            # What the last one of a check takes is never undone.
            reply = yield from _in_turn(part, mode if part is parts[-1] else "take", log)
            replies.append(reply)
            if reply[1] != ALLOWED:
                break
    except QuotaError:
        for part, reply in zip(parts, replies, strict=False):
            yield from _undone(part, reply)
        raise
    if replies[-1][1] == ALLOWED:
        settled = len(parts) - 1 if mode == "check" else 0  # a whole plan that may be undone counts nothing yet
        yield from _counted(parts[:settled], replies[:settled])
        return replies
    last = replies[-1]
    for number, reply in enumerate(replies[:-1]):
        replies[number] = yield from _undone(parts[number], reply)
    if last[1] != STALE:
        for part in parts[len(replies) :]:
            reply = yield from _told_late(part, log, last[0])
            replies.append(reply)
    return replies


def _counted(parts: Sequence[_Part], replies: Sequence[Any]) -> Spread:
    """Count the hits of these parts for the day."""
    asked = [day_counting(part.hits, reply) for part, reply in zip(parts, replies, strict=True)]
    counting = [operation for operation in asked if operation is not None]
    if not counting:
        return
    try:
        yield counting
    except StoreUnavailable as error:
        logger.warning("A plan that has passed is not counted for the day, all or in part: %s", error)


def day_counting(hits: Sequence[Hit], reply: Sequence[int]) -> Decide | None:
    """Return the operation that counts hits for the day, since their whole plan has passed; None where none counts.

    A "take" does not count them: a count that is taken back could have been rolled up by then. `reply`: the one to
    their `Decide` in the mode "take".
    """
    passed = zip(hits, _answers(hits, reply), strict=True)
    counted = [hit for hit, answers in passed if hit.day and hit.cost and all(ok for ok, *_ in answers)]
    return Decide(counted, "count") if counted else None


def _undone(part: _Part, reply: Sequence[int]) -> Spread:
    """Undo what a part has taken, and return its reply as it is then. Each by itself: what fails holds up no other."""
    try:
        undo, chosen = compensation(part.hits, reply)
        if undo is None:
            return reply
        (found,) = yield [undo]
    except StoreUnavailable as error:
        logger.warning("What a plan took of a part of its limits stays taken: %s", error)
        return reply
    return compensated(part.hits, reply, chosen, found)


def _told_late(part: _Part, log: Log | None, now: int) -> Spread:
    """Tell a part that its plan is refused, and return its reply; where none comes, one that promises nothing."""
    try:
        (reply,) = yield [part.asked("late", log)]
    except StoreUnavailable as error:
        logger.warning("A part of a plan that is refused does not say how it stands: %s", error)
        return [now, REFUSED, *_flat([[(1, 0, 0, 0, NEVER)] * len(hit.steps) for hit in part.hits])]
    return reply


def compensation(
    hits: Sequence[Hit], reply: Sequence[int], *, was_announced: bool = False
) -> tuple[Decide | None, list[int]]:
    """Return the operation that gives back what hits spent, and which of them did; None where none did.

    `reply`: the one to their `Decide` in the mode "take". `was_announced`: whether it was announced already that limits
    are near. Then this stands, and is not announced again with each hit that is given back.
    """
    notes = list(_notes(hits, reply))
    is_exempt = {index for index, what, _ in notes if what == EXEMPT}
    chosen, spent = [], []
    for index, (hit, answers) in enumerate(zip(hits, _answers(hits, reply), strict=True)):
        if not hit.cost or not all(ok for ok, *_ in answers):
            continue
        before = iter([value for noted, what, value in notes if noted == index and what == KNOWN_BEFORE])
        marks = [
            Mark(0) if index in is_exempt else _mark(step, reply[0], reset, before)
            for step, (_, _, _, reset, _) in zip(hit.steps, answers, strict=True)
        ]
        chosen.append(index)
        is_near = any(noted == index and what == NEAR_TOLD for noted, what, _ in notes)
        spent.append(Spent(marks, is_near and not was_announced))
    return (Decide([hits[index] for index in chosen], undoing(spent)) if chosen else None), chosen


def _mark(step: Step, now: int, reset: int, before: Iterator[int]) -> Mark:
    if not is_noted(step):
        return Mark(now + reset)
    known = _next(before)
    if counts_values(step):
        return Mark(max(now + step.parameters.a, known + 1), known)
    return Mark(now + reset, known, _next(before), now + step.cost * step.parameters.a)


def _next(before: Iterator[int]) -> int:
    found = next(before, None)
    if found is None:
        raise StoreUnavailable("it did not say what it knew before")
    return found


def compensated(hits: Sequence[Hit], before: Sequence[int], chosen: Sequence[int], after: Sequence[int]) -> list[int]:
    """Return the reply to hits whose cost was given back: how their limits stand now; `after`: the reply to that."""
    answers = list(_answers(hits, before))
    is_exempt = {index for index, what, _ in _notes(hits, before) if what == EXEMPT}
    for index, found in zip(chosen, _answers([hits[index] for index in chosen], after), strict=True):
        if index not in is_exempt:  # how it stands has nothing to do with the limits
            answers[index] = found
    notes = [note for note in _notes(hits, before) if note[1] != NEAR_TOLD]
    return [before[0], REFUSED, *_flat(answers), *(word for note in notes for word in note)]


def _flat(answers: Sequence[Sequence[Sequence[int]]]) -> Iterator[int]:
    return (number for of_hit in answers for answer in of_hit for number in answer)


def _answers(hits: Sequence[Hit], reply: Sequence[int]) -> Iterator[list[Sequence[int]]]:
    """Yield what a reply says of each limit, hit by hit."""
    position = 2
    for hit in hits:
        ends = position + NUMBERS * len(hit.steps)
        yield [reply[first : first + NUMBERS] for first in range(position, ends, NUMBERS)]
        position = ends


def _notes(hits: Sequence[Hit], reply: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    first = 2 + NUMBERS * sum(len(hit.steps) for hit in hits)
    for position in range(first, len(reply), 3):
        yield reply[position], reply[position + 1], reply[position + 2]


_OF_THE_PARTS = frozenset({BAN_LEVEL, KNOWN_BEFORE})
"""Notes that only serve the parts."""


def _whole(parts: Sequence[_Part], replies: Sequence[Any], hits: Sequence[Hit], mode: str) -> list[Any]:
    """Return the reply of the plan that these parts make up."""
    now = replies[0][0]
    for part, reply in zip(parts, replies, strict=False):
        if reply[1] == STALE:
            reasons = [reply[first : first + 3] for first in range(2, len(reply), 3)]
            return [reply[0], STALE, *(word for i, *rest in reasons for word in (part.numbers[i], *rest))]
    answers: dict[int, Sequence[Sequence[int]]] = {}
    notes: list[tuple[int, int, int]] = []
    for part, reply in zip(parts, replies, strict=True):
        answers.update(zip(part.numbers, _answers(part.hits, reply), strict=True))
        notes += [(part.numbers[i], what, value) for i, what, value in _notes(part.hits, reply)]
    verdict = ALLOWED if all(reply[1] == ALLOWED for reply in replies) else REFUSED
    in_order = [answers[number] for number in range(len(hits))]
    dropped = {BAN_LEVEL} if mode == "take" else _OF_THE_PARTS
    kept = [note for note in notes if note[1] not in dropped]
    return [now, verdict, *_flat(in_order), *(word for note in kept for word in note)]


# --- what is told -----------------------------------------------------------------------------------------------------


def _news(part: _Part, reply: Sequence[int]) -> Iterator[News]:
    """Yield what the notes of a reply say that is to be told."""
    if reply[1] == STALE:
        return
    answers = list(_answers(part.hits, reply))
    notes = list(_notes(part.hits, reply))
    for (index, what, value), (_, _, level) in pairwise([*notes, (0, 0, 0)]):
        hit, found = part.hits[index], answers[index]
        place = (hit.field, _subject_of(hit.standing))
        if what == BAN_BEGAN:
            yield News("banned", *place, value, level, hit.steps[0].parameters.capacity, found[0][1])
        elif what == REFUSAL_TOLD:
            number = _longest(found)
            yield News("refused", *place, value, 0, hit.steps[number].parameters.capacity, found[number][1])
        elif what == NEAR_TOLD:
            number = _nearing(hit, found)
            yield News("near", *place, 0, 0, hit.steps[number].parameters.capacity, found[number][1])


def _longest(answers: Sequence[Sequence[int]]) -> int:
    """Return which limit refuses longest."""
    refusing = [(number, wait) for number, (ok, _, wait, *_) in enumerate(answers) if not ok]
    return max(refusing, key=lambda one: float("inf") if one[1] == NEVER else one[1], default=(0, 0))[0]


def _nearing(hit: Hit, answers: Sequence[Sequence[int]]) -> int:
    """Return the first limit whose use has passed the share from which on it is near."""
    warn = int((hit.rule.warn_at or 0) * 1000)
    for number, (step, (_, remaining, *_)) in enumerate(zip(hit.steps, answers, strict=True)):
        capacity = step.parameters.capacity
        threshold, used = -(-capacity * warn // 1000), capacity - remaining
        if threshold < capacity and used - step.cost < threshold <= used:
            return number
    return 0


def _announced(log: Log, news: Sequence[News]) -> Spread:
    """Write to the log, once: where that fails, the decision stands, and the event is not told."""
    if not news:
        return
    try:
        yield [Announce(log, news)]
    except StoreUnavailable as error:
        logger.warning("%d events could not be told: %s", len(news), error)


def _subject_of(key: str) -> str:
    return key[key.index("{") + 1 : key.index("}")]


# --- others -----------------------------------------------------------------------------------------------------------


@spread.register
def _forget(operation: Forget, home: Home) -> Spread:
    by_home: dict[object, list[Any]] = {}
    for place in operation.places:
        by_home.setdefault(home(place.standing), []).append(place)
    replies = yield [Forget(places) for places in by_home.values()]
    if operation.log is not None:
        lifted = [News("lifted", place.field, _subject_of(place.standing)) for place in operation.places]
        yield from _announced(operation.log, lifted)
    return sum(replies)


@spread.register
def _lift_bans(operation: LiftBans, home: Home) -> Spread:  # noqa: ARG001 — one subject
    (reply,) = yield [LiftBans(operation.standing, operation.rules)]
    if operation.log is not None:
        lifted = [News("lifted", rule, _subject_of(operation.standing)) for rule in operation.rules]
        yield from _announced(operation.log, lifted)
    return reply


@spread.register
def _transfer(operation: Transfer, home: Home) -> Spread:
    if home(operation.keys[0]) != home(operation.keys[1]):
        return (yield from moved(operation))
    (reply,) = yield [operation]
    return reply


@spread.register
def _sweep(operation: Sweep, home: Home) -> Spread:
    """Each place is swept by itself: of none more goes in one call than of all where there is one."""
    numbers: dict[object, list[int]] = {}
    for number, key in enumerate(operation.keys):
        numbers.setdefault(home(key), []).append(number)
    replies = yield [
        Sweep(
            [operation.keys[number] for number in some],
            [operation.sweepable[number] for number in some],
            [operation.lifetimes[number] for number in some],
            operation.most,
            repairs=operation.repairs,
        )
        for some in numbers.values()
    ]
    found: Mapping[int, Sequence[int]] = {
        number: reply[4 * place : 4 * place + 4]
        for some, reply in zip(numbers.values(), replies, strict=True)
        for place, number in enumerate(some)
    }
    return [word for number in range(len(operation.keys)) for word in found[number]]
