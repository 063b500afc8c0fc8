"""The rules of the settings that hold by themselves, found for a request by where it goes. It asks no store.

Finding them must cost microseconds, however many there are: they are looked up by the view's name, its namespaces and
the first part of the path, and only what is found so is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest
from django.http.request import split_domain_port

from django_quota.conf import QuotaSettings, current
from django_quota.rules import Rule


class Destination:
    """Where a request goes; see `matching.Where`."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        match = request.resolver_match
        self.path: str = request.path_info
        self.view: str = match.view_name if match is not None and match.view_name is not None else ""

    @cached_property
    def host(self) -> str | None:
        """The host; None where Django does not allow it."""
        try:
            return str(split_domain_port(self._request.get_host())[0])
        except DisallowedHost:  # Django's answer will be 400
            return None

    @property
    def anchors(self) -> Iterator[tuple[str, str]]:
        """What rules are looked up by."""
        yield "path", self.path.split("/", 2)[1] if self.path.startswith("/") else ""
        if self.view:
            yield "view", self.view
            end = self.view.find(":")
            while end >= 0:
                yield "view", self.view[: end + 1]
                end = self.view.find(":", end + 1)


class RuleIndex:
    """The rules of one reading of the settings that say where they hold."""

    def __init__(self, settings: QuotaSettings) -> None:
        self._settings = settings
        self._names: list[str] = []
        self._everywhere: list[int] = []
        self._by_anchor: dict[tuple[str, str], list[int]] = {}
        for name, value in settings.rules.items():
            if isinstance(value, Mapping) and value.get("match") is not None:
                self._add(settings.rule(name))

    def _add(self, rule: Rule) -> None:
        anchors = None if rule.match is None else rule.match.anchors
        places = [self._everywhere] if anchors is None else [self._by_anchor.setdefault(each, []) for each in anchors]
        for place in places:
            place.append(len(self._names))
        self._names.append(rule.name)

    def __bool__(self) -> bool:
        return bool(self._names)

    def find(self, request: HttpRequest) -> list[Rule]:
        """Return the rules that hold where a request goes, in the order of the settings."""
        where = Destination(request)
        found = set(self._everywhere)
        for anchor in where.anchors:
            found.update(self._by_anchor.get(anchor, ()))
        rules = (self._settings.rule(self._names[position]) for position in sorted(found))
        return [rule for rule in rules if _holds(rule, where)]


def _holds(rule: Rule, where: Destination) -> bool:
    if rule.match is None or not rule.match.holds(where, unknown=True):
        return False
    return rule.exclude is None or not rule.exclude.holds(where, unknown=False)


class _Current:
    """The index of the settings as they stand, made anew where a rule was put in, taken out or replaced."""

    def __init__(self) -> None:
        self._seen: tuple[object, object, RuleIndex | None] = (None, None, None)

    def __call__(self) -> RuleIndex:
        settings = current()
        rules = settings.rules
        written = (tuple(rules), tuple(rules.values())) if rules else ()
        seen, wrote, index = self._seen
        if index is None or seen is not settings or wrote != written:
            index = RuleIndex(settings)
            self._seen = (settings, written, index)
        return index


_index = _Current()


def site_rules(request: HttpRequest) -> list[Rule]:
    """Return the rules of the settings that hold where a request goes.

    A `match` that is changed inside the dict of a rule is not looked up anew. Raises `RuleError` where a rule that says
    where it holds is wrong.
    """
    index = _index()
    return index.find(request) if index else []
