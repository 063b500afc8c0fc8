"""What a script may reply fits its operation; the same with a part missing, too many, or of another kind does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_quota.algorithms import NUMBERS
from django_quota.operations import counters, leases, transfers
from django_quota.operations.base import DictStates, Operation
from django_quota.operations.decide import Decide
from django_quota.operations.look import Look
from django_quota.operations.shapes import digits, moment, score, whole, words
from django_quota.operations.spread import _longest, _undone
from django_quota.operations.sweep import Sweep
from django_quota.operations.usage import ReadDays
from django_quota.plans import Plan
from django_quota.rules import Rule
from tests.steps import START

SLOT = leases.SlotKeys("l", "q", "a")
BAN = {"after": "1/m", "for": ["1m"]}
NOTE = transfers.Note("id", 3, 1_000, "total", "inbox")
GIVER = transfers.Giver("c", "m")


def plan(*rates: str, mode: str = "check", **options: Any) -> Decide:
    made = Plan("quota")
    made.add(Rule.make("shapes", *rates, **options), "ip:192.0.2.1", 1)
    return made.operation(START, mode)


def done(*before: Operation, operation: Operation) -> tuple[Operation, Any]:
    """Return an operation, and the reply to it over what others have done."""
    states = DictStates()
    for each in before:
        each.run(states, START)
    return operation, operation.run(states, START)


INCR = counters.Incr(["c", "c:month"], 5, 1_000_000, "21", 0, START + 1)
REPLIES = {
    "allowed": done(operation=plan("9/m", "90/h")),
    "refused": done(operation=plan("0/m")),
    "taken": done(operation=plan("9/m", algorithm="token_bucket", burst=9, mode="take")),
    "banned": done(*[plan("0/m", ban=BAN)] * 2, operation=plan("0/m", ban=BAN)),
    "incr": done(operation=INCR),
    "incr on another day": done(operation=counters.Incr(["c", "d"], 5, 1_000_000, "21", 0, START)),
    "get": done(INCR, operation=counters.Get("c")),
    "set": done(operation=counters.Set(["c"], 5, 1_000_000)),
    "take": done(INCR, operation=counters.Take(["c"], 5, 1_000_000)),
    "take of too much": done(INCR, operation=counters.Take(["c"], 6, 1_000_000)),
    "no counter": done(plan("9/m"), INCR, operation=counters.Take(["c:month"], 1, 1_000_000)),
    "days": done(INCR, operation=counters.Days(["c:month", "d"], [(20, 22), (1, 2)])),
    "unique": done(operation=counters.Unique(["u", "v"], "x", 1_000_000, 0, START + 1)),
    "unique count": done(operation=counters.UniqueCount("u")),
    "send": done(INCR, operation=transfers.Send(GIVER, NOTE)),
    "receive": done(operation=transfers.Receive(NOTE, START + 9, START + 9)),
    "receive late": done(operation=transfers.Receive(NOTE, START + 9, START)),
    "settle": done(operation=transfers.Settle(GIVER, NOTE, NOTE.words, gives_back=False)),
    "acquire": done(operation=leases.Acquire(SLOT, "one", 1, 9, 0)),
    "acquire in vain": done(leases.Acquire(SLOT, "one", 1, 9, 0), operation=leases.Acquire(SLOT, "two", 1, 9, 5)),
    "release": done(operation=leases.Release(SLOT, "one")),
    "holders": done(leases.Acquire(SLOT, "one", 1, 9, 0), operation=leases.Holders(SLOT)),
    "read days": done(INCR, operation=ReadDays(["c:month", "d"])),
    "look": done(operation=Look("s", ["l", "other"])),
    "sweep": done(operation=Sweep(["l", "m"], [True, False], [1, 1], 9, repairs=False)),
}  # fmt: skip


def mangled(reply: list[Any]) -> Iterator[list[Any]]:
    """Yield a reply with a part missing, too many, or of another kind, at any depth."""
    yield [*reply, None]
    for at, part in enumerate(reply):
        yield reply[:at] + reply[at + 1 :]
        others: list[Any] = [None, 1.5, ValueError(), [], [[]], 2**64]
        for other in others:
            if other != part and not (other == [] and isinstance(part, list)):
                yield [*reply[:at], other, *reply[at + 1 :]]
        if isinstance(part, list):
            yield from ([*reply[:at], changed, *reply[at + 1 :]] for changed in mangled(part))


@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_fits_and_what_is_mangled_does_not(name: str) -> None:
    operation, reply = REPLIES[name]
    assert operation.fits(reply)
    wrong = [one for one in mangled(reply) if operation.fits(one)]
    assert wrong == ([[counters.DONE]] if name == "no counter" else [])  # which is what the number of its key says
    others: list[Any] = [None, 1, "text", b"text", {}, ValueError()]
    assert not any(map(operation.fits, others))


@pytest.mark.parametrize(("name", "place"), [("allowed", 2), ("banned", 1)])
def test_what_a_reply_names_must_be_there(name: str, place: int) -> None:
    operation, reply = REPLIES[name]
    assert operation.fits([*reply, 0, 1, 2])
    for index in (-1, 1, 9):
        assert not operation.fits([*reply, index, 1, 2])
    assert operation.fits([START, -1, 0, 1, "r 0 0 5/m"])
    for stale in ([1, 1, ""], [0, 1, "5/m"], [0, 1, b"\xff"], [0, 1], [0, "1", ""]):
        assert not operation.fits([START, -1, *stale])
    assert not plan("9/m", mode="undo -1").fits([START, -1])  # which is never stale
    look = Look("s", ["l"])
    assert look.fits([START, ["b:login", b"1 1 0"], [2, "one", "1.5", b"two", 9]])
    for found in ([START, ["b:login"], [0]], [START, [], [1, "one"]], [START, [], [1, "one", "x"]], [START, [], ["1"]]):
        assert not look.fits(found)
    counter: Any = counters.Get("c")
    assert counter.fits([counters.NO_COUNTER, 1])
    assert not any(counter.fits([counters.NO_COUNTER, number]) for number in (0, 2))
    assert not counter.fits([counters.REFUSED])


def test_parts() -> None:
    assert [part for part in (0, -1, 2**63 - 1, True, 2**63, "1", 1.0) if whole(part)] == [0, -1, 2**63 - 1]
    assert [part for part in (0, 2**53 - 1, -1, 2**53, "1", None) if moment(part)] == [0, 2**53 - 1]
    assert [part for part in ("", "a", b"a", b"\xff", 1, None) if words(part)] == ["", "a", b"a"]
    assert [part for part in (1, "12", b"-3", "", "1.5", "9" * 30, b"\xff", None) if digits(part)] == [1, "12", b"-3"]
    scores: list[Any] = [1, "1.5e3", b"2", "inf", "nan", "x", None, []]
    assert list(filter(score, scores)) == [1, "1.5e3", b"2"]


def test_an_undoing_whose_reply_lacks_what_was_known_before_is_left(caplog: pytest.LogCaptureFixture) -> None:
    taken = plan("9/m", algorithm="token_bucket", burst=9, mode="take")
    reply = taken.run(DictStates(), START)

    class Part:
        hits = taken.hits

    undoing = _undone(Part(), reply[: 2 + NUMBERS])  # type: ignore[arg-type]
    with pytest.raises(StopIteration) as ended:
        next(undoing)
    assert ended.value.value == reply[: 2 + NUMBERS]
    assert "stays taken" in caplog.text
    assert next(_undone(Part(), reply))[0].mode.startswith("undo ")  # type: ignore[arg-type, attr-defined]


def test_a_refusal_that_no_limit_made_is_the_first_ones() -> None:
    assert _longest([(1, 5, 0, 0), (1, 5, 0, 0)]) == 0
    assert _longest([(1, 5, 0, 0), (0, 5, 9, 0), (0, 5, -1, 0)]) == 2
