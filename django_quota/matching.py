"""Where a rule of the settings holds by itself: paths, views and hosts, read strictly once. Pure.

It compares texts that it is given; it must not know requests, URLconfs or what a rule limits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol, cast

from django_quota.exceptions import RuleError, did_you_mean

Kind = Literal["path", "view", "host"]

KINDS: tuple[Kind, ...] = ("path", "view", "host")

_EXAMPLE = "'/api/' (a path), 'api:search' (a view), 'api:*' (a namespace) or 'host:api.example.com' would do."
_VIEW = re.compile(r"[^\s/:*]+(:[^\s/:*]+)*")
_NAMESPACE = re.compile(r"[^\s/:*]+(:[^\s/:*]+)*:\*")
_NEVER = re.compile(r"[?#<>\[\]]|%[0-9A-Fa-f]{2}")
"""What paths do not have, as they come here: a query, a converter of Django's routes, escapes; nor is it a glob's."""

_HOST = re.compile(r"(\*\.)?[^\s/:*.]+(\.[^\s/:*.]+)*|\[[0-9a-f:.]+\]", re.IGNORECASE)


class Where(Protocol):
    """What a request says of where it goes."""

    @property
    def path(self) -> str:
        """The path, from a slash on, without the prefix that the site is mounted under."""

    @property
    def view(self) -> str:
        """The view's name with its namespaces, such as `"api:search"`; empty where there is none."""

    @property
    def host(self) -> str | None:
        """The host without its port, in lower case; None where Django does not allow it, so that it is unknown."""


@dataclass(frozen=True)
class Pattern:
    """One text of `match` or `exclude`, and what it is compared with."""

    kind: Kind
    text: str
    fits: Callable[[str], object] = field(repr=False, compare=False)
    anchor: str | None = field(default=None, compare=False)
    """What can be looked up before comparing: the first part of a path, or the name of a view or a namespace."""


@dataclass(frozen=True)
class Place:
    """Patterns that must fit together: of each kind that is named at least one."""

    patterns: tuple[tuple[Pattern, ...], ...]

    def holds(self, where: Where, *, unknown: bool) -> bool:
        """Say whether a request goes there; `unknown`: what is said of a host that is unknown."""
        for alternatives in self.patterns:
            value = getattr(where, alternatives[0].kind)
            if value is None:
                if not unknown:
                    return False
                continue
            for pattern in alternatives:
                if pattern.fits(value):
                    break
            else:
                return False
        return True


@dataclass(frozen=True)
class Match:
    """Places of which one is enough."""

    places: tuple[Place, ...]

    @classmethod
    def read(cls, option: str, value: object) -> Match:
        """Read what a rule says: a text, a dict of texts by kind, or a list of those. Raises `RuleError`.

        A text is a path (`/api/`, `/files/*.zip`, `re:^/v[12]/`), the name of a view (`api:search`), a namespace with
        all below it (`api:*`) or a host (`host:*.example.com`). A list fits where any of its entries does, a dict
        (`{"path": ..., "host": ...}`) where all of its kinds do. A glob takes time in proportion to the path; a regular
        expression is the site's own risk, since one that goes back and forth may take minutes for a path.
        """
        if isinstance(value, Match):
            return value
        entries = value if isinstance(value, (list, tuple, set, frozenset)) else (value,)
        if not entries:
            raise RuleError(f"{option}={value!r} names nothing.", _EXAMPLE)
        return cls(tuple(_place(option, entry) for entry in entries))

    def holds(self, where: Where, *, unknown: bool = True) -> bool:
        """Say whether a request goes to any of the places.

        `unknown`: what is said of a host that Django does not allow. A stranger chooses it: so it satisfies a `match`,
        and never an `exclude`.
        """
        return any(place.holds(where, unknown=unknown) for place in self.places)

    @property
    def patterns(self) -> Iterator[Pattern]:
        """All patterns."""
        for place in self.places:
            for alternatives in place.patterns:
                yield from alternatives

    @cached_property
    def anchors(self) -> frozenset[tuple[Kind, str]] | None:
        """What a request must have one of to fit: first parts of paths, names of views; None where nothing is known."""
        found: set[tuple[Kind, str]] = set()
        for place in self.places:
            narrow = _narrowest(place)
            if narrow is None:
                return None
            found.update(narrow)
        return frozenset(found)


def _narrowest(place: Place) -> list[tuple[Kind, str]] | None:
    """Return the anchors of a kind of which every pattern has one; that of the views before that of the paths."""
    for alternatives in reversed(place.patterns):
        anchors = [(pattern.kind, pattern.anchor) for pattern in alternatives if pattern.anchor is not None]
        if len(anchors) == len(alternatives):
            return anchors
    return None


def _place(option: str, entry: object) -> Place:
    if not isinstance(entry, Mapping):
        return Place(((_pattern(option, entry),),))
    if not entry:
        raise RuleError(f"{option}={{}} names nothing.", _EXAMPLE)
    for kind in entry:
        if kind not in KINDS:
            hint = did_you_mean(str(kind), KINDS).strip()
            raise RuleError(f"{option}={dict(entry)!r}: {kind!r} is not a kind of place.", hint)
    return Place(tuple(_of_kind(option, kind, entry[kind]) for kind in KINDS if kind in entry))


def _of_kind(option: str, kind: Kind, value: object) -> tuple[Pattern, ...]:
    texts: Iterable[object] = value if isinstance(value, (list, tuple, set, frozenset)) else (value,)
    patterns = tuple(_of_known_kind(option, kind, text) for text in texts)
    if not patterns:
        raise RuleError(f"{option}[{kind!r}]={value!r} names nothing.", _EXAMPLE)
    for pattern in patterns:
        if pattern.kind != kind:
            raise RuleError(f"{option}[{kind!r}] holds {pattern.text!r}, which is no {kind}.", _EXAMPLE)
    return patterns


def _of_known_kind(option: str, kind: Kind, text: object) -> Pattern:
    """Return the pattern of a text whose kind is given, so that a namespace may be called "host" or "re"."""
    found = None
    if isinstance(text, str):
        found = _host(option, text) if kind == "host" else _view(text) if kind == "view" else None
    return found or _pattern(option, text)


def _view(text: str) -> Pattern | None:
    """Return the pattern of the name of a view or a namespace; None where the text is neither."""
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
    hint = "'/' holds everywhere." if value in ("*", "**") else _EXAMPLE
    raise RuleError(f"{option}={value!r} is neither a path, a view nor a host.", hint)


def _begins_with(prefix: str) -> Callable[[str], bool]:
    return lambda text: text.startswith(prefix)


def _path(option: str, text: str) -> Pattern:
    odd = _NEVER.search(text)
    if odd is not None:
        hint = "Paths come decoded and without a query; a glob has * and **: '/items/*/'. 're:^/v[12]/' would do too."
        raise RuleError(f"{option}={text!r} would never fit: no path has {odd[0]!r}.", hint)
    return _glob(text) if "*" in text else _prefix(text)


def _prefix(text: str) -> Pattern:
    """Return the pattern of a path and all below it; without a slash at its end, of the path itself too."""
    if text == "/":  # targets such as `*` and `http://host/`, which no slash begins, are somewhere too
        return Pattern("path", text, lambda path: True)  # noqa: ARG005
    anchor = text.split("/", 2)[1] or None
    if text.endswith("/"):
        return Pattern("path", text, _begins_with(text), anchor)
    below = f"{text}/"
    return Pattern("path", text, lambda path: path == text or path.startswith(below), anchor)


def _glob(text: str) -> Pattern:
    """Return the pattern of a glob, which fits a whole path: `*` stays within a part of it, `**` does not."""
    first = text.split("/", 2)
    literal = len(first) > 2 and "*" not in first[1]  # noqa: PLR2004 — before, first part, rest
    return Pattern("path", text, Glob(text).fits, (first[1] or None) if literal else None)


class Glob:
    """A glob, compared in one pass: a stranger chooses the path, and a regular expression would go back and forth.

    It follows all ways through the glob at once. A way is a bit: bit i means that part i of the glob comes next, and
    the bit behind the last part that all of it has been met. A part is a sign or a star.
    """

    def __init__(self, text: str) -> None:
        prefix, stars, rest = re.split(r"(\*+)", text, maxsplit=1)
        self._prefix = prefix
        self._signs: dict[str, int] = {}
        """The parts that each sign fits."""
        self._stars = 0
        """The parts that are stars: they may fit nothing at all, and the next sign as well."""
        self._double_stars = 0
        """Those of them that fit a slash, too."""
        position = 0
        for part in re.split(r"(\*+)", stars + rest):
            if part.startswith("*"):
                self._stars |= 1 << position
                self._double_stars |= (len(part) > 1) << position
                position += 1
                continue
            for sign in part:
                self._signs[sign] = self._signs.get(sign, 0) | 1 << position
                position += 1
        self._end = 1 << position

    def fits(self, path: str) -> bool:
        """Say whether it fits a whole path."""
        return path.startswith(self._prefix) and self.follow(path[len(self._prefix) :])

    def follow(self, signs: Iterable[str]) -> bool:
        """Say whether the parts from the first star on fit all of these signs."""
        known, stars = self._signs.get, self._stars
        ways = 0b11  # a star comes first: it is met, or passed over
        for sign in signs:
            stays = ways & (self._double_stars if sign == "/" else stars)
            ways = (ways & known(sign, 0)) << 1 | stays
            if not ways:
                return False
            ways |= (ways & stars) << 1
        return bool(ways & self._end)


def _regex(option: str, text: str) -> Pattern:
    expression = text.removeprefix("re:")
    try:
        compiled = re.compile(expression)
    except (re.error, OverflowError, RecursionError) as error:
        raise RuleError(f"{option}={text!r} is no regular expression: {error}.", "'re:^/v[12]/' would do.") from None
    if not expression:
        raise RuleError(f"{option}={text!r} is no regular expression: it is empty.", "'re:^/v[12]/' would do.")
    return Pattern("path", text, compiled.search)


def _ascii(host: str) -> str:
    """Return a host as requests name it: `bücher.example` is `xn--bcher-kva.example`; empty where it cannot be one."""
    try:
        return host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        return ""


def _host(option: str, text: str) -> Pattern:
    host = _ascii(text.removeprefix("host:").lower().removesuffix("."))
    if not _HOST.fullmatch(host):
        hint = "'host:api.example.com' or 'host:*.example.com' would do; ports do not count."
        raise RuleError(f"{option}={text!r} names no host.", hint)
    if host.startswith("*."):
        ending = host.removeprefix("*")
        return Pattern("host", f"host:{host}", lambda given: given.endswith(ending))
    return Pattern("host", f"host:{host}", host.__eq__)
