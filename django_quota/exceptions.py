"""Every error of the package. Pure: it must not know Django or Redis.

`QuotaError` is the root, so that `except QuotaError` catches whatever this package raises. An error that comes from a
wrong value names the value, the place, and a value that would do.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_quota.decisions import Decision


class QuotaError(Exception):
    """The root of all errors of django_quota."""


class ConfigurationError(QuotaError):
    """A setting, an option or the deployment is wrong; the text says which, and `hint` what would do."""

    def __init__(self, problem: str, hint: str = "") -> None:
        self.problem = problem
        self.hint = hint
        super().__init__(f"{problem} {hint}".strip())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.hint)


class RuleError(ConfigurationError, ValueError):
    """A rule's option is wrong: an unknown algorithm, an option that the algorithm does not take, a bad value."""


class AlgorithmError(RuleError):
    """There is no algorithm of this name."""


class SubjectKeyError(RuleError):
    """A rule's key tells no subject: an unknown kind, a function that cannot be imported, or no key at all."""


class RateError(RuleError):
    """A rate, or the span of a ban, cannot be read.

    `text` is what was given, `position` the index of the first character that does not fit (None where the whole
    value is of the wrong type), `problem` what is wrong there, `hint` what would do.
    """

    def __init__(self, text: object, position: int | None, problem: str, hint: str, what: str = "a rate") -> None:
        self.text = text
        self.position = position
        self.problem = problem
        self.hint = hint
        self.what = what
        place = "" if position is None else f" at position {position}"
        QuotaError.__init__(self, f"{reprlib.repr(text)} is not {what}: {problem}{place}. {hint}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.text, self.position, self.problem, self.hint, self.what)


class StoreUnavailable(QuotaError):  # noqa: N818 — a public name of the design
    """The store could not decide: no connection, no answer in time, or an error reply.

    `reason` is a short text without secrets, on one line; the cause is the store's own error. `only_writes`: the store
    answers, but changes nothing: it is read-only or full. `not_permitted`: it does not let us in, or do what was asked,
    which does not pass by itself. `only_here`: it is well, but what lies under a key of ours is not ours, or a script
    may not use one of its commands; that is `not_permitted`, too. `out_of_memory`: the memory of Redis is full; that is
    `only_writes`, too.
    """

    def __init__(
        self,
        reason: str,
        *,
        only_writes: bool = False,
        only_here: bool = False,
        not_permitted: bool = False,
        out_of_memory: bool = False,
    ) -> None:
        self.reason = reason = without_secrets(reason)
        self.only_writes = only_writes
        self.only_here = only_here
        self.not_permitted = not_permitted
        self.out_of_memory = out_of_memory
        super().__init__(f"The quota store is unavailable: {reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        named = {name: getattr(self, name) for name in ("only_writes", "only_here", "not_permitted", "out_of_memory")}
        return type(self), (self.reason,), named


class StoreFull(StoreUnavailable):
    """The memory store holds as many keys as it may, and what was asked would have needed another one.

    Nothing was changed.
    """

    def __init__(self, reason: str = "this process's memory holds as many keys as it may") -> None:
        super().__init__(reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason,)


class CounterError(QuotaError):
    """A counter cannot do what was asked: past 64 bits, or its key holds something that is no counter.

    Nothing was changed. `counter` and `subject` say which, `problem` what is wrong.
    """

    def __init__(self, counter: str, subject: str, problem: str) -> None:
        self.counter = counter
        self.subject = subject
        self.problem = problem
        super().__init__(f"Counter {counter!r} of {subject}: {problem}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.counter, self.subject, self.problem)


class LeaseLost(QuotaError):  # noqa: N818 — a public name of the design
    """A lease ended before it was released or renewed: somebody else may hold the slot by now.

    `slot` and `subject` say which.
    """

    def __init__(self, slot: str, subject: str) -> None:
        self.slot = slot
        self.subject = subject
        super().__init__(
            f"The lease of slot {slot!r} for {subject} was lost: it ended, or was taken away, before it was released. "
            "A longer lease=, or renew=True, would keep it."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.slot, self.subject)


class QuotaExceeded(QuotaError):  # noqa: N818 — a public name of the design
    """A limit was reached. Raised inside a view it becomes the 429 that the decorators send.

    `decision` says which limit, and how long to wait.
    """

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        super().__init__(decision.explain())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.decision,)


_CREDENTIALS = re.compile(r"(\w+://|\b)\S*@")
"""What stands before the host in a URL."""

_OPTIONS = re.compile(r"\b(password|username)=[^&\s'\"]*", re.IGNORECASE)
"""The same as options of a URL."""

_ARGUMENTS = re.compile(r"(with args beginning with).*", re.DOTALL)
"""What Redis says of a command that it does not know: its arguments, which of AUTH and HELLO are a password."""


_CLIENT = re.compile(r"<redis\..*", re.DOTALL)
"""How redis-py shows a client: with all its options. A password may hold any sign, so that none tells where it ends."""


_SIGNS = ("@", "=", "with args", "<redis.")
"""Without any of these there is nothing to leave out."""


def without_secrets(text: str) -> str:
    """Return a text, such as a URL or what a server said, without passwords, on one line."""
    if text.isprintable() and not any(sign in text for sign in _SIGNS):
        return text  # as nearly always, and while Redis is away once a request
    text = _CLIENT.sub("<redis...", text)
    text = _ARGUMENTS.sub(r"\1 ...", _OPTIONS.sub(r"\1=***", _CREDENTIALS.sub(r"\1***@", text)))
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" with the nearest known word, or the list of known words where none is near."""
    words = sorted(known)
    near = difflib.get_close_matches(word, words, n=1)
    if near:
        return f" Did you mean {near[0]!r}?"
    return f" Known: {', '.join(words)}." if words else ""
