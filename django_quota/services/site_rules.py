"""The rules of the settings that have a `match`, and which of them a request meets.

A site may have thousands of such rules, and a request may spend only microseconds on them. So an index finds them by
the name of the view, its namespaces and the first part of the path, and only those are compared with the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest
from django.http.request import split_domain_port

from django_quota.conf import QuotaSettings, current
from django_quota.core.rules import Rule


class RequestTarget:
    """The path, view and host of a request, for `Match.matches`."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        match = request.resolver_match
        self.path: str = request.path_info
        self.view: str = match.view_name if match is not None and match.view_name is not None else ""

    @cached_property
    def host(self) -> str | None:
        """The host; None if Django does not allow it."""
        try:
            return str(split_domain_port(self._request.get_host())[0])
        except DisallowedHost:  # Django will answer 400
            return None

    @property
    def index_keys(self) -> Iterator[tuple[str, str]]:
        """The keys under which the index has rules for this target."""
        yield "path", self.path.split("/", 2)[1] if self.path.startswith("/") else ""
        if self.view:
            yield "view", self.view
            end = self.view.find(":")
            while end >= 0:
                yield "view", self.view[: end + 1]
                end = self.view.find(":", end + 1)


class RuleIndex:
    """The rules of the settings that have a `match`."""

    def __init__(self, settings: QuotaSettings) -> None:
        self.settings = settings
        self._rules: list[Rule] = []
        self._everywhere: list[int] = []
        self._by_key: dict[tuple[str, str], list[int]] = {}
        for name, value in settings.rules.items():
            if isinstance(value, Mapping) and value.get("match") is not None:
                self._add(settings.rule(name))

    def _add(self, rule: Rule) -> None:
        keys = None if rule.match is None else rule.match.index_keys
        places = [self._everywhere] if keys is None else [self._by_key.setdefault(key, []) for key in keys]
        for place in places:
            place.append(len(self._rules))
        self._rules.append(rule)

    def find(self, request: HttpRequest) -> list[Rule]:
        """Return the rules that a request meets, in the order of the settings."""
        if not self._rules:
            return []
        target = RequestTarget(request)
        found = set(self._everywhere)
        for key in target.index_keys:
            found.update(self._by_key.get(key, ()))
        return [self._rules[position] for position in sorted(found) if _matches(self._rules[position], target)]


def _matches(rule: Rule, target: RequestTarget) -> bool:
    if rule.match is None or not rule.match.matches(target, unknown=True):
        return False
    return rule.exclude is None or not rule.exclude.matches(target, unknown=False)


_index: RuleIndex | None = None


def site_rules(request: HttpRequest) -> list[Rule]:
    """Return the rules of the settings that a request meets. Raises `RuleError` if a rule with a `match` is wrong."""
    global _index  # noqa: PLW0603
    settings = current()
    if _index is None or _index.settings is not settings:
        _index = RuleIndex(settings)
    return _index.find(request)
