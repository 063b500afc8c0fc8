"""Replay: what rules would have refused of the requests in an access log.

Each request of the log goes through the same code as a live one. `RuleIndex` and `asked_flow` find its rules and
their subjects, and the specification of the decision (`engine/decide`) decides them, in the log's own time: all limits
of a request in one plan, all or nothing. Nothing is read from or written to Redis or the database.

It goes in three steps. `read_traffic` turns lines into `Traffic`: a time and the number of a plan for each request.
`decide` decides them. `operating/tightest` then searches for rates.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, cast

from django.core.exceptions import SuspiciousOperation
from django.http import HttpRequest, QueryDict
from django.http.cookie import parse_cookie
from django.urls import Resolver404, ResolverMatch, get_resolver

from django_quota.conf import current, import_option, time_zone
from django_quota.core.errors import ConfigurationError, RuleError
from django_quota.core.flow import run_sync
from django_quota.core.rules import AFTER_RESPONSE, Rule, dotted_path, functions_of, key_parts
from django_quota.engine.codec import REFUSED, Flag, Reply, allows_without_flags
from django_quota.engine.operations import DictStates
from django_quota.engine.plans import Asked, Plan
from django_quota.limiting.known_rules import url_patterns
from django_quota.operating.access_log import Entry, LogFormat, UnreadableLineError
from django_quota.requests.request_hits import asked_flow
from django_quota.requests.request_keys import check_keys
from django_quota.requests.site_rules import RuleIndex

ViewRules = Callable[[HttpRequest, Callable[..., Any]], list[Rule]]
"""Returns the rules of the `@quota` on the outside of a view."""

MAX_SHOWN = 3
MAX_TEXT = 500
"""How many unreadable lines are kept to show them, and how many characters of each."""

MAX_KNOWN = 20_000
"""How many places (method, path, host) and plans a process remembers."""

SWEEP_INTERVAL = 50_000
"""Requests after which expired states are dropped."""


# --- requests ---------------------------------------------------------------------------------------------------------


class LoggedRequest(HttpRequest):
    """A request as an access log shows it. It has no user, no session and no body."""

    def __init__(self, entry: Entry) -> None:
        # Not super().__init__(), which makes dicts for a form and for files.
        self.META = {**_SERVER, **entry.meta}
        self.method = entry.method
        self.path = self.path_info = entry.path
        self.resolver_match: ResolverMatch | None = None
        self._query = entry.query

    @cached_property
    def GET(self) -> QueryDict:  # type: ignore[override]  # noqa: N802 — Django's name
        """The fields of the query."""
        return QueryDict(self._query, encoding="utf-8")

    @cached_property
    def COOKIES(self) -> dict[str, str]:  # type: ignore[override]  # noqa: N802 — Django's name
        """The cookies, if the log has them."""
        known = {name.removeprefix("cookie:"): value for name, value in self.META.items() if name.startswith("cookie:")}
        return {**parse_cookie(self.META.get("HTTP_COOKIE", "")), **known}


_SERVER = {"SERVER_NAME": "", "SERVER_PORT": "80"}
"""What Django asks for if a request names no host."""


# --- rules ------------------------------------------------------------------------------------------------------------


def why_left_out(rule: Rule, fields: frozenset[str]) -> str:
    """Return what a rule needs that a log with these fields does not have; empty if it can be replayed."""
    return next(_lacks(rule, fields), "")


def _lacks(rule: Rule, fields: frozenset[str]) -> Iterator[str]:
    for option, value in functions_of(rule):
        what = "the response" if option in AFTER_RESPONSE else "the request"
        yield f"{option}= is a function of {what} ({dotted_path(value)})"
    if rule.tiers:
        yield "its rate depends on the user"
    if rule.exempt is not None and rule.exempt.staff:
        yield "exempt='staff' needs the user"
    if rule.exempt is not None and rule.exempt.networks and "ip" not in fields:
        yield "exempt= needs the client's address"
    if rule.distinct is True:
        yield "distinct=True: only your code knows the value"
    for option, part in key_parts(rule):
        missing = _missing(part, fields)
        if missing:
            yield f"{option}={part!r} needs {missing}" if isinstance(part, str) else f"{option}= is {missing}"
    patterns = [pattern for place in (rule.match, rule.exclude) if place is not None for pattern in place.patterns]
    if "host" not in fields and any(pattern.kind == "host" for pattern in patterns):
        yield "match= needs the host"


def _missing(part: object, fields: frozenset[str]) -> str:
    """Return what a part of a key needs that is not in the log; empty if nothing is missing."""
    if not isinstance(part, str):
        return f"a function of the request ({dotted_path(part)})"
    kind, colon, name = part.partition(":")
    name = name.strip()
    if not colon and "." in part:
        return "a function of the request"
    needed = {
        "ip": ("the client's address", {"ip"}),
        "user": ("the user", set()),
        "user_or_ip": ("the user", set()),
        "session": ("the session", set()),
        "post": ("the body", set()),
        "json": ("the body", set()),
        "header": (f"the header {name}", {f"header:{name.lower()}"}),
        "cookie": (f"the cookie {name}", {f"cookie:{name}", "header:cookie"}),
        "get": ("the query", {"query"}),
    }
    what, any_of = needed.get(kind, ("", set[str]()))
    return "" if fields & any_of else what


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


class RuleSet:
    """Rules that are replayed together, as the middleware would decide them.

    `rules`: those of the settings or of a draft, by name. `views`: the rules of `@quota` on views, and how those of a
    request are found. `fields`: what the log has. `only`: the names to replay; None for all.
    """

    def __init__(
        self,
        rules: Mapping[str, Rule],
        fields: frozenset[str],
        views: tuple[Sequence[Rule], ViewRules] = ((), lambda *_: []),
        only: Iterable[str] | None = None,
    ) -> None:
        self.rules: list[Rule] = []
        """The rules that are replayed. Plans name them by their number."""
        self.left_out: dict[str, str] = {}
        """Why other rules are not replayed, by name."""
        self._numbers: dict[int, int] = {}
        """The number of each rule, by its id."""
        self._own = rules
        self._fields = fields
        self._only = None if only is None else set(only)
        of_views, self._find_in_view = views
        self._places: dict[tuple[str, str, str], tuple[list[Rule], ResolverMatch | None]] = {}
        placed = [rule for rule in rules.values() if rule.match is not None and self._takes(rule)]
        for rule in map(self._as_here, of_views):
            self._takes(rule)
        for name, rule in rules.items():
            if rule.match is None and id(rule) not in self._numbers and self._is_wanted(name):
                self.left_out.setdefault(name, why_left_out(rule, fields) or NOT_PLACED)
        self._index = RuleIndex(placed)

    def _is_wanted(self, name: str) -> bool:
        return self._only is None or name in self._only

    def _takes(self, rule: Rule) -> bool:
        """Give a rule a number if it can be replayed; else note why not."""
        if not self._is_wanted(rule.name):
            return False
        if id(rule) not in self._numbers:
            reason = why_left_out(rule, self._fields)
            if reason:
                self.left_out[rule.name] = reason
                return False
            self._numbers[id(rule)] = len(self.rules)
            self.rules.append(rule)
        return True

    def _as_here(self, rule: Rule) -> Rule:
        """Return the rule of a view; if the view names a configured rule, the rule of that name in this set."""
        own = self._own.get(rule.name)
        if own is None or own is rule or rule.name not in current().rules:
            return rule
        return own if rule is current().rule(rule.name) else rule

    def plan_of(self, entry: Entry) -> PlanKey:
        """Return the plan of a request; empty if no rule applies to it. Raises `ConfigurationError`."""
        place = (entry.method, entry.path, entry.meta.get("HTTP_HOST", ""))
        known = self._places.get(place)
        if known is None:
            known = self._find(LoggedRequest(entry))
            if len(self._places) >= MAX_KNOWN:
                self._places.clear()
            self._places[place] = known
        rules, match = known
        if not rules:
            return ()
        request = LoggedRequest(entry)
        request.resolver_match = match
        asked = run_sync(asked_flow(rules, request))
        return tuple([(self._numbers[id(rule)], subject, value) for rule, subject, _, value in asked])

    def _find(self, request: LoggedRequest) -> tuple[list[Rule], ResolverMatch | None]:
        """Return the rules that the middleware would decide for a request, and the view behind its path."""
        try:
            request.resolver_match = get_resolver().resolve(request.path_info) if url_patterns() else None
        except Resolver404:  # the middleware decides it on the way back
            request.resolver_match = None
        rules = list(self._index.find(request))
        if request.resolver_match is not None:
            rules += map(self._as_here, self._find_in_view(request, request.resolver_match.func))
        return [rule for rule in rules if id(rule) in self._numbers], request.resolver_match

    def plan(self, key: PlanKey) -> Plan:
        """Return a plan that can be decided."""
        asked: list[Asked] = []
        for number, subject, value in key:
            rule = self.rules[number]
            asked.append((rule, subject, cast("int", rule.cost), value))
        return Plan("replay", zone=time_zone, asked=asked)


PlanKey = tuple[tuple[int, str, str], ...]
"""A plan: the number of each rule, with the subject and the digest of the value that it counts ("" for none)."""

NOT_PLACED = "it has no match=, and no view has it on its outside. Add, for example, match = '/search/'"


# --- reading ----------------------------------------------------------------------------------------------------------


class Unreadable(NamedTuple):
    """A line that could not be used."""

    number: int
    reason: str
    text: str


class Traffic:
    """The requests of a log to which a rule applies."""

    def __init__(self) -> None:
        self.times = array("q")
        self.numbers = array("I")
        """The number of each request's plan."""
        self.plans: dict[PlanKey, int] = {}
        """The plans with their numbers, from 0 on."""
        self.lines = self.requests = self.turned_away = self.unreadable = self.unordered = 0
        """The lines of the log, its requests, those answered 429, lines that could not be used, and requests that were
        out of order."""
        self.begins = self.ends = 0
        """The first and the last time, also of requests without rules."""
        self.shown: list[Unreadable] = []

    def add_request(self, entry: Entry, key: PlanKey) -> None:
        """Add a request with its plan."""
        self.requests += 1
        self.turned_away += entry.status == TOO_MANY
        self.begins = min(self.begins or entry.time, entry.time)
        self.ends = max(self.ends, entry.time)
        if key:
            self.times.append(entry.time)
            self.numbers.append(self.plans.setdefault(key, len(self.plans)))

    def add_unreadable(self, reason: str, text: str) -> None:
        """Add the last line, which could not be used."""
        self.unreadable += 1
        if len(self.shown) < MAX_SHOWN:
            self.shown.append(Unreadable(self.lines, reason, text[:MAX_TEXT]))

    def sort(self) -> None:
        """Sort the requests by time. Those of one time stay in their order."""
        times = self.times
        self.unordered = sum(map(int.__gt__, times, times[1:]))
        if self.unordered:
            order = sorted(range(len(times)), key=times.__getitem__)
            self.times = array("q", map(times.__getitem__, order))
            self.numbers = array("I", map(self.numbers.__getitem__, order))


TOO_MANY = 429


def read_traffic(lines: Iterable[str], log_format: LogFormat, rules: RuleSet, *, is_of_server: bool = False) -> Traffic:
    """Read a log. `is_of_server`: whether it is from the server behind the proxies, whose peer is the last proxy."""
    traffic = Traffic()
    adds_peer = not is_of_server and current().trusted_proxy_count > 0
    for line in lines:
        traffic.lines += 1
        if not line or line.isspace():
            continue
        try:
            entry = log_format.read(line)
            if adds_peer:  # as the proxy that wrote the log does
                hops = map(entry.meta.get, ("HTTP_X_FORWARDED_FOR", "REMOTE_ADDR"))
                entry.meta["HTTP_X_FORWARDED_FOR"] = ", ".join(filter(None, hops))
            key = rules.plan_of(entry)
        except ConfigurationError as error:
            traffic.add_unreadable(error.problem, line)
        except (UnreadableLineError, SuspiciousOperation) as error:  # Django answers 400
            traffic.add_unreadable(str(error), line)
        else:
            traffic.add_request(entry, key)
    traffic.sort()
    return traffic


# --- deciding ---------------------------------------------------------------------------------------------------------

Place = tuple[str, str]
"""The name of a rule, and a subject."""


@dataclass
class Refusals:
    """Which requests were refused, and by which rules."""

    positions: array[int] = field(default_factory=lambda: array("I"))
    by_rule: Counter[Place] = field(default_factory=Counter)
    """How often a rule refused, or would have if it were not a shadow."""
    bans: Counter[Place] = field(default_factory=Counter)

    _banned_until: dict[Place, int] = field(default_factory=dict)

    def note(self, position: int, plan: Plan, reply: Reply) -> None:
        """Note what a reply refuses."""
        if reply.verdict == REFUSED:
            self.positions.append(position)
        for at, hit in enumerate(plan.hits):
            if not reply.passed(at):
                self.by_rule[hit.rule.name, hit.subject] += 1
        for at, flag, until in reply.flags:
            place = (plan.hits[at].rule.name, plan.hits[at].subject)
            if flag == Flag.BANNED and self._banned_until.get(place) != until:
                self._banned_until[place] = until
                self.bans[place] += 1


def decide(rules: RuleSet, traffic: Traffic, advance: Callable[[int], object] = lambda _: None) -> Refusals:
    """Decide the requests by the specification, from empty counts on. `advance` gets the number of requests done."""
    keys = list(traffic.plans)
    plans: dict[int, Plan] = {}
    states, refusals = DictStates(), Refusals()
    for position, (number, now) in enumerate(zip(traffic.numbers, traffic.times, strict=True)):
        if position % SWEEP_INTERVAL == SWEEP_INTERVAL - 1:
            states.kept = {key: kept for key, kept in states.kept.items() if kept[1] > now}
            advance(SWEEP_INTERVAL)
        plan = plans.get(number)
        if plan is None:
            if len(plans) >= MAX_KNOWN:
                plans.clear()
            plan = plans[number] = rules.plan(keys[number])
        raw = plan.operation(now, "check").run(states, now)
        if plan.has_groups or not allows_without_flags(raw, plan.hits):
            refusals.note(position, plan, Reply.decode(raw, plan.hits))
    return refusals
