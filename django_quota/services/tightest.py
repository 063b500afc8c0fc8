"""The tightest rate of a rule that refuses few enough of the requests in a log.

The search takes the rule alone, on all requests that it applies to, and runs its algorithm over them with one count
after the other, in the same window. So a subject is independent of the others. Most are never run: one that could not
be refused by a count, whatever the order of its requests, is left out at once.
"""

from __future__ import annotations

import heapq
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from django_quota.core.algorithms import DISTINCT, Limit, is_outside
from django_quota.core.algorithms.sliding_window import HUGE_PRECISION
from django_quota.core.errors import RuleError
from django_quota.core.rules import Rule
from django_quota.services.replay import RuleSet, Traffic

SHARES = (0.0, 0.001, 0.01)
"""The shares of refused requests that rates are searched for."""


@dataclass(slots=True)
class Hits:
    """What one subject asked of a rule: when, and with which values if the rule counts values."""

    times: array[int] = field(default_factory=lambda: array("q"))
    values: list[str] = field(default_factory=list)


class Demand:
    """What all subjects asked of the rules of one name."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        rule = rules[0]
        self.name, self.cost, self.is_distinct = rule.name, int(rule.cost), rule.distinct is not None  # type: ignore[arg-type]
        self.limits: list[Limit] = list({limit.state_id: limit for each in rules for limit in each.limits}.values())
        self.subjects: defaultdict[str, Hits] = defaultdict(Hits)

    @property
    def requests(self) -> int:
        """How many requests there were."""
        return sum(len(hits.times) for hits in self.subjects.values())

    def highest(self, limit: Limit, begins: int, step: int, number: int) -> list[int]:
        """Return the most that one subject asked in the window of a limit, for each of `number` spans of time."""
        found = [0] * number
        for hits in self.subjects.values():
            for time, asked in zip(hits.times, _asked(hits, limit.rate.period), strict=True):
                span = min((time - begins) // step, number - 1)
                found[span] = max(found[span], asked)
        return [asked * self.cost for asked in found]


def demands(rules: RuleSet, traffic: Traffic, index: int) -> dict[str, Demand]:
    """Return what the requests of a log ask of each rule of a set, by name."""
    by_name: dict[str, list[Rule]] = {}
    for rule in rules.rules:
        by_name.setdefault(rule.name, []).append(rule)
    found = {name: Demand(each) for name, each in by_name.items()}
    asked: list[list[tuple[Hits, str]]] = []
    for key in traffic.plans[index]:
        # Rules of one name are one.
        values = {(rules.rules[number].name, subject): value for number, subject, value in key}
        asked.append([(found[name].subjects[subject], value) for (name, subject), value in values.items()])
    for time, plan in zip(traffic.times, traffic.numbers[index], strict=True):
        for hits, value in asked[plan]:
            hits.times.append(time)
            if value:
                hits.values.append(value)
    return found


def _asked(hits: Hits, window: int) -> Iterator[int]:
    """Yield for each hit how many there are in the window that ends with it; of values, how many different ones."""
    times, first = hits.times, 0
    if hits.values:
        last: OrderedDict[str, int] = OrderedDict()
        for time, value in zip(times, hits.values, strict=True):
            last[value] = time
            last.move_to_end(value)
            while next(iter(last.values())) <= time - window:
                last.popitem(last=False)
            yield len(last)
        return
    for count, time in enumerate(times, 1):
        while times[first] <= time - window:
            first += 1
        yield count - first


class Search:
    """Finds counts for a limit. `refused` may run in several processes, each for a part of the subjects."""

    def __init__(self, demand: Demand, limit: Limit) -> None:
        self._demand = demand
        self._limit = limit
        by_size = sorted(demand.subjects.values(), key=lambda hits: len(hits.times), reverse=True)
        self._subjects = [(self._bound(hits), hits) for hits in by_size]

    def _bound(self, hits: Hits) -> float:
        """Return a count with which a subject is never refused."""
        limit, total = self._limit, len(hits.times) * self._demand.cost
        if limit.algorithm is DISTINCT:
            return len(set(hits.values))
        if limit.options.burst is not None:  # the bucket keeps its size
            return 0 if total <= limit.options.burst else float("inf")
        window = limit.rate.period
        if limit.algorithm.name == "sliding_window":  # a hit counts until its slice ends
            window += -(-window // (limit.options.precision or HUGE_PRECISION))
        elif limit.algorithm.name != "fixed_window":
            return total
        return max(_asked(hits, window)) * self._demand.cost

    def refused(self, count: int, most: int, part: int = 0, parts: int = 1) -> int:
        """Return how many requests a count refuses, of every `parts`-th subject. It stops counting above `most`.

        Raises `RuleError` if the algorithm does not take the count.
        """
        limit = self._limit
        limit = Limit.of(limit.rule, replace(limit.rate, count=count), limit.algorithm, limit.options)
        run, refused = _refused_values if self._demand.is_distinct else _refused, 0
        for bound, hits in self._subjects[part::parts]:
            if bound > count:
                refused += run(limit, hits, self._demand.cost, most - refused)
                if refused > most:
                    break
        return refused

    def find(self, refused: Callable[[int, int], int]) -> list[int | None]:
        """Return the smallest count for each of `SHARES`: it refuses few enough, and one less refuses too many.

        None: no count that the algorithm takes refuses so few. `refused(count, most)` is `self.refused`, for all
        subjects.
        """
        count = self._enough(refused)
        if count is None:
            return [None] * len(SHARES)
        found: list[int | None] = []
        for share in SHARES:
            most = int(self._demand.requests * share)
            count = _smallest(count, lambda count, most=most: refused(count, most) <= most)  # type: ignore[misc]
            found.append(count)
        return found

    def _enough(self, refused: Callable[[int, int], int]) -> int | None:
        """Return a count that refuses nobody; None if the algorithm takes none."""
        highest = max((bound for bound, _ in self._subjects), default=0)
        count = 1 if highest == float("inf") else max(1, int(highest))
        try:
            while refused(count, 0):
                count *= 2
        except RuleError:
            return None
        return count


def _smallest(high: int, fits: Callable[[int], bool]) -> int:
    """Return the smallest count from 1 on that fits. `high` fits, and often nothing below it."""
    if high == 1 or not fits(high - 1):
        return high
    low, high = 1, high - 1
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return high


def _refused(limit: Limit, hits: Hits, cost: int, most: int) -> int:
    """Return how many hits of a subject a limit refuses. It stops counting above `most`."""
    algorithm, parameters = limit.algorithm, limit.timeless_parameters
    counts_refused = limit.options.count_refused
    state, refused = None, 0
    for time in hits.times:
        if parameters is None or (not algorithm.timeless and is_outside(parameters, time)):
            parameters = algorithm.parameters(limit.rate, limit.options, time)
        is_allowed = algorithm.peek(state, parameters, cost, time).allowed
        if is_allowed or counts_refused:
            state, _ = algorithm.consume(state, parameters, cost, time)
        if not is_allowed:
            refused += 1
            if refused > most:
                break
    return refused


def _refused_values(limit: Limit, hits: Hits, cost: int, most: int) -> int:
    """Do the same as `_refused` for a limit of different values.

    The specification copies all values for each hit. Here they stay where they are: a client may send any number.
    """
    window, capacity = limit.rate.period, limit.rate.count
    known: dict[str, int] = {}
    endings: list[tuple[int, str]] = []
    refused = 0
    for time, value in zip(hits.times, hits.values, strict=True):
        while endings and endings[0][0] <= time:
            ends, old = heapq.heappop(endings)
            if known[old] == ends:  # not used again since
                del known[old]
        if not cost or value in known or len(known) < capacity:
            known[value] = ends = max(time + window, known.get(value, 0) + 1)
            heapq.heappush(endings, (ends, value))
        else:
            refused += 1
            if refused > most:
                break
    return refused
