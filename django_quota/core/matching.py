"""`match` and `exclude` of a rule: which paths, views and hosts it applies to."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import Literal, Protocol, TypeAlias

from django_quota.core.errors import RuleError

Kind = Literal["path", "view", "host"]

PATTERN_KINDS: tuple[Kind, ...] = ("path", "view", "host")

_EXAMPLE = (
    "Use '/' (all paths), '/api/', '/files/**.zip', 're:^/v[12]/', 'api:search' (a view), 'api:*' (a namespace) or "
    "'host:api.example.com'."
)
_VIEW = re.compile(r"[^\s/:*]+(:[^\s/:*]+)*")
_NAMESPACE = re.compile(r"[^\s/:*]+(:[^\s/:*]+)*:\*")
_NOT_IN_PATHS = re.compile(r"[?#<>\[\]]|%[0-9A-Fa-f]{2}")
"""What a path never contains: a query, a converter of Django's routes or a percent escape."""

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
    """One string of `match` or `exclude`."""

    kind: Kind
    text: str
    matches: Callable[[str], object] = field(repr=False, compare=False)
    index_key: str | None = field(default=None, compare=False)
    """The key of an index; None if there is none.

    Of a path, the parts with which all that it matches begin, where `*` stands for any part: `/api/v1`, `/api/*/items`.
    Otherwise the name of a view or a namespace, or a host or its ending, such as `.example.com`.
    """


@dataclass(frozen=True)
class MatchPlace:
    """Patterns by kind. A target must match one of each kind."""

    patterns: tuple[tuple[Pattern, ...], ...]

    def matches(self, where: Target, *, unknown: bool) -> bool:
        """Return whether a target matches; see `Match.matches`."""
        for alternatives in self.patterns:  # plain loops: a request may be compared with hundreds of rules
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

    places: tuple[MatchPlace, ...]

    @classmethod
    def read(cls, option: str, value: object) -> Match:
        """Read the option of a rule: a string, a dict of strings by kind, or a list of these. Raises `RuleError`.

        A string is a path (`/api/`, `/files/*.zip`, `re:^/v[12]/`), the name of a view (`api:search`), a namespace with
        all below it (`api:*`) or a host (`host:*.example.com`). A list matches if one entry does. A dict
        (`{"path": ..., "host": ...}`) matches if all of its kinds do. The time that a glob takes grows
        in proportion to the path. A regular expression is your risk: one that backtracks may take minutes for a path.
        """
        if isinstance(value, Match):
            return value
        return cls(tuple(_place(option, entry) for entry in _entries(option, value)))

    def matches(self, where: Target, *, unknown: bool = True) -> bool:
        """Return whether a target matches one of the places.

        `unknown`: the answer for a host that Django does not allow. A client chooses it, so such a host satisfies every
        `match` and no `exclude`.
        """
        for place in self.places:  # noqa: SIM110 — a generator takes twice as long
            if place.matches(where, unknown=unknown):
                return True
        return False

    @property
    def patterns(self) -> Iterator[Pattern]:
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


_NARROWEST: tuple[Kind, ...] = ("view", "path", "host")


def _narrowest(place: MatchPlace) -> list[tuple[Kind, str]] | None:
    """Return the index keys of a kind whose patterns all have one: the kind that narrows most."""
    for alternatives in sorted(place.patterns, key=lambda patterns: _NARROWEST.index(patterns[0].kind)):
        index_keys = [(pattern.kind, pattern.index_key) for pattern in alternatives if pattern.index_key is not None]
        if len(index_keys) == len(alternatives):
            return index_keys
    return None


def _entries(place: str, value: object) -> Collection[object]:
    entries = value if isinstance(value, (list, tuple, set, frozenset)) else (value,)
    if not entries:
        raise RuleError(f"{place}={value!r} is empty.", _EXAMPLE)
    return entries


def _place(option: str, entry: object) -> MatchPlace:
    if not isinstance(entry, Mapping):
        return MatchPlace(((_pattern(option, entry),),))
    if not entry or not set(entry) <= set(PATTERN_KINDS):
        raise RuleError(f"{option}={dict(entry)!r} is not a dict of 'path', 'view' and 'host'.", _EXAMPLE)
    kinds = [(f"{option}[{kind!r}]", kind) for kind in PATTERN_KINDS if kind in entry]
    return MatchPlace(
        tuple(tuple(_pattern(place, text, kind) for text in _entries(place, entry[kind])) for place, kind in kinds)
    )


def _pattern(place: str, text: object, kind: Kind | None = None) -> Pattern:
    if not isinstance(text, str):
        raise RuleError(f"{place}={text!r} is {type(text).__name__}, not a string.", _EXAMPLE)
    if kind is None:
        kind = "path" if text.startswith(("/", "re:")) else "host" if text.startswith("host:") else "view"
    try:
        return _READERS[kind](text)
    except ValueError as error:
        raise RuleError(f"{place}={text!r} {error}.", _EXAMPLE) from None


def _view(text: str) -> Pattern:
    if _VIEW.fullmatch(text):
        return Pattern("view", text, text.__eq__, text)
    if _NAMESPACE.fullmatch(text):
        below = text.removesuffix("*")
        return Pattern("view", text, _begins_with(below), below)
    raise ValueError("is not a path, a view or a host")


def _begins_with(prefix: str) -> Callable[[str], bool]:
    return lambda text: text.startswith(prefix)


def _path(text: str) -> Pattern:
    if text.startswith("re:"):
        expression = text.removeprefix("re:")
        return Pattern("path", text, _searcher(expression), _expression_key(expression))
    if not text.startswith("/"):
        raise ValueError("is not a path")
    odd = _NOT_IN_PATHS.search(text)
    if odd is not None:
        raise ValueError(f"never matches: paths are decoded and have no {odd[0]!r}; use * and **, or 're:^/v[12]/'")
    if "*" in text:
        return Pattern("path", text, _glob_matcher(text), _glob_key(text))
    if text == "/":  # it also matches `*` and `http://host/`, which begin with no slash
        return Pattern("path", text, lambda path: True)  # noqa: ARG005
    # Without a slash at the end, a prefix matches the path itself too.
    below = text if text.endswith("/") else f"{text}/"
    return Pattern("path", text, lambda path: path == text or path.startswith(below), below[:-1])


def _searcher(expression: str) -> Callable[[str], object]:
    try:
        compiled = re.compile(expression)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    if not expression:
        raise ValueError("is not a regular expression: it is empty")
    return compiled.search


def _expression_key(expression: str) -> str | None:
    """Return the index key of a regular expression: the whole parts with which all matching paths begin; None without.

    An expression with alternatives has none: the others may begin with anything.
    """
    begins = _BEGINS.match(expression)
    return None if begins is None or "|" in expression else begins[1] or None


_BEGINS = re.compile(r"\^((?:/[\w~-]+)*)/(?![?*{])")
"""The literal beginning of an expression that is anchored by `^`, up to a slash that is not optional."""


def _glob_key(glob: str) -> str | None:
    """Return the index key of a glob. A double star may match several parts, so the key ends before it."""
    fixed = takewhile(lambda part: "**" not in part, glob.split("/")[1:])
    parts = ["*" if "*" in part else part for part in fixed]
    while parts and parts[-1] == "*":
        parts.pop()
    return "/" + "/".join(parts) if parts else None


Shape: TypeAlias = tuple[int, tuple[int, ...]]
"""What the index keys of some paths share: how many parts each has, and which of them are a `*`."""


def shape_of(path_key: str) -> Shape:
    """Return the shape of the index key of a path."""
    parts = path_key.split("/")[1:]
    return len(parts), tuple([place for place, part in enumerate(parts) if part == "*"])


def path_keys(path: str, shapes: Collection[Shape]) -> Iterator[str]:
    """Return the index keys, of these shapes, that a pattern which matches the path may have."""
    depth = max([length for length, _ in shapes], default=0)
    parts = path.split("/", depth + 1)[1 : depth + 1]  # a client chooses how many there are
    for length, stars in shapes:
        if len(parts) >= length:
            key = parts[:length]
            for place in stars:
                key[place] = "*"
            yield "/" + "/".join(key)


def _glob_matcher(glob: str) -> Callable[[str], object]:
    """Return a function that says whether a glob matches a whole path: `*` matches no slash, `**` does.

    A client chooses the path, so no part of it is tried twice: the time grows with the path, whatever the glob is. A
    group is what is between two double stars. The first group begins where the path does, and the last one ends where
    it does. For the others the first place that fits is the best, since a double star matches whatever follows.
    """
    first, *groups = re.split(r"\*{2,}", glob)
    if not groups:
        before, _, last = first.rpartition("*")
        if "*" in before:
            return _ends_in_one_part(before, last)
        return re.compile(f"{re.escape(before)}[^/]*{re.escape(last)}").fullmatch
    if len(groups) == 1 and "*" not in first + groups[0]:
        return re.compile(f"{re.escape(first)}(?s:.*){re.escape(groups[0])}").fullmatch
    begins, ends = _taker(first), _taker(groups.pop()[::-1])  # the second one in the reversed path
    searches = [re.compile(_from_anywhere(group)).search for group in groups]

    def matches(path: str) -> bool:
        taken = begins(path)
        if taken < 0:
            return False
        rest = path[taken:]
        taken = ends(rest[::-1])
        if taken < 0:
            return False
        rest = rest[: len(rest) - taken]
        for search in searches:
            found = search(rest)
            if found is None:
                return False
            rest = rest[found.end() :]
        return True

    return matches


def _ends_in_one_part(before: str, last: str) -> Callable[[str], bool]:
    """Return the matcher of a glob of several stars, none of them double: `before`, the last star, and `last`."""
    begins = _taker(before)

    def matches(path: str) -> bool:
        taken, end = begins(path), len(path) - len(last)
        return 0 <= taken <= end and path.endswith(last) and path.find("/", taken, end) < 0

    return matches


def _taker(group: str) -> Callable[[str], int]:
    """Return a function that says how many characters at the start of a string a group matches; -1 if it does not.

    Each star ends as soon as the characters after it fit. A regular expression would take 60 ns for each
    character of a long path.
    """
    first, *others = group.split("*")

    def take(text: str) -> int:
        if not text.startswith(first):
            return -1
        taken = len(first)
        for other in others:
            slash = text.find("/", taken)
            taken = text.find(other, taken, len(text) if slash < 0 else slash + len(other))
            if taken < 0:
                return -1
            taken += len(other)
        return taken

    return take


def _from_here(group: str) -> str:
    """Return the expression of a group that begins here. Each star ends as soon as the characters after it fit."""
    first, *others = map(re.escape, group.split("*"))
    return first + "".join(f"(?>[^/]*?{other})" for other in others)


def _from_anywhere(group: str) -> str:
    """Return the expression of a group that begins anywhere. Between two slashes only its first place is tried."""
    first, star, rest = group.partition("*")
    if not star or "/" in first:
        return _from_here(group)
    return rf"(?:\A|/)(?>[^/]*?{re.escape(first)}){_from_here(star + rest)}"


def _host(text: str) -> Pattern:
    host = text.removeprefix("host:").lower().removesuffix(".")
    try:  # as requests name it: `bücher.example` is `xn--bcher-kva.example`
        host = host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        host = ""
    if not _HOST.fullmatch(host):
        raise ValueError("is not a host without a port, such as 'host:*.example.com'")
    if host.startswith("*."):
        ending = host.removeprefix("*")
        return Pattern("host", f"host:{host}", lambda given: given.endswith(ending), ending)
    return Pattern("host", f"host:{host}", host.__eq__, host)


_READERS: Mapping[Kind, Callable[[str], Pattern]] = {"path": _path, "view": _view, "host": _host}
