"""`match` and `exclude` of a rule: which paths, views and hosts it applies to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol, cast

from django_quota.core.errors import RuleError, did_you_mean

Kind = Literal["path", "view", "host"]

KINDS: tuple[Kind, ...] = ("path", "view", "host")

_EXAMPLE = "Use '/api/' (a path), 'api:search' (a view), 'api:*' (a namespace) or 'host:api.example.com'."
_REGEX_EXAMPLE = "Use, for example, 're:^/v[12]/'."
_VIEW = re.compile(r"[^\s/:*]+(:[^\s/:*]+)*")
_NAMESPACE = re.compile(r"[^\s/:*]+(:[^\s/:*]+)*:\*")
_NOT_IN_PATHS = re.compile(r"[?#<>\[\]]|%[0-9A-Fa-f]{2}")
"""What a path never has: a query, a converter of Django's routes or an escape."""

_HOST = re.compile(r"(\*\.)?[^\s/:*.]+(\.[^\s/:*.]+)*|\[[0-9a-f:.]+\]", re.IGNORECASE)


class Target(Protocol):
    """The path, view and host of a request."""

    @property
    def path(self) -> str:
        """The path from its first slash, without the prefix of the site."""

    @property
    def view(self) -> str:
        """The name of the view with its namespaces, such as `"api:search"`; empty if it has none."""

    @property
    def host(self) -> str | None:
        """The host without its port, in lower case; None if Django does not allow it."""


@dataclass(frozen=True)
class Pattern:
    """One text of `match` or `exclude`."""

    kind: Kind
    text: str
    matches: Callable[[str], object] = field(repr=False, compare=False)
    index_key: str | None = field(default=None, compare=False)
    """The key of an index: the first part of a path, or the name of a view or a namespace; None if there is none."""


@dataclass(frozen=True)
class Place:
    """Patterns by kind. A target must match one of each kind."""

    patterns: tuple[tuple[Pattern, ...], ...]

    def matches(self, where: Target, *, unknown: bool) -> bool:
        """Return whether a target matches; see `Match.matches`."""
        for alternatives in self.patterns:
            value = getattr(where, alternatives[0].kind)
            if value is None:
                if not unknown:
                    return False
                continue
            for pattern in alternatives:
                if pattern.matches(value):
                    break
            else:
                return False
        return True


@dataclass(frozen=True)
class Match:
    """Places, one of which a target must match."""

    places: tuple[Place, ...]

    @classmethod
    def read(cls, option: str, value: object) -> Match:
        """Read the option of a rule: a text, a dict of texts by kind, or a list of these. Raises `RuleError`.

        A text is a path (`/api/`, `/files/*.zip`, `re:^/v[12]/`), the name of a view (`api:search`), a namespace with
        all below it (`api:*`) or a host (`host:*.example.com`). A list matches if one entry does. A dict
        (`{"path": ..., "host": ...}`) matches if all of its kinds do. A glob takes time in proportion to the path. A
        regular expression is your risk: one that backtracks may take minutes for a path.
        """
        if isinstance(value, Match):
            return value
        entries = value if isinstance(value, (list, tuple, set, frozenset)) else (value,)
        if not entries:
            raise RuleError(f"{option}={value!r} is empty.", _EXAMPLE)
        return cls(tuple(_place(option, entry) for entry in entries))

    def matches(self, where: Target, *, unknown: bool = True) -> bool:
        """Return whether a target matches one of the places.

        `unknown`: the answer for a host that Django does not allow. A client chooses it, so such a host satisfies every
        `match` and no `exclude`.
        """
        return any(place.matches(where, unknown=unknown) for place in self.places)

    @property
    def patterns(self) -> Iterator[Pattern]:
        """All patterns."""
        for place in self.places:
            for alternatives in place.patterns:
                yield from alternatives

    @cached_property
    def index_keys(self) -> frozenset[tuple[Kind, str]] | None:
        """The index keys: each matching target has at least one of them; None if keys cannot find all targets."""
        found: set[tuple[Kind, str]] = set()
        for place in self.places:
            narrow = _narrowest(place)
            if narrow is None:
                return None
            found.update(narrow)
        return frozenset(found)


def _narrowest(place: Place) -> list[tuple[Kind, str]] | None:
    """Return the index keys of a kind whose patterns all have one; views first, because they narrow more than paths."""
    for alternatives in reversed(place.patterns):
        index_keys = [(pattern.kind, pattern.index_key) for pattern in alternatives if pattern.index_key is not None]
        if len(index_keys) == len(alternatives):
            return index_keys
    return None


def _place(option: str, entry: object) -> Place:
    if not isinstance(entry, Mapping):
        return Place(((_pattern(option, entry),),))
    if not entry:
        raise RuleError(f"{option}={{}} is empty.", _EXAMPLE)
    for kind in entry:
        if kind not in KINDS:
            hint = did_you_mean(str(kind), KINDS).strip()
            raise RuleError(f"{option}={dict(entry)!r}: {kind!r} is not a kind.", hint)
    return Place(tuple(_of_kind(option, kind, entry[kind]) for kind in KINDS if kind in entry))


def _of_kind(option: str, kind: Kind, value: object) -> tuple[Pattern, ...]:
    texts: Iterable[object] = value if isinstance(value, (list, tuple, set, frozenset)) else (value,)
    patterns = tuple(_of_known_kind(option, kind, text) for text in texts)
    if not patterns:
        raise RuleError(f"{option}[{kind!r}]={value!r} is empty.", _EXAMPLE)
    for pattern in patterns:
        if pattern.kind != kind:
            raise RuleError(f"{option}[{kind!r}] holds {pattern.text!r}, which is not a {kind}.", _EXAMPLE)
    return patterns


def _of_known_kind(option: str, kind: Kind, text: object) -> Pattern:
    """Return the pattern of a text of a given kind. So a namespace may be called "host" or "re"."""
    found = None
    if isinstance(text, str):
        found = _host(option, text) if kind == "host" else _view(text) if kind == "view" else None
    return found or _pattern(option, text)


def _view(text: str) -> Pattern | None:
    """Return the pattern of a view or a namespace; None if the text is neither."""
    if _VIEW.fullmatch(text):
        return Pattern("view", text, text.__eq__, text)
    if _NAMESPACE.fullmatch(text):
        below = text.removesuffix("*")
        return Pattern("view", text, _begins_with(below), below)
    return None


def _pattern(option: str, value: object) -> Pattern:
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        compiled = cast("re.Pattern[str]", value)
        return Pattern("path", f"re:{compiled.pattern} {compiled.flags}", compiled.search)
    if not isinstance(value, str):
        raise RuleError(f"{option}={value!r} is {type(value).__name__}, not a text.", _EXAMPLE)
    if value.startswith("re:"):
        return _regex(option, value)
    if value.startswith("/"):
        return _path(option, value)
    if value.startswith("host:"):
        return _host(option, value)
    if (view := _view(value)) is not None:
        return view
    hint = "Use '/' for all paths." if value in ("*", "**") else _EXAMPLE
    raise RuleError(f"{option}={value!r} is not a path, a view or a host.", hint)


def _begins_with(prefix: str) -> Callable[[str], bool]:
    return lambda text: text.startswith(prefix)


def _path(option: str, text: str) -> Pattern:
    odd = _NOT_IN_PATHS.search(text)
    if odd is not None:
        hint = "Paths come decoded, without a query. Use a glob with * and **, such as '/items/*/', or 're:^/v[12]/'."
        raise RuleError(f"{option}={text!r} never matches: no path has {odd[0]!r}.", hint)
    return _glob(text) if "*" in text else _prefix(text)


def _prefix(text: str) -> Pattern:
    """Return the pattern of everything below a path. Without a slash at the end, it matches the path itself too."""
    if text == "/":  # it also matches `*` and `http://host/`, which begin with no slash
        return Pattern("path", text, lambda path: True)  # noqa: ARG005
    index_key = text.split("/", 2)[1] or None
    if text.endswith("/"):
        return Pattern("path", text, _begins_with(text), index_key)
    below = f"{text}/"
    return Pattern("path", text, lambda path: path == text or path.startswith(below), index_key)


def _glob(text: str) -> Pattern:
    """Return the pattern of a glob for a whole path. `*` matches no slash, `**` does."""
    first = text.split("/", 2)
    literal = len(first) > 2 and "*" not in first[1]  # noqa: PLR2004 — before, first part, rest
    return Pattern("path", text, _glob_matcher(text), (first[1] or None) if literal else None)


def _glob_matcher(text: str) -> Callable[[str], bool]:
    """Return a function that says whether a glob matches a whole path.

    A client chooses the path, so no part of it is tried twice. A group is what is between two double stars. The first
    group is anchored at the start and the last one at the end; of the others, the first place that fits is the best,
    since a double star matches whatever follows. Likewise between two single stars, up to the next slash.
    """
    first, *others = re.split(r"\*{2,}", text)
    if not others:
        before, _, last = first.rpartition("*")
        fits = re.compile(f"{_in_turn(before)}[^/]*{re.escape(last)}").fullmatch
        return lambda path: fits(path) is not None
    head = re.compile(_in_turn(first)).match
    tail = re.compile(_in_turn(others.pop()[::-1])).match  # of the path from its end
    searches = [re.compile(_anywhere(group)).search for group in others]

    def matches(path: str) -> bool:
        found = head(path)
        if found is None:
            return False
        path = path[found.end() :]
        found = tail(path[::-1])
        if found is None:
            return False
        path = path[: len(path) - found.end()]
        for search in searches:
            found = search(path)
            if found is None:
                return False
            path = path[found.end() :]
        return True

    return matches


def _in_turn(group: str) -> str:
    """Return the expression of a group that begins here. Each star ends as soon as the text after it fits."""
    first, *others = map(re.escape, group.split("*"))
    return first + "".join(f"(?>[^/]*?{part})" for part in others)


def _anywhere(group: str) -> str:
    """Return the expression of a group that begins somewhere: between two slashes only its first place is tried."""
    first, star, rest = group.partition("*")
    return (
        rf"(?:\A|/)(?>[^/]*?{re.escape(first)}){_in_turn(star + rest)}"
        if star and "/" not in first
        else _in_turn(group)
    )


def _regex(option: str, text: str) -> Pattern:
    expression = text.removeprefix("re:")
    try:
        compiled = re.compile(expression)
    except (re.error, OverflowError, RecursionError) as error:
        raise RuleError(f"{option}={text!r} is not a regular expression: {error}.", _REGEX_EXAMPLE) from None
    if not expression:
        raise RuleError(f"{option}={text!r} is not a regular expression: it is empty.", _REGEX_EXAMPLE)
    return Pattern("path", text, compiled.search)


def _ascii(host: str) -> str:
    """Return a host as requests name it: `bücher.example` is `xn--bcher-kva.example`; empty if it cannot be one."""
    try:
        return host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        return ""


def _host(option: str, text: str) -> Pattern:
    host = _ascii(text.removeprefix("host:").lower().removesuffix("."))
    if not _HOST.fullmatch(host):
        hint = "Use 'host:api.example.com' or 'host:*.example.com', without a port."
        raise RuleError(f"{option}={text!r} is not a host.", hint)
    if host.startswith("*."):
        ending = host.removeprefix("*")
        return Pattern("host", f"host:{host}", lambda given: given.endswith(ending))
    return Pattern("host", f"host:{host}", host.__eq__)
