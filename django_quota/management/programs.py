"""A program that is run for each event: its arguments with the placeholders filled in, never by a shell. POSIX.

It must not know streams. Each argument stays one argument, whatever an event holds, and arrives byte by byte as it is
(texts in UTF-8). Clients choose names, so an event is unfit where a value that the program takes begins with '-' (an
option to most programs) or '@' (a file to curl, a set to nft), where a text holds a null byte, and where a name is not
known. A program that parses its arguments again, as nft, ssh and shells do, can still be injected through a name:
`{ip}` is safe there, since it is only ever an address.
"""

from __future__ import annotations

import difflib
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence

from django_quota.addresses import address_of
from django_quota.clock import SECOND
from django_quota.events import Event

PLACEHOLDERS = {
    "id": "the event's id in the stream",
    "kind": "refused, banned or near",
    "rule": "the rule's name",
    "subject": "whom it is about, as ip:203.0.113.9",
    "value": "the subject without its kind, as 203.0.113.9; clients may choose it: never for nft, ssh or a shell",
    "ip": "the address of a subject that is one address: 203.0.113.9; IPv6 as its network: 2001:db8::/64",
    "family": "4 or 6: the version of that address",
    "at": "when it happened, in whole Unix seconds",
    "until": "when it ends, in whole Unix seconds, rounded up; 0: never",
    "seconds": "from the event until its end, in whole seconds, rounded up; 0: it has none",
    "level": "which ban in a row it is; 0: it is no ban",
    "capacity": "the limit",
    "remaining": "what was left of it",
}
"""What may stand in an argument in braces; in capitals behind QUOTA_EVENT_, the names of the environment variables."""

_PLACEHOLDER = re.compile(rf"\{{({'|'.join(PLACEHOLDERS)})\}}")

_WORD_IN_BRACES = re.compile(r"\{(\w+)\}")

_OF_AN_ADDRESS = ("ip", "family")
"""Placeholders that only events of one address have."""

_FREE_TEXTS = ("rule", "subject", "value")
"""Placeholders that may hold any text."""

_SHELLS = frozenset({"ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "zsh"})

_PARSES_AGAIN = frozenset({"nft", "ssh"})
"""Programs that join their arguments to one text, and parse that."""


class UnfitError(ValueError):
    """An event that the program cannot be run for, however often one tries; the text says why."""


class NoAddressError(ValueError):
    """An event that a program with `{ip}` is not meant for: its subject is not one address; the text says so."""


def values_of(event: Event) -> dict[str, str]:
    """Return what the placeholders stand for; a name that is not known is left out. Raises `UnfitError`."""
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
    """A program and its arguments, with placeholders. Raises `ValueError` where it names no program."""

    def __init__(self, words: Sequence[str], timeout: float) -> None:
        if not words or not words[0]:
            raise ValueError("no program is named")
        if _PLACEHOLDER.search(words[0]):
            raise ValueError(f"an event must not say which program is run, as in {words[0]!r}")
        self.words = words
        self.timeout = timeout
        """Seconds that it may take; then it is killed, with all that it has started in its process group."""

    @property
    def warning(self) -> str:
        """What is unsafe or unknown about its placeholders; empty where nothing is."""
        return self._unsafe() or self._misspelt()

    def _misspelt(self) -> str:
        for found in _WORD_IN_BRACES.finditer("\0".join(self.words[1:])):
            near = difflib.get_close_matches(found[1], PLACEHOLDERS, n=1)
            if near and found[1] not in PLACEHOLDERS:
                return f"{found[0]} is not a placeholder: the program gets it as it is. Did you mean {{{near[0]}}}?"
        return ""

    def _unsafe(self) -> str:
        for position, word in enumerate(self.words):
            name, behind = os.path.basename(word), self.words[position + 1 :]  # noqa: PTH119 — no file is meant
            if name in _SHELLS and any(_RUNS_A_TEXT.match(option) for option in behind):
                found = _PLACEHOLDER.search("\0".join(behind))
                if found:
                    return (
                        f"{found[0]} stands behind {name} -c, which runs what an event holds as code. "
                        f'Take it out, and write "$QUOTA_EVENT_{found[1].upper()}" in the script, in double quotes.'
                    )
            if name in _PARSES_AGAIN:
                for found in _PLACEHOLDER.finditer("\0".join(behind)):
                    if found[1] in _FREE_TEXTS:
                        return f"{name} parses its arguments, and {found[0]} may hold any text. Use {{ip}} instead."
        return ""

    def arguments(self, values: Mapping[str, str]) -> list[bytes]:
        """Return the program's path and arguments for these values. Raises `UnfitError` or `NoAddressError`."""
        return [_filled(word, values) for word in self.words]

    def run(self, event: Event) -> str | None:
        """Run it for an event, and wait; return None where it succeeded, else what went wrong.

        Raises `UnfitError` or `NoAddressError`.
        """
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


_STEERS = ("-", "@")
"""What programs read as an option, or as the name of a file or a set."""

_RUNS_A_TEXT = re.compile(r"-[a-zA-Z]*c[a-zA-Z]*$")
"""The option of a shell that takes its script as an argument: `-c`, `-ec`, `-ce`."""


def _filled(word: str, values: Mapping[str, str]) -> bytes:
    def value(match: re.Match[str]) -> str:
        name = match[1]
        found = values.get(name)
        if found is None and name in _OF_AN_ADDRESS:
            raise NoAddressError(f"its subject {values.get('subject', '(too long)')!r} is not one address")
        if found is None:
            raise UnfitError(f"its {name} is so long that only a digest is known")
        if found.startswith(_STEERS):
            raise UnfitError(f"its {name} {found!r} begins with {found[0]!r}, which reads as an option or a file")
        return found

    filled = _PLACEHOLDER.sub(value, word)  # once: a placeholder within a value stays as it is
    if filled.startswith(_STEERS) and not word.startswith(_STEERS):
        raise UnfitError(f"{word} would become {filled!r}, which reads as an option or a file")
    return _bytes(filled)


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
