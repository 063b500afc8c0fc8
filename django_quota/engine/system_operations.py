"""Operations on all subjects together: add metrics, count the workers, sweep expired entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from django_quota.core.clock import DAY, SECOND
from django_quota.engine.operations import (
    SENT_TTL,
    Operation,
    RedisOperation,
    Script,
    States,
    is_repeated,
    keep,
    note_counted,
    script,
)

OutcomeWord = Literal["allowed", "refused", "shadowed"]
"""The answer of a rule to a check. `shadowed`: a shadow rule would have refused."""

FIELD_ENDS: dict[OutcomeWord, str] = {"allowed": ":a", "refused": ":r", "shadowed": ":s"}
"""How the field of a count ends, after the name of its rule. A compiled rule has its three fields ready."""

SPENT_END = ":p"
"""How the field of the hits ends that were spent of what a process had taken ahead."""

FIELDS = 1_000
"""How many fields of rules a hash has at most; further rules are counted together under `OTHER`."""

OTHER = "*"
"""The field of all further rules together; no rule has this field."""

OUTAGES = "!:a"
"""The field that counts outages, once for each process that saw one; no rule has this field."""

SUBJECTS = SLOTS = 2_000
"""How many members a sorted set keeps. It is trimmed when it has half as many more."""

METRICS_DAY_TTL = 2 * DAY
MINUTE_TTL = 7_200 * SECOND
TOTAL_TTL = 400 * DAY
"""How long the counts of a day, of a minute and of all days are kept, in microseconds."""


class MetricsKeys(NamedTuple):
    """The keys that `engine/lua/metrics.lua` lists."""

    day: str
    minute: str
    refused: str
    slots: str
    totals: str
    sent: str


class AddMetrics(Operation):
    """Add the counts of a process; the reply is 1.

    `number`: of the message, so that it is added only once. `counts`: by field, see `engine/lua/metrics.lua`.
    `refused`: refusals by subject. `slots`: for how many microseconds each is remembered.
    """

    script: ClassVar[Script] = script("clock", "lifetimes", "repeated", "metrics")

    def __init__(
        self,
        keys: MetricsKeys,
        number: int,
        counts: Mapping[str, int],
        refused: Mapping[str, int],
        slots: Mapping[str, int],
    ) -> None:
        parts = (counts, refused, slots)
        words = (word for part in parts for pair in part.items() for word in pair)
        super().__init__(keys, number, *map(len, parts), *words)
        self.number = number
        self.counts = counts
        self.refused = refused
        self.slots = slots

    def run(self, states: States, now: int) -> int:
        """Add the counts, unless the message has been added before."""
        keys = MetricsKeys(*self.keys)
        if is_repeated(states, keys.sent, self.number):
            return 1
        for key, kept in ((keys.day, METRICS_DAY_TTL), (keys.minute, MINUTE_TTL), (keys.totals, TOTAL_TTL)):
            fields = dict(states.get(key, now) or {})
            for field, count in self.counts.items():
                has_room = field in fields or len(fields) < FIELDS or field == OUTAGES
                name = field if has_room else f"{OTHER}{field[-2:]}"
                fields[name] = fields.get(name, 0) + count
            keep(states, key, fields, now + kept)
        refused = dict(states.get(keys.refused, now) or {})
        for subject, count in self.refused.items():
            refused[subject] = refused.get(subject, 0) + count
        keep(states, keys.refused, _trimmed(refused, SUBJECTS), now + METRICS_DAY_TTL)
        slots = {name: stop for name, stop in (states.get(keys.slots, now) or {}).items() if stop > now}
        slots.update({name: now + span for name, span in self.slots.items()})
        keep(states, keys.slots, _trimmed(slots, SLOTS), max(slots.values(), default=0))
        note_counted(states, keys.sent, self.number, now + SENT_TTL)
        return 1


def _trimmed(scores: dict[str, int], most: int) -> dict[str, int]:
    """Keep the `most` highest scores if there are more than 1.5 times as many."""
    if len(scores) <= most + most // 2:
        return scores
    order: Any = sorted(scores.items(), key=lambda pair: (pair[1], pair[0]))
    return dict(order[-most:])


class RegisterWorker(Operation):
    """Count a worker for `ttl` microseconds; the reply is the number of workers, including this one."""

    script: ClassVar[Script] = script("clock", "lifetimes", "register_worker")

    def __init__(self, key: str, token: str, ttl: int) -> None:
        super().__init__([key], token, ttl)

    def run(self, states: States, now: int) -> int:
        """Register the worker, and forget those whose time is over."""
        (key,), (token, ttl) = self.keys, self.arguments()
        workers = {other: stop for other, stop in (states.get(key, now) or {}).items() if stop > now}
        workers[token] = now + ttl
        keep(states, key, workers, now + ttl)
        return len(workers)


class Swept(NamedTuple):
    """What the reply says about one key."""

    is_set: bool
    """Whether the key is a sorted set and was swept."""
    removed: int
    left: int
    """How many expired entries it still has."""
    given: int
    """The TTL (milliseconds) that the key was given, or would be given by repairs; 0 if it has one."""


class Sweep(RedisOperation):
    """Drop at most `most` expired entries of these keys; the reply: see `engine/lua/sweep.lua` and `read`.

    `sweepable`: which keys are swept if they are sorted sets. `lifetimes`: the TTL (milliseconds) for a key that has
    none and whose scores do not show one. `repairs`: whether keys without a TTL get one.
    """

    script: ClassVar[Script] = script("clock", "lifetimes", "sweep")
    is_slow: ClassVar[bool] = True

    def __init__(
        self,
        keys: Sequence[str],
        sweepable: Sequence[bool],
        lifetimes: Sequence[int],
        most: int,
        *,
        repairs: bool,
    ) -> None:
        treated = zip(sweepable, lifetimes, strict=True)
        super().__init__(keys, most, int(repairs), *(f"{swept:d} {lifetime}" for swept, lifetime in treated))
        self.sweepable = sweepable
        self.lifetimes = lifetimes
        self.most = most
        self.repairs = repairs

    def only(self, places: Sequence[int]) -> Sweep:
        """Return the operation for some of the keys."""
        return Sweep(
            [self.keys[place] for place in places],
            [self.sweepable[place] for place in places],
            [self.lifetimes[place] for place in places],
            self.most,
            repairs=self.repairs,
        )

    @staticmethod
    def read(reply: Sequence[int]) -> list[Swept]:
        """Return the results in a reply, in the order of the keys."""
        return [Swept(bool(reply[i]), *reply[i + 1 : i + 4]) for i in range(0, len(reply), 4)]
