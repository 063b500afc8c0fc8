"""A program that is run for each event: its arguments with the placeholders filled in, never by a shell. POSIX.

It must not know streams. Each argument stays one argument, whatever an event holds, and arrives byte by byte as it is
(texts in UTF-8). Names come from clients, so an event is unfit where an argument that opens with a placeholder would
begin with '-' and be read as an option, where a text holds a null byte, and where a name is not known.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence

from django_quota.clock import SECOND
from django_quota.events import Event

PLACEHOLDERS = {
    "id": "the event's id in the stream",
    "kind": "refused, banned or near",
    "rule": "the rule's name",
    "subject": "whom it is about, as ip:203.0.113.9",
    "value": "the subject without its kind, as 203.0.113.9",
    "at": "when it happened, in whole Unix seconds",
    "until": "when it ends, in whole Unix seconds, rounded up; 0: never",
    "seconds": "from the event until its end, in whole seconds, rounded up; 0: it has none",
    "level": "which ban in a row it is; 0: it is no ban",
    "capacity": "the limit",
    "remaining": "what was left of it",
}
"""What may stand in an argument in braces; in capitals behind QUOTA_EVENT_, the names of the environment variables."""

_PLACEHOLDER = re.compile(rf"\{{({'|'.join(PLACEHOLDERS)})\}}")


class UnfitError(ValueError):
    """An event that the program cannot be run for, however often one tries; the text says why."""


def values_of(event: Event) -> dict[str, str]:
    """Return what the placeholders stand for; a name that is not known is left out. Raises `UnfitError`."""
    values = {
        "id": event.id,
        "kind": event.kind,
        "rule": event.rule,
        "subject": event.subject,
        "value": event.value,
        "at": str(event.at // SECOND),
        "until": str(-(-event.until // SECOND)),
        "seconds": str(-(-event.lasts // SECOND)),
        "level": str(event.level),
        "capacity": str(event.capacity),
        "remaining": str(event.remaining),
    }
    for name, value in values.items():
        if value is not None and "\0" in value:
            raise UnfitError(f"its {name} {value!r} holds a null byte")
    return {name: value for name, value in values.items() if value is not None}


class Program:
    """A program and its arguments, with placeholders. Raises `ValueError` where it names no program."""

    def __init__(self, words: Sequence[str], timeout: float) -> None:
        if not words or not words[0]:
            raise ValueError("no program is named")
        if _PLACEHOLDER.search(words[0]):
            raise ValueError(f"an event must not say which program is run, as in {words[0]!r}")
        self.words = words
        self.timeout = timeout
        """Seconds that it may take; then it is killed, with all that it has started in its process group."""

    def arguments(self, values: Mapping[str, str]) -> list[bytes]:
        """Return the program's path and arguments for these values. Raises `UnfitError`."""
        return [_filled(word, values) for word in self.words]

    def run(self, event: Event) -> str | None:
        """Run it for an event, and wait; return None where it succeeded, else what went wrong. Raises `UnfitError`."""
        values = values_of(event)
        environment = dict(os.environb)
        environment |= {f"QUOTA_EVENT_{name.upper()}".encode(): _bytes(value) for name, value in values.items()}
        arguments = self.arguments(values)
        try:
            # A session of its own: a terminal's Ctrl-C asks us to stop, not the program.
            process = subprocess.Popen(  # noqa: S603 — the arguments are the caller's own, and no shell reads them
                arguments,
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            return f"it cannot be started: {error}"
        try:
            code = process.wait(self.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"it did not end within {self.timeout:g} s and was killed"
        if code < 0:
            return f"it was ended by signal {-code}"
        return f"its exit status was {code}" if code else None


def _filled(word: str, values: Mapping[str, str]) -> bytes:
    def value(match: re.Match[str]) -> str:
        try:
            return values[match[1]]
        except KeyError:
            raise UnfitError(f"its {match[1]} is so long that only a digest is known") from None

    filled = _PLACEHOLDER.sub(value, word)  # once: a placeholder within a value stays as it is
    if filled.startswith("-") and not word.startswith("-"):
        raise UnfitError(f"{word} would become {filled!r}, which reads as an option")
    return _bytes(filled)


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
