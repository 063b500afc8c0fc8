"""Replay: what rules would have refused of the requests in an access log, and the tightest rates that refuse none.

Each request of the log goes through the same code as a live one. `RuleIndex` and `asked_flow` find its rules and
their subjects, and the specification of the decision (`engine/decide`) decides them, in the log's own time: all limits
of a request in one operation, all or nothing. Nothing is read from or written to the store or the database.

Replay has three steps. `read_traffic` turns lines into `Traffic`: a time and the number of a plan for each request.
`find_refusals` decides them. `demands` and `tightest` then search for the rates.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from heapq import heappop, heappush
from math import ceil, inf
from operator import itemgetter
from typing import Any, NamedTuple, cast

from django.core.exceptions import SuspiciousOperation
from django.http import HttpRequest, QueryDict
from django.http.cookie import parse_cookie
from django.urls import Resolver404, ResolverMatch, get_resolver

from django_quota.conf import current, import_option, time_zone
from django_quota.core.algorithms import DISTINCT, Limit
from django_quota.core.algorithms.distinct import MAX_VALUES
from django_quota.core.errors import ConfigurationError, RuleError
from django_quota.core.flow import run_sync
from django_quota.core.rules import Rule, functions_of, parts_of_key
from django_quota.engine.asks import Ask, Place
from django_quota.engine.codec import REFUSED, Flag, Reply, allows_all
from django_quota.engine.decide import Decide
from django_quota.engine.hits import Hit
from django_quota.engine.operations import DictStates
from django_quota.engine.resolving import Scope, hits_of
from django_quota.http.request_rules import RuleIndex
from django_quota.limiting.asking import asked_flow
from django_quota.limiting.known_rules import url_patterns
from django_quota.operating.access_log import LogFormat, LogLine, UnreadableLineError
from django_quota.subjects.keys import check_keys

ViewRules = Callable[[HttpRequest, Callable[..., Any]], list[Rule]]
"""Returns the rules of the `@quota` on the outside of a view."""

UNREADABLE_SHOWN, MAX_TEXT = 3, 500
"""How many unreadable lines a report shows, and how many characters of each."""

PATHS_KNOWN = 20_000
"""How many places (method, path, host) and plans a process remembers."""

SWEEP_INTERVAL = 50_000
"""After how many requests expired states are dropped."""


# --- requests ---------------------------------------------------------------------------------------------------------


class LoggedRequest(HttpRequest):
    """A request as an access log shows it. It has no user, no session and no body."""

    def __init__(self, method: str, path: str, meta: Mapping[str, str], query: str = "") -> None:
        # super().__init__() would make dicts for a form and for files, which takes time.
        self.META = {"SERVER_NAME": "", "SERVER_PORT": "80", **meta}
        self.method = method
        self.path = self.path_info = path
        self.resolver_match: ResolverMatch | None = None
        self._query = query

    @cached_property
    def GET(self) -> QueryDict:  # type: ignore[override]  # noqa: N802 — Django's name
        """The fields of the query."""
        return QueryDict(self._query)

    @cached_property
    def COOKIES(self) -> dict[str, str]:  # type: ignore[override]  # noqa: N802 — Django's name
        """The cookies, if the log has them."""
        known = {name.removeprefix("cookie:"): value for name, value in self.META.items() if name.startswith("cookie:")}
        return {**parse_cookie(self.META.get("HTTP_COOKIE", "")), **known}


# --- rules ------------------------------------------------------------------------------------------------------------


def why_left_out(rule: Rule, fields: frozenset[str]) -> str:
    """Return what a rule needs that a log with these fields does not have; empty if it can be replayed."""
    return next(_lacks(rule, fields), "")


_NEVER_LOGGED = {"user": "the user", "user_or_ip": "the user", "session": "the session"}
_NEVER_LOGGED |= {"post": "the body", "json": "the body"}


def _lacks(rule: Rule, fields: frozenset[str]) -> Iterator[str]:
    yield from (f"{option}= is a function" for option, _ in functions_of(rule))
    if rule.tiers:
        yield "its rate depends on the user"
    if rule.exempt is not None and rule.exempt.staff:
        yield "exempt='staff' needs the user"
    if rule.exempt is not None and rule.exempt.networks and "ip" not in fields:
        yield "exempt= needs the client's address"
    if rule.distinct is True:
        yield "distinct=True: only your code knows the value"
    for option, part in parts_of_key(rule):
        kind, colon, name = part.partition(":") if isinstance(part, str) else (".", "", "")
        name = name.strip()
        needed = {
            "ip": {"ip"},
            "header": {f"header:{name.lower()}"},
            "cookie": {f"cookie:{name}", "header:cookie"},
        }.get(kind.partition("/")[0])
        if "." in kind and not colon:
            yield f"{option}= is a function"
        elif kind in _NEVER_LOGGED:
            yield f"{option}={part!r} needs {_NEVER_LOGGED[kind]}"
        elif needed and not needed & fields:
            yield f"{option}={part!r} needs it in the log"
    patterns = [pattern for place in (rule.match, rule.exclude) if place is not None for pattern in place.patterns]
    if "host" not in fields and any(pattern.kind == "host" for pattern in patterns):
        yield "match= needs the host"


def read_rules(given: Mapping[str, object], place: str) -> dict[str, Rule]:
    """Read rules as `QUOTA["RULES"]` has them. `place` names them in errors. Raises `RuleError`."""
    rules = {}
    for name, value in given.items():
        rule = Rule.from_setting(name, value, import_option, place)
        try:
            check_keys(rule)
        except RuleError as error:
            raise RuleError(f"{place}[{name!r}]: {error.problem}", error.hint) from error
        rules[name] = rule
    return rules


PlanKey = tuple[tuple[int, str, str], ...]
"""A plan: the number of each rule, with the subject and the digest of the value that it counts ("" for none)."""

NOT_PLACED = "it has no match=, and no view has it on its outside. Add, for example, match = '/search/'"


class RuleSet:
    """Rules that are replayed together, as the middleware would decide them.

    `rules`: those of the settings or of a draft, by name. `views`: the rules of `@quota` on views, and the function
    that finds those of a request. `fields`: what the log has. `only`: the names to replay; None for all.
    """

    def __init__(
        self,
        rules: Mapping[str, Rule],
        fields: frozenset[str],
        views: tuple[Sequence[Rule], ViewRules] = ((), lambda *_: []),
        only: Iterable[str] | None = None,
    ) -> None:
        self.rules: list[Rule] = []
        """The rules that are replayed. Plans refer to them by their index."""
        self.left_out: dict[str, str] = {}
        """By name, why other rules are not replayed."""
        self._own = rules
        of_views, self._find_in_view = views
        here = [rule for rule in rules.values() if rule.match is not None]
        self._index = RuleIndex(here)
        here += map(self._as_here, of_views)
        wanted = {rule.name for rule in [*rules.values(), *here]} if only is None else set(only)
        for rule in {id(rule): rule for rule in here if rule.name in wanted}.values():
            if reason := why_left_out(rule, fields):
                self.left_out[rule.name] = reason
            else:
                self.rules.append(rule)
        for name in wanted.intersection(rules).difference(rule.name for rule in here):
            self.left_out[name] = why_left_out(rules[name], fields) or NOT_PLACED
        self._numbers = {id(rule): number for number, rule in enumerate(self.rules)}
        self._find = lru_cache(maxsize=PATHS_KNOWN)(self._find_place)

    def _as_here(self, rule: Rule) -> Rule:
        """Return the rule of a view; if the view names a configured rule, the rule of that name in this set."""
        own = self._own.get(rule.name)
        if own is None or rule.name not in current().rules:
            return rule
        return own if rule is current().rule(rule.name) else rule

    def plan_of(self, entry: LogLine) -> PlanKey:
        """Return the plan of a request; empty if no rule applies to it. Raises `ConfigurationError`."""
        rules, match = self._find(entry.method, entry.path, entry.meta.get("HTTP_HOST", ""))
        if not rules:
            return ()
        request = LoggedRequest(entry.method, entry.path, entry.meta, entry.query)
        request.resolver_match = match
        asked = run_sync(asked_flow(rules, request))
        return tuple([(self._numbers[id(ask.rule)], ask.subject, ask.value) for ask in asked])

    def _find_place(self, method: str, path: str, host: str) -> tuple[list[Rule], ResolverMatch | None]:
        """Return the rules that the middleware would decide for a request, and the view behind its path."""
        request = LoggedRequest(method, path, {"HTTP_HOST": host} if host else {})
        try:
            request.resolver_match = get_resolver().resolve(path) if url_patterns() else None
        except Resolver404:  # the middleware decides it on the way back
            request.resolver_match = None
        rules = list(self._index.find(request))
        if request.resolver_match is not None:
            rules += map(self._as_here, self._find_in_view(request, request.resolver_match.func))
        return [rule for rule in rules if id(rule) in self._numbers], request.resolver_match

    def hits(self, key: PlanKey) -> Sequence[Hit]:
        """Return the hits of a plan. They can be decided at any time of the log."""
        rules = [(self.rules[number], subject, value) for number, subject, value in key]
        asks = [Ask(rule, subject, cast("int", rule.cost), value) for rule, subject, value in rules]
        return hits_of(asks, Scope("replay", time_zone), 0)


# --- reading ----------------------------------------------------------------------------------------------------------


class Unreadable(NamedTuple):
    """A line that could not be used."""

    number: int
    reason: str
    text: str


class Traffic:
    """The requests of a log to which a rule applies, in the order of their times."""

    def __init__(self) -> None:
        self.times = array("q")
        self.numbers = array("I")
        """The number of the plan of each request."""
        self.plans: dict[PlanKey, int] = {}
        """The plans with their numbers, from 0 on."""
        self.lines = self.requests = self.unreadable = 0
        """The lines of the log, its requests, and the lines that could not be used."""
        self.begins = self.ends = self.latest = 0
        """The first, the last and the newly read time, even of requests without rules."""
        self.shown: list[Unreadable] = []

    def add_request(self, entry: LogLine, key: PlanKey) -> None:
        """Add a request with its plan."""
        self.requests += 1
        self.begins = min(self.begins or entry.time, entry.time)
        self.ends = max(self.ends, entry.time)
        self.latest = entry.time
        if key:
            self.times.append(entry.time)
            self.numbers.append(self.plans.setdefault(key, len(self.plans)))

    def add_unreadable(self, reason: str, text: str) -> None:
        """Add the last line, which could not be used."""
        self.unreadable += 1
        if len(self.shown) < UNREADABLE_SHOWN:
            self.shown.append(Unreadable(self.lines, reason, text[:MAX_TEXT]))

    def sort(self) -> None:
        """Sort the requests by time. Requests of the same time stay in the order of the log."""
        order = sorted(range(len(self.times)), key=self.times.__getitem__)
        self.times = array("q", map(self.times.__getitem__, order))
        self.numbers = array("I", map(self.numbers.__getitem__, order))


def read_traffic(lines: Iterable[str], log_format: LogFormat, rules: RuleSet, *, is_of_server: bool = False) -> Traffic:
    """Read a log. `is_of_server`: whether the server behind the proxies wrote it. Then each peer is the last proxy."""
    traffic = Traffic()
    adds_peer = not is_of_server and current().trusted_proxy_count > 0
    for line in lines:
        traffic.lines += 1
        if not line or line.isspace():
            continue
        try:
            entry = log_format.read(line, traffic.latest)
            if adds_peer:  # as the proxy that wrote the log does
                hops = map(entry.meta.get, ("HTTP_X_FORWARDED_FOR", "REMOTE_ADDR"))
                entry.meta["HTTP_X_FORWARDED_FOR"] = ", ".join(filter(None, hops))
            traffic.add_request(entry, rules.plan_of(entry))
        except (ConfigurationError, UnreadableLineError, SuspiciousOperation) as error:  # the last: Django answers 400
            traffic.add_unreadable(error.problem if isinstance(error, ConfigurationError) else str(error), line)
    traffic.sort()
    return traffic


# --- deciding ---------------------------------------------------------------------------------------------------------


@dataclass
class ReplayedRefusals:
    """Which requests were refused, and by which rules."""

    positions: array[int] = field(default_factory=lambda: array("I"))
    by_rule: Counter[Place] = field(default_factory=Counter)
    """How often a rule refused, or would have if it were not a shadow."""
    bans: Counter[Place] = field(default_factory=Counter)

    _banned_until: dict[Place, int] = field(default_factory=dict)

    def note(self, position: int, hits: Sequence[Hit], reply: Reply) -> None:
        """Add what a reply refuses and bans."""
        if reply.verdict == REFUSED:
            self.positions.append(position)
        for at, hit in enumerate(hits):
            if not reply.passed(at):
                self.by_rule[hit.place] += 1
        for at, flag, until in reply.flags:
            place = hits[at].place
            if flag == Flag.BANNED and self._banned_until.get(place) != until:
                self._banned_until[place] = until
                self.bans[place] += 1


def find_refusals(
    rules: RuleSet, traffic: Traffic, advance: Callable[[int], object] = lambda _: None
) -> ReplayedRefusals:
    """Decide the requests by the specification, from empty counts on. `advance` gets how many were decided since."""
    keys = list(traffic.plans)
    hits_for = lru_cache(maxsize=PATHS_KNOWN)(lambda number: rules.hits(keys[number]))
    states, refusals = DictStates(), ReplayedRefusals()
    for position, (number, now) in enumerate(zip(traffic.numbers, traffic.times, strict=True)):
        if position % SWEEP_INTERVAL == SWEEP_INTERVAL - 1:
            states.kept = {key: kept for key, kept in states.kept.items() if kept[1] > now}
        hits = [hit.at(now, time_zone()) for hit in hits_for(number)]
        raw = Decide(hits, "check").run(states, now)
        if not allows_all(raw, hits):
            refusals.note(position, hits, Reply.decode(raw, hits))
        advance(1)
    return refusals


# --- the tightest rates -----------------------------------------------------------------------------------------------
#
# The search tries different counts with the same window, and runs the algorithm of the rule over all requests that the
# rule applies to. Other rules do not matter, so subjects are independent of each other. Most subjects are never run:
# the search skips a subject that a count cannot refuse, whatever the order of its requests.


@dataclass(slots=True)
class SubjectDemand:
    """What one subject asked of a rule: when, and with which values if the rule counts values."""

    times: array[int] = field(default_factory=lambda: array("q"))
    values: list[str] = field(default_factory=list)


class Demand:
    """What all subjects asked of the rules of one name."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        rule = rules[0]
        self.name, self.cost = rule.name, int(rule.cost)  # type: ignore[arg-type]
        self.limits: list[Limit] = list({limit.state_id: limit for each in rules for limit in each.limits}.values())
        self.subjects: defaultdict[str, SubjectDemand] = defaultdict(SubjectDemand)

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
    asked: list[list[tuple[SubjectDemand, str]]] = []
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
        counts = (count for hits in demand.subjects.values() for count in _value_counts(hits, limit.rate.period))
        found = max(counts, default=1)
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


def _enough(hits: SubjectDemand, cost: int, limit: Limit) -> float:
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


def _value_counts(hits: SubjectDemand, window: int) -> Iterator[int]:
    """Yield, for each hit, how many distinct values a subject had in the window that ends with it.

    The specification copies all values for each hit. That would take too long here, since a client may have sent any
    number of values.
    """
    known: dict[str, int] = {}
    endings: list[tuple[int, str]] = []
    for time, value in zip(hits.times, hits.values, strict=True):
        while endings and endings[0][0] <= time:
            ends, old = heappop(endings)
            if known[old] == ends:  # not used again since
                del known[old]
        known[value] = ends = max(time + window, known.get(value, 0) + 1)
        heappush(endings, (ends, value))
        yield len(known)
