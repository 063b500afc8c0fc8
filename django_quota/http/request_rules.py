"""The rules of a request: those of the settings that fit it by their `match`, and those of `@quota` on its view.

A site may have thousands of rules with a `match`, and finding those of a request must take only microseconds. So an
index picks candidates by the name of the view, its namespaces, the first parts of the path and the host, and only these
are compared with the request. The index remembers what fits a path, a view and, if a rule asks for it, a host. The
slots of the settings have an index, too.

The middleware decides the `@quota` on the outside of a view in one call with the configured rules. If another
decorator is above a `@quota`, that decorator must run first, and the `@quota` decides by itself.

Some rules wait until the view knows more about the request. Django REST framework reads tokens inside the view. Before
that, a rule by user would count all users with tokens as one anonymous visitor. So an integration says with
`register_late_views` which views decide such rules themselves. The middleware and `@quota` then leave these rules on
the request, and decide the others right away. If the view answers without deciding them, for example because a wrong
token got a 401, they are decided after the view.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest
from django.http.request import split_domain_port
from django.views import View

from django_quota.conf import QuotaSettings, current
from django_quota.core.matching import Kind, Match, Shape, Target, path_keys, shape_of
from django_quota.core.rules import Rule
from django_quota.http.views import called_view, own, path_of_view

F = TypeVar("F", bound=Callable[[Any], bool])


def rules_before(request: HttpRequest, view: Callable[..., Any]) -> tuple[list[Rule], list[Rule], Limited | None]:
    """Return the rules to decide before a view: those of the settings, and those of the `@quota` on its outside.

    Also return the rules that wait for the view, and the `@quota`, which must not decide its rules again.
    """
    spec, owner = _quota_of(view, request.method)
    rules = site_rules(request)
    if spec is not None:
        rules = rules + spec.rules(owner)
    return *_split(rules, view, ()), spec


def rules_of(spec: Limited, owner: type | None, args: tuple[Any, ...]) -> tuple[list[Rule], list[Rule]]:
    """Return the rules of a `@quota` to decide before its view, and those that wait for the view.

    `owner`: the class of the view, None for a function; `args`: the arguments of the call.
    """
    return _split(spec.rules(owner), spec.view, args)


def _split(rules: list[Rule], view: Any, args: tuple[Any, ...]) -> tuple[list[Rule], list[Rule]]:
    for rule in rules:
        if rule.needs_view:
            break
    else:  # as for most requests
        return rules, []
    if not is_decided_later(called_view(view, args)):
        return rules, []
    return [rule for rule in rules if not rule.needs_view], [rule for rule in rules if rule.needs_view]


# --- the rules of the settings, by their `match` ----------------------------------------------------------------------


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


MAX_KNOWN, MAX_PATH = 1_000, 200
"""For how many places a process remembers the rules, and how many characters the path and the host of one have."""

ANY_HOST: tuple[Kind, str] = ("host", "")
"""The key under which the index has every rule that it has under a host."""


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


# --- the `@quota` of a view -------------------------------------------------------------------------------------------


MAX_CLASSES = 100
"""For how many classes of views that share a method, such as an inherited one, a `@quota` remembers its rules."""


class RuleSource:
    """The rule of one `@quota`: the decorator's own, or one of the settings."""

    __slots__ = ("_made", "rule", "suffix")

    def __init__(self, rule: str | Rule, suffix: str | None, made: dict[str, Rule]) -> None:
        self.rule: str | Rule = rule
        """The decorator's own rule, or the name of a configured rule."""
        self.suffix: str | None = suffix
        """What follows the path of the view in the name of an unnamed rule; None if the rule has a name."""
        self._made: dict[str, Rule] = made
        """The rules with such names. `@quota` keeps them: `method_decorator` applies it at each request."""

    def rule_for(self, path: str) -> Rule:
        """Return the rule of the view with this path."""
        rule = self.rule
        if isinstance(rule, str):
            return current().rule(rule)
        if self.suffix is None:
            return rule
        name = path + self.suffix
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = rule.renamed(name)
        return made


class Limited:
    """What `@quota` remembers of a view: the view, and the rules of all `@quota` directly on it."""

    __slots__ = ("_known", "_path", "names", "sources", "view")

    attribute: ClassVar[str] = "django_quota_limits"

    def __init__(self, view: Callable[..., Any], path: str, sources: tuple[RuleSource, ...]) -> None:
        self.view: Callable[..., Any] = view
        self._path = path
        self.sources: tuple[RuleSource, ...] = sources
        rules = [source.rule for source in sources]
        self.names: list[str] = [rule for rule in rules if isinstance(rule, str)]
        """The names of its rules from the settings."""
        self._known: dict[type | None, list[Rule]] = {}
        """The rules by class of the view (None for a function). Empty if one is from the settings, which may change."""

    def rules(self, owner: type | None) -> list[Rule]:
        """Return its rules, for a view of this class (None for a function)."""
        rules = self._known.get(owner)
        if rules is None:
            path = self._path if owner is None else path_of_view(self.view, owner)
            rules = [source.rule_for(path) for source in self.sources]
            if not self.names:
                if len(self._known) >= MAX_CLASSES:
                    self._known.clear()
                self._known[owner] = rules
        return rules


def rules_of_view(request: HttpRequest, view: Callable[..., Any]) -> list[Rule]:
    """Return the rules of the `@quota` on the outside of a view."""
    spec, owner = _quota_of(view, request.method)
    return spec.rules(owner) if spec else []


def _quota_of(view: Callable[..., Any], method: str | None) -> tuple[Limited | None, type | None]:
    """Return the `@quota` on the outside of a view, and the class of the view (None for a function)."""
    try:
        spec, owner = _outermost(view)
    except TypeError:  # it has no hash
        spec, owner = _outermost.__wrapped__(view)
    if spec is None and owner is not None:
        spec = own(_handler(owner, method), Limited)
    return spec, owner


@lru_cache(maxsize=1024)
def _outermost(view: Any) -> tuple[Limited | None, type | None]:
    """Return the outermost `@quota` of a view, and the class; only the class if each method has its own `@quota`."""
    found = own(view, Limited)
    if found is not None:
        return found, None
    owner: Any = getattr(view, "view_class", None)
    if owner is None or owner.setup is not View.setup or not _CHOSEN_BY_THE_CLASS.isdisjoint(view.view_initkwargs):
        return None, None
    if hasattr(getattr(view, "__wrapped__", None), "view_class"):
        return None, None  # a decorator is around what `as_view()` returned
    if owner.dispatch is View.dispatch:
        return None, owner
    found = own(owner.dispatch, Limited)
    return found, None if found is None else owner


def _handler(owner: type, method: str | None) -> Any:
    """Return the method of a class-based view that answers, as `View.dispatch` does."""
    name = (method or "").lower()
    if name not in getattr(owner, "http_method_names", ()):
        return None
    return getattr(owner, name, None) or (getattr(owner, "get", None) if name == "head" else None)


_CHOSEN_BY_THE_CLASS = frozenset({"dispatch", "http_method_names", "setup"})
"""The attributes that choose the method which answers; `as_view()` may replace them."""

# --- rules that wait for the view -------------------------------------------------------------------------------------

_finders: list[Callable[[Any], bool]] = []


def register_late_views(finder: F) -> F:
    """Register a function that says whether a view decides its rules by itself; it can be used as a decorator.

    The function gets the view as Django calls it: a function, for example from `as_view()`, a class or its instance.
    Such a view must call `take_waiting_rules` (in `adapters`), and decide what that returns; if it is allowed, also
    `take_waiting_slots`.
    """
    _finders.append(finder)
    return finder


def is_decided_later(view: Any) -> bool:
    """Return whether a view itself decides the rules that need the user."""
    return any(finder(view) for finder in _finders)
