"""A program that `quota_events --exec` runs for each event, without a shell. POSIX only.

Placeholders in its arguments are replaced. Each argument stays one argument, whatever the event holds, and arrives byte
by byte, with texts in UTF-8. Because clients may choose names, some events are never passed on: those with a value that
begins with '-' (an option for most programs) or '@' (a file for curl, a set for nft), with a null byte, or with a name
of which only a digest is known. A program that parses its arguments again, such as nft, ssh or a shell, is still open
to injection through a name. Only `{ip}` is safe there, because it is always an address.
"""

from __future__ import annotations

import difflib
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence

from django_quota.core.clock import SECOND
from django_quota.services.addresses import address_of
from django_quota.services.event_stream import Event

PLACEHOLDERS = {
    "id": "the event's id in the stream",
    "kind": "refused, banned or near",
    "rule": "the rule's name",
    "subject": "the subject, such as ip:203.0.113.9",
    "value": "the subject without its kind, such as 203.0.113.9; clients may choose it: never for nft, ssh or a shell",
    "ip": "the address, for a subject that is one: 203.0.113.9; for IPv6 its network: 2001:db8::/64",
    "family": "the version of that address: 4 or 6",
    "at": "when it happened, in whole Unix seconds",
    "until": "when it ends, in whole Unix seconds, rounded up; 0: never",
    "seconds": "from the event to its end, in whole seconds, rounded up; 0: no end",
    "level": "1 for the first ban in a row, 2 for the next; 0: not a ban",
    "capacity": "the limit",
    "remaining": "how much was left of it",
}
"""Placeholders with their meaning. Upper-case and after QUOTA_EVENT_, they are also environment variables."""

_PLACEHOLDER = re.compile(rf"\{{({'|'.join(PLACEHOLDERS)})\}}")

_WORD_IN_BRACES = re.compile(r"\{(\w+)\}")

_NEEDS_ADDRESS = ("ip", "family")
"""Placeholders that only events of a single address have."""

_FREE_TEXTS = ("rule", "subject", "value")
"""Placeholders that may hold any text."""

_SHELLS = frozenset({"ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "zsh"})

_PARSES_AGAIN = frozenset({"nft", "ssh"})
"""Programs that join their arguments to one text and parse it."""


class UnfitError(ValueError):
    """The program cannot run for this event, however often it is tried."""


class NoAddressError(ValueError):
    """The program needs an address, and the subject of the event is not a single one."""


def values_of(event: Event) -> dict[str, str]:
    """Return the value of each placeholder, without names of which only a digest is known. Raises `UnfitError`."""
    address = None if event.subject is None else address_of(event.subject)
    values = {
        "id": event.id,
        "kind": event.kind,
        "rule": event.rule,
        "subject": event.subject,
        "value": event.value,
        "ip": address,
        "family": None if address is None else "6" if ":" in address else "4",
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
    """A program and its arguments, with placeholders. Raises `ValueError` if no program is named."""

    def __init__(self, words: Sequence[str], timeout: float) -> None:
        if not words or not words[0]:
            raise ValueError("no program is named. Write it last, for example --exec logger {ip}")
        if _PLACEHOLDER.search(words[0]):
            raise ValueError(f"a placeholder cannot choose which program runs, as in {words[0]!r}")
        self.words = words
        self.timeout = timeout
        """Seconds for one run; after that it is killed, with its process group."""

    @property
    def warning(self) -> str:
        """What is unsafe or misspelt about its placeholders; empty if nothing is."""
        return self._unsafe() or self._misspelt()

    def _misspelt(self) -> str:
        for found in _WORD_IN_BRACES.finditer("\0".join(self.words[1:])):
            near = difflib.get_close_matches(found[1], PLACEHOLDERS, n=1)
            if near and found[1] not in PLACEHOLDERS:
                return f"{found[0]} is not a placeholder, so the program gets it unchanged. Did you mean {{{near[0]}}}?"
        return ""

    def _unsafe(self) -> str:
        for position, word in enumerate(self.words):
            name, behind = os.path.basename(word), self.words[position + 1 :]  # noqa: PTH119 — no file is meant
            if name in _SHELLS and any(_RUNS_A_TEXT.match(option) for option in behind):
                found = _PLACEHOLDER.search("\0".join(behind))
                if found:
                    return (
                        f"{found[0]} is in the script of {name} -c, which runs the event's value as code. "
                        f'Write "$QUOTA_EVENT_{found[1].upper()}" in the script instead, in double quotes.'
                    )
            if name in _PARSES_AGAIN:
                for found in _PLACEHOLDER.finditer("\0".join(behind)):
                    if found[1] in _FREE_TEXTS:
                        return f"{name} parses its arguments, and {found[0]} may hold any text. Use {{ip}} instead."
        return ""

    def arguments(self, values: Mapping[str, str]) -> list[bytes]:
        """Return the path and the arguments for these values. Raises `UnfitError` or `NoAddressError`."""
        return [_filled(word, values) for word in self.words]

    def run(self, event: Event) -> str | None:
        """Run it for an event, and wait for its end; return None on success, otherwise what went wrong.

        Raises `UnfitError` or `NoAddressError`.
        """
        values = values_of(event)
        environment = dict(os.environb)
        environment |= {f"QUOTA_EVENT_{name.upper()}".encode(): _bytes(value) for name, value in values.items()}
        arguments = self.arguments(values)
        try:
            # In a session of its own, so that Ctrl-C stops this command and not the program.
            process = subprocess.Popen(  # noqa: S603 — the caller chose the arguments, and no shell reads them
                arguments,
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            return f"it could not start: {error}"
        try:
            code = process.wait(self.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"it did not end within {self.timeout:g} s and was killed"
        if code < 0:
            return f"it was ended by signal {-code}"
        return f"its exit status was {code}" if code else None


_SPECIAL = ("-", "@")
"""How options, files and sets begin."""

_RUNS_A_TEXT = re.compile(r"-[a-zA-Z]*c[a-zA-Z]*$")
"""The option of a shell before a script: `-c`, `-ec`, `-ce`."""


def _filled(word: str, values: Mapping[str, str]) -> bytes:
    def value(match: re.Match[str]) -> str:
        name = match[1]
        found = values.get(name)
        if found is None and name in _NEEDS_ADDRESS:
            raise NoAddressError(f"its subject {values.get('subject', '(very long)')!r} is not one address")
        if found is None:
            raise UnfitError(f"its {name} is so long that only a digest is known")
        if found.startswith(_SPECIAL):
            raise UnfitError(f"its {name} {found!r} begins with {found[0]!r}, which reads as an option or a file")
        return found

    filled = _PLACEHOLDER.sub(value, word)  # a placeholder inside a value is not replaced
    if filled.startswith(_SPECIAL) and not word.startswith(_SPECIAL):
        raise UnfitError(f"{word} would become {filled!r}, which reads as an option or a file")
    return _bytes(filled)


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
