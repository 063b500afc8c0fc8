"""The errors of the package. `QuotaExceeded` is in `decisions`, with the Decision that it carries.

`except QuotaError` catches all of them. An error about a wrong value names the value, its place, and what to write
instead.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable
from typing import Any


class Translatable(str):
    """A string that remembers its template and values, so that pages can translate it. The core has no translations.

    `Translatable("%(text)s is not a network.", text="'x'")`. Values may be Translatable, too. `make messages` finds it.
    """

    __slots__ = ("template", "values")

    template: str
    values: dict[str, object]

    def __new__(cls, template: str, **values: object) -> Translatable:
        """Fill `values` into the template, in English."""
        self = super().__new__(cls, template % values if values else template)
        self.template = template
        self.values = values
        return self

    @classmethod
    def sentences(cls, first: str, second: str) -> Translatable:
        """Return two sentences, of which the second may be empty."""
        return cls("%(first)s %(second)s" if second else "%(first)s", first=first, second=second)

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


class QuotaError(Exception):
    """The base class of all errors of django_quota.

    `args` are the arguments of the constructor, so that an error can be pickled.
    """


class ConfigurationError(QuotaError):
    """A setting, an option or the deployment is wrong. `problem` says what, `hint` what to write instead."""

    def __init__(self, problem: str, hint: str = "") -> None:
        self.problem: str = problem
        self.hint: str = hint.strip() if hint.startswith(" ") else hint  # a Translatable stays one

    def __str__(self) -> str:
        return str.__str__(self.in_full)

    @property
    def in_full(self) -> Translatable:
        """What `str()` returns, as pages can translate it."""
        return Translatable.sentences(self.problem, self.hint)


class RuleError(ConfigurationError, ValueError):
    """An option of a rule is wrong: unknown, not for this algorithm, or with a bad value."""


class AlgorithmError(RuleError):
    """There is no algorithm with this name."""


class SubjectKeyError(RuleError):
    """The key of a rule is wrong: of an unknown kind, a function that cannot be imported, or missing."""


class RateError(RuleError):
    """A rate cannot be read.

    `text`: the given value. `position`: the index of the first wrong character, None if the whole value is wrong.
    `problem`: what is wrong there. `hint`: what to write instead. `place`: the option that has the rate, if it is not
    the rate of a rule.
    """

    def __init__(self, text: object, position: int | None, problem: str, hint: str, place: str = "") -> None:
        super().__init__(problem, hint)
        self.place = place
        self.text = text
        self.position = position

    @property
    def in_full(self) -> Translatable:
        """What `str()` returns, as pages can translate it."""
        text = f"{self.place}={reprlib.repr(self.text)}" if self.place else reprlib.repr(self.text)
        words: dict[str, object] = {"text": text, "problem": self.problem}
        if self.position is None:
            return Translatable.sentences(Translatable("%(text)s is not a rate: %(problem)s.", **words), self.hint)
        words["position"] = self.position
        return Translatable.sentences(
            Translatable("%(text)s is not a rate: %(problem)s (at position %(position)d).", **words), self.hint
        )


class StoreUnavailable(QuotaError):  # noqa: N818 — a public name of the design
    """The store could not decide: no connection, no answer in time, or an error reply.

    `reason`: what is wrong, in a short string of one line without secrets.
    """

    is_of_database = False
    """Whether the database did not answer, and not Redis or the memory of the process: a site may use two stores."""

    def __init__(self, reason: str) -> None:
        self.reason: str = without_secrets(reason)
        super().__init__(self.reason)  # the given reason may have secrets

    def __str__(self) -> str:
        return f"The quota store is unavailable: {self.reason}"


class StoreRefusesWrites(StoreUnavailable):
    """The store answers, but accepts no writes: it is a replica, cannot save, has too few replicas, or is full."""


class StoreOutOfMemory(StoreRefusesWrites):
    """The memory of Redis, or the disk of the database, is full."""


class StorePermissionDenied(StoreUnavailable):
    """The store refuses the login or a command. Change the user there, or the password in the settings."""


class StoreCommandDenied(StorePermissionDenied):
    """The user lacks a command that a script uses. Other calls work."""


class StoreDataError(StoreUnavailable):
    """The store works, but a key holds data that django_quota did not write. Other subjects are still decided."""


class StoreConnectionLost(StoreUnavailable):
    """A connection was lost during a call. The store may have executed the call, so it is not repeated.

    The next call uses another connection. So one such loss is not an outage.
    """


class StoreFull(StoreUnavailable):
    """The memory store holds its maximum of keys and cannot add another. Nothing was changed."""

    def __init__(self, reason: str = "the memory of this process holds its maximum of keys") -> None:
        super().__init__(reason)


class StoreBusy(StoreUnavailable):
    """This process already makes as many calls at once as it may. The store may be fine, so this is not an outage.

    Nothing was sent. Rules with `on_unavailable="allow"` are decided in the memory of this process.
    """


class CounterError(QuotaError):
    """A counter would overflow 64 bits, or its key holds another type. Nothing was changed.

    `counter` and `subject` say which counter, `problem` what is wrong.
    """

    def __init__(self, counter: str, subject: str, problem: str) -> None:
        self.counter = counter
        self.subject = subject
        self.problem = problem

    def __str__(self) -> str:
        return str.__str__(self.in_full)

    @property
    def in_full(self) -> Translatable:
        """What `str()` returns, as pages can translate it."""
        words = {"counter": repr(self.counter), "subject": self.subject, "problem": self.problem}
        return Translatable("Counter %(counter)s of %(subject)s: %(problem)s", **words)


class LeaseLost(QuotaError):  # noqa: N818 — a public name of the design
    """A lease expired, or was removed, before it was released or renewed. Another caller may hold the slot now.

    `slot` and `subject` say which lease.
    """

    def __init__(self, slot: str, subject: str) -> None:
        self.slot = slot
        self.subject = subject

    def __str__(self) -> str:
        return str.__str__(self.in_full)

    @property
    def in_full(self) -> Translatable:
        """What `str()` returns, as pages can translate it."""
        return Translatable(
            "The lease of slot %(slot)s for %(subject)s was lost: it expired, or was removed, before it was released. "
            "Use a longer lease=, or renew=True.",
            slot=repr(self.slot),
            subject=self.subject,
        )


_CREDENTIALS = re.compile(r"(\w+://|\b)\S*@")
"""The user and password of a URL."""

_OPTIONS = re.compile(r"\b(password|username)=[^&\s'\"]*", re.IGNORECASE)
"""The user and password as query options of a URL."""

_ARGUMENTS = re.compile(r"(with args beginning with).*", re.DOTALL)
"""Redis repeats the arguments of an unknown command; those of AUTH and HELLO are passwords."""


_CLIENT = re.compile(r"<redis\..*", re.DOTALL)
"""redis-py shows a client with all its options. A password may contain any character, so drop all that follows."""


_MARKS = ("@", "=", "with args", "<redis.")
"""A string without any of these has no secrets."""


def without_secrets(text: str) -> str:
    """Return a string, such as a URL or an error of a server, without passwords and on one line."""
    if text.isprintable() and not any(mark in text for mark in _MARKS):
        return text  # the usual case, and a hot path while the store is down
    text = _CLIENT.sub("<redis...", text)
    text = _ARGUMENTS.sub(r"\1 ...", _OPTIONS.sub(r"\1=***", _CREDENTIALS.sub(r"\1***@", text)))
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that is most similar, or whose last dotted part is this word; "" if there is none."""
    words = {each.lower(): each for each in sorted(known)}  # so that "rules" is close to "RULES"
    word = word.lower()
    # The headers call the rule "shop.views.search" "search".
    near = difflib.get_close_matches(word, words) or [each for each in words if each.endswith(f".{word}")]
    return words[near[0]] if near else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" with the nearest known word, or the list of known words if none is near."""
    words = sorted(known)
    near = nearest(word, words)
    if near:
        return f" Did you mean {near!r}?"
    return f" Known: {', '.join(words)}." if words else ""
