"""The tightest rate of a rule that refuses none of the requests in a log.

The search tries different counts with the same window, and runs the algorithm of the rule over all requests that the
rule applies to. Other rules do not matter, so subjects are independent of each other. Most subjects are never run: the
search skips a subject that a count cannot refuse, whatever the order of its requests.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import ceil, inf
from operator import itemgetter

from django_quota.core.algorithms import DISTINCT, Limit
from django_quota.core.algorithms.distinct import MAX_VALUES
from django_quota.core.errors import RuleError
from django_quota.core.rules import Rule
from django_quota.operating.replay import RuleSet, Traffic


@dataclass(slots=True)
class Hits:
    """What one subject asked of a rule: when, and with which values if the rule counts values."""

    times: array[int] = field(default_factory=lambda: array("q"))
    values: list[str] = field(default_factory=list)


class Demand:
    """What all subjects asked of the rules of one name."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        rule = rules[0]
        self.name, self.cost = rule.name, int(rule.cost)  # type: ignore[arg-type]
        self.limits: list[Limit] = list({limit.state_id: limit for each in rules for limit in each.limits}.values())
        self.subjects: defaultdict[str, Hits] = defaultdict(Hits)

    @property
    def requests(self) -> int:
        """How many requests there were."""
        return sum(len(hits.times) for hits in self.subjects.values())


def demands(rules: RuleSet, traffic: Traffic) -> dict[str, Demand]:
    """Return what the requests of a log ask of each rule, by name."""
    by_name: dict[str, list[Rule]] = {}
    for rule in rules.rules:
        by_name.setdefault(rule.name, []).append(rule)
    found = {name: Demand(each) for name, each in by_name.items()}
    asked: list[list[tuple[Hits, str]]] = []
    for key in traffic.plans:
        # Rules of one name share one count.
        values = {(rules.rules[number].name, subject): value for number, subject, value in key}
        asked.append([(found[name].subjects[subject], value) for (name, subject), value in values.items()])
    for time, plan in zip(traffic.times, traffic.numbers, strict=True):
        for hits, value in asked[plan]:
            hits.times.append(time)
            if value:
                hits.values.append(value)
    return found


def tightest(demand: Demand, limit: Limit) -> int | None:
    """Return the smallest count of a limit that refuses no request; one less refuses some. None if there is none."""
    if limit.algorithm is DISTINCT:
        found = max([1, *(_most_values(hits, limit.rate.period) for hits in demand.subjects.values() if demand.cost)])
        return found if found <= MAX_VALUES else None
    subjects = [(_enough(hits, demand.cost, limit), hits.times) for hits in demand.subjects.values()]
    subjects.sort(key=itemgetter(0), reverse=True)  # first the subjects that a low count refuses first

    def refuses_nobody(count: int) -> bool:
        tried = Limit.of(limit.rule, replace(limit.rate, count=count), limit.algorithm, limit.options, limit.share)
        return not any(_refuses(tried, times, demand.cost) for enough, times in subjects if enough > count)

    highest = max([1, *(int(enough) for enough, _ in subjects if enough != inf)])
    try:
        while not refuses_nobody(highest):
            highest *= 2
    except RuleError:  # the algorithm does not allow this count
        return None
    return bisect_left(range(1, highest), True, key=refuses_nobody) + 1


def _enough(hits: Hits, cost: int, limit: Limit) -> float:
    """Return a count with which a subject is never refused."""
    if limit.options.burst is not None:  # the bucket keeps its size
        return 0 if len(hits.times) * cost <= limit.capacity else inf
    # Twice the window: a hit counts for up to a slice longer, and a period of the calendar may have another length.
    first = most = 0
    for count, time in enumerate(hits.times, 1):
        while hits.times[first] <= time - 2 * limit.rate.period:
            first += 1
        most = max(most, count - first)
    return ceil(most * cost / limit.share)


def _refuses(limit: Limit, times: Sequence[int], cost: int) -> bool:
    """Return whether a limit refuses a hit of a subject."""
    algorithm, parameters, state = limit.algorithm, limit.timeless_parameters, None
    for time in times:
        if parameters is None or algorithm.is_outside(parameters, time):
            parameters = limit.parameters(time)
        if not algorithm.peek(state, parameters, cost, time).allowed:
            return True
        state, _ = algorithm.consume(state, parameters, cost, time)
    return False


def _most_values(hits: Hits, window: int) -> int:
    """Return the most distinct values that a subject had in a window.

    The specification copies all values for each hit. That would take too long here, since a client may have sent any
    number of values.
    """
    known: dict[str, int] = {}
    endings: list[tuple[int, str]] = []
    most = 0
    for time, value in zip(hits.times, hits.values, strict=True):
        while endings and endings[0][0] <= time:
            ends, old = heappop(endings)
            if known[old] == ends:  # not used again since
                del known[old]
        known[value] = ends = max(time + window, known.get(value, 0) + 1)
        heappush(endings, (ends, value))
        most = max(most, len(known))
    return most
