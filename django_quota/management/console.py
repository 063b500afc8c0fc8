"""What the commands share: the store that they need, how they are told to stop, and how they print.

Names may be what a client chose, and whoever reads may leave.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.db import DatabaseError

from django_quota import status
from django_quota.exceptions import ConfigurationError
from django_quota.hints import is_address, rule_hint, subject_hint
from django_quota.stores.redis import RedisStore

NOBODY_READS = 141
"""The exit status of a command whose reader has left: as a shell has it of what SIGPIPE (13) ends, 128 + 13."""

INTERRUPTED = 130
"""The exit status of a command that a second signal has ended: as a shell has it of what SIGINT (2) ends, 128 + 2."""


class ReaderGoneError(Exception):
    """Nobody reads any more what a command prints."""


class _Stream(OutputWrapper):
    """stdout or stderr of the process."""

    def write(  # type: ignore[override]
        self, msg: str = "", style_func: Callable[[str], str] | None = None, ending: str | None = None
    ) -> None:
        with _noticing():
            super().write(msg, style_func, ending)

    def flush(self) -> None:
        with _noticing():
            super().flush()


@contextmanager
def _noticing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:  # of this stream, and of no other: a socket's is none of these
        raise ReaderGoneError from error


class PrintingCommand(BaseCommand):
    """A command that ends without a word where its reader leaves, as in `manage.py quota_events | head -1`."""

    def __init__(self, stdout: TextIO | None = None, stderr: TextIO | None = None, **options: Any) -> None:
        super().__init__(stdout, stderr, **options)
        if stdout is None:
            self.stdout = _Stream(sys.stdout)
        if stderr is None:
            style, self.stderr = self.stderr.style_func, _Stream(sys.stderr)
            self.stderr.style_func = style

    def run_from_argv(self, argv: list[str]) -> None:
        """Run it for the command line."""
        try:
            super().run_from_argv(argv)
            self.stdout.flush()
        except ReaderGoneError:
            self._drop()
            sys.exit(NOBODY_READS)
        except KeyboardInterrupt:  # a second signal: see `stopping`
            sys.exit(INTERRUPTED)
        except SystemExit as ended:  # such as that of --help, which Django prints by itself
            if self._drop() and not ended.code:
                sys.exit(NOBODY_READS)
            raise

    def _drop(self) -> bool:
        """Drop what nobody reads: Python would complain of it at exit. Say whether there was any."""
        dropped = False
        for stream in (sys.stdout, sys.stderr):
            if stream is None:  # a process that was started with it closed has none
                continue
            try:
                stream.flush()
            except BrokenPipeError:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
                dropped = True
        return dropped


def redis_store() -> RedisStore:
    """Return the limiter's store. Raises `CommandError` where it is not Redis."""
    try:
        return status.redis_store()
    except ConfigurationError as error:
        raise CommandError(error.problem) from error


def explained(error: Exception) -> str:
    """Return what went wrong, and what would do where our tables are missing."""
    words = str(error).strip()
    is_missing = isinstance(error, DatabaseError) and "django_quota_" in words and "column" not in words
    return f"{words}: `manage.py migrate` makes the tables." if is_missing else words


def printable(text: str) -> str:
    """Return a text with what cannot be printed as Python would write it: names may be what a client chose."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


SUBJECT_HELP = "such as user:42, 203.0.113.9, post:phone=+1555 or ip:203.0.113.9+post:username=ann"


def address_note(given: str, subject: str) -> str:
    """Say which subject a bare address is taken for; empty where a text is none."""
    return f"Note: {printable(given)!r} is taken for {subject!r}." if is_address(given) and given != subject else ""


def subject_note(subject: str) -> str:
    """Return a hint about a subject that no request has, or nothing; users are looked up where there is a database."""
    try:
        words = subject_hint(subject)
    except (DatabaseError, ImproperlyConfigured):  # no table of users, or no such model: the hint does without
        words = subject_hint(subject, with_users=False)
    return f"Note: {printable(words)}" if words else ""


def rule_notes(rules: Iterable[str]) -> list[str]:
    """Return a note for each name that no known rule has."""
    return [f"Note: {printable(words)}" for words in map(rule_hint, rules) if words]


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Yield what SIGINT or SIGTERM sets, so that a command ends after what it is doing; a second ends it at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # who else runs the command keeps the signals
        yield stop
        return

    def ask(_: int, __: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
