"""The rules and slots that the settings apply by a `match`, and which of them fit a request.

A site may have thousands of such rules, and finding those of a request must take only microseconds. So an index picks
candidates by the name of the view, its namespaces, the first parts of the path and the host, and only these are
compared with the request. The index remembers what fits a path, a view and, if a rule asks for it, a host.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import Generic, NamedTuple, Protocol, TypeVar

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest
from django.http.request import split_domain_port

from django_quota.conf import QuotaSettings, current
from django_quota.core.matching import Kind, Match, Shape, Target, path_keys, shape_of
from django_quota.core.rules import Rule

MAX_KNOWN, MAX_PATH = 1_000, 200
"""For how many places a process remembers the rules, and how many characters the path and the host of one have."""

ANY_HOST: tuple[Kind, str] = ("host", "")
"""The key under which the index has every rule that it has under a host."""


class RequestTarget(NamedTuple):
    """The path, view and host of a request, for `Match.matches`."""

    path: str
    view: str
    host: str | None
    """None if Django does not allow it, or if no rule asks for it."""

    def index_keys(self, shapes: Collection[Shape]) -> Iterator[tuple[str, str]]:
        """Return the keys under which the index has rules for this target; `shapes`: those of its keys of paths."""
        for key in path_keys(self.path, shapes):
            yield "path", key
        if self.view:
            yield "view", self.view
            end = self.view.find(":")
            while end >= 0:
                yield "view", self.view[: end + 1]
                end = self.view.find(":", end + 1)

    def host_keys(self, dots: int) -> Iterator[tuple[str, str]]:
        """Return the keys of rules by host. `dots`: the most that such a key has; a host of a client may have more.

        Any of these rules may fit a host that Django does not allow.
        """
        host = self.host
        if host is None:
            yield ANY_HOST
            return
        yield "host", host
        end = len(host)
        for _ in range(dots):
            end = host.rfind(".", 0, end)
            if end < 0:
                break
            yield "host", host[end:]


def _host_of(request: HttpRequest) -> str | None:
    """Return the host of a request, perhaps with a port; None if Django does not allow it."""
    try:
        return request.get_host()
    except DisallowedHost:  # Django will answer 400
        return None


class Placed(Protocol):
    """A rule or a slot of the settings."""

    @property
    def match(self) -> Match | None:
        """Where the middleware applies it."""

    @property
    def exclude(self) -> Match | None:
        """Where the middleware does not apply it, even if `match` fits."""


P = TypeVar("P", bound=Placed)


class RuleIndex(Generic[P]):
    """Rules or slots that have a `match`, and which of them fit a request."""

    def __init__(self, rules: Iterable[P]) -> None:
        self.rules: list[P] = []
        """All of them, in their order."""
        self._everywhere: list[int] = []
        self._by_key: dict[tuple[str, str], list[int]] = {}
        self._asks_host = False
        """Whether the host of a request matters, too."""
        self._known: dict[tuple[str, str, str | None], list[P]] = {}
        """The rules that fit a path, a view and a host as it was sent; no host (None) if no rule asks for it."""
        for rule in rules:
            self._add(rule)
        self._dots = max((key.count(".") for kind, key in self._by_key if kind == "host"), default=0)
        self._shapes = {shape_of(key) for kind, key in self._by_key if kind == "path"}

    def _add(self, rule: P) -> None:
        for option in (rule.match, rule.exclude):
            if option is not None and any(pattern.kind == "host" for pattern in option.patterns):
                self._asks_host = True
        keys = None if rule.match is None else rule.match.index_keys
        if keys is not None and any(kind == "host" for kind, _ in keys):
            keys = keys | {ANY_HOST}
        places = [self._everywhere] if keys is None else [self._by_key.setdefault(key, []) for key in keys]
        for place in places:
            place.append(len(self.rules))
        self.rules.append(rule)

    def find(self, request: HttpRequest) -> list[P]:
        """Return the rules that fit a request, in their order. Do not change the list."""
        if not self.rules:
            return []
        match = request.resolver_match
        view = "" if match is None else match.view_name or ""
        place = request.path_info, view, _host_of(request) if self._asks_host else None
        rules = self._known.get(place)
        if rules is None:
            path, view, host = place
            rules = self._find(RequestTarget(path, view, None if host is None else split_domain_port(host)[0]))
            if len(path) + len(host or "") <= MAX_PATH:
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                self._known[place] = rules
        return rules

    def _find(self, target: RequestTarget) -> list[P]:
        found = set(self._everywhere)
        keys = target.index_keys(self._shapes)
        for key in chain(keys, target.host_keys(self._dots)) if self._asks_host else keys:
            found.update(self._by_key.get(key, ()))
        return [self.rules[position] for position in sorted(found) if applies_to(self.rules[position], target)]


def applies_to(rule: Placed, target: Target) -> bool:
    """Return whether the `match` of a configured rule or slot fits, and its `exclude` does not."""
    if rule.match is None or not rule.match.matches(target, unknown=True):
        return False
    return rule.exclude is None or not rule.exclude.matches(target, unknown=False)


def site_rules(request: HttpRequest) -> list[Rule]:
    """Return the configured rules that fit a request. Raises `RuleError` if a rule with a `match` is wrong."""
    return rule_index(current()).find(request)


@lru_cache(maxsize=1)
def rule_index(settings: QuotaSettings) -> RuleIndex[Rule]:
    """Return the rules of the settings that have a `match`. Raises `RuleError` if one is wrong."""
    placed = [
        name for name, value in settings.rules.items() if isinstance(value, Mapping) and value.get("match") is not None
    ]
    return RuleIndex(map(settings.rule, placed))
