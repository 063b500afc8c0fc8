"""What the commands share: output, errors, notes about input, signals and a progress bar."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from io import TextIOBase
from types import FrameType
from typing import Any, TextIO, cast

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError
from django.utils.connection import ConnectionDoesNotExist
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware

from django_quota.conf import current
from django_quota.core.clock import SECOND
from django_quota.core.errors import QuotaError, StoreUnavailable
from django_quota.core.rates import parse_duration
from django_quota.limiting.registry import get_limiter, which_redis
from django_quota.operating.lookup import rule_hint, subject_hint
from django_quota.requests.addresses import is_address
from django_quota.stores.base import Store

EXIT_BROKEN_PIPE = 141
"""The exit status when nobody reads the output any more, as in `manage.py quota_events | head -1`: 128 + SIGPIPE."""

EXIT_INTERRUPTED = 130
"""The exit status after a second signal: 128 + SIGINT."""

SUBJECT_HELP = (
    "for example user:42, 203.0.113.9, post:phone=+1555, ip:203.0.113.9+post:username=ann, or login:username=ann for "
    "failed logins"
)

PROGRESS_INTERVAL = 2.0
"""Seconds between two lines of progress where rich is not installed."""


class QuotaCommand(BaseCommand):
    """A command that turns errors of the store and the database into a `CommandError`."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command. Raises `CommandError`."""
        try:
            return super().execute(*args, **options)
        except (QuotaError, DatabaseError, ImproperlyConfigured, ConnectionDoesNotExist) as error:
            raise CommandError(explain(error)) from error

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command from the command line.

        It ends quietly after a second signal or if nobody reads its output, and with a message if it cannot write.
        """
        try:
            try:
                super().run_from_argv(argv)
            finally:
                if sys.stdout is not None:  # None: the process was started with stdout closed
                    sys.stdout.flush()
        except OSError as error:
            if error.filename is not None:  # a file of the command, and not its output
                raise
            is_left = isinstance(error, BrokenPipeError)
            if not is_left:
                with suppress(OSError):  # stderr may be full too
                    self.note(f"The output could not be written: {error.strerror}.")
            # Python flushes both streams once more when it exits, and would print an error.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in filter(None, (sys.stdout, sys.stderr)):
                os.dup2(nowhere, stream.fileno())
            sys.exit(EXIT_BROKEN_PIPE if is_left else 1)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)

    def print_json(self, value: object) -> None:
        """Print a value as one line of JSON."""
        self.stdout.write(json.dumps(value))

    def print_result(
        self, options: Mapping[str, Any], value: object, lines: Iterable[str], *, is_asked: bool = False
    ) -> None:
        """Print a value as JSON with `--json`, and these lines without it.

        At `--verbosity 0` the lines are left out, unless they are what the command `is_asked` for.
        """
        if options["json"]:
            self.print_json(value)
        elif options["verbosity"] or is_asked:
            self.stdout.write("\n".join(lines))
        self.stdout.flush()

    def note(self, *notes: str) -> None:
        """Print notes to stderr at once; empty ones are left out."""
        for note in filter(None, notes):
            self.stderr.write(printable(note))
        self.stderr.flush()

    def note_subject(self, given: str, subject: str, *, is_used: bool = False) -> None:
        """Print which subject a bare address was taken for, and why no request may have a subject that is not used."""
        if is_address(given) and given != subject:
            self.note(f"Note: {given!r} is taken for {subject!r}.")
        if not is_used:
            self.note(_subject_note(subject))

    def note_rules(self, names: Iterable[str]) -> None:
        """Print which of these names no known rule has."""
        self.note(*(f"Note: {hint}" for hint in map(rule_hint, names) if hint))


def _subject_note(subject: str) -> str:
    try:
        hint = subject_hint(subject)
    except (DatabaseError, ImproperlyConfigured):  # there is no table of users
        hint = subject_hint(subject, with_users=False)
    return f"Note: {hint}" if hint else ""


def shared_store() -> Store:
    """Return the limiter's store. Raises `CommandError` for the memory of a process."""
    store = get_limiter().store
    if not store.is_shared:
        raise CommandError('QUOTA["STORE"] is "memory": other processes cannot see what a process keeps in memory.')
    return store


def explain(error: Exception) -> str:
    """Return what went wrong: for a store with its alias, and for missing tables with what to do."""
    words = str(error).strip()
    if isinstance(error, StoreUnavailable):
        settings = current()
        is_database = settings.store == "database"
        place = f'DATABASES["{settings.database}"]' if is_database else f"the Redis of {which_redis().name}"
        return f"{words.rstrip('.')}. It is {place}."
    if isinstance(error, ConnectionDoesNotExist):
        return f"{words} Use an alias of DATABASES."
    is_missing = isinstance(error, DatabaseError) and "django_quota_" in words and "column" not in words
    return f"{words}: `manage.py migrate` makes the tables." if is_missing else words


def printable(text: str) -> str:
    """Return a text with control characters escaped: clients may choose the names that commands print."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def second_of(moment: int) -> str:
    """Return a moment (microseconds since 1970) to the second in UTC: `2026-11-22 19:12:28Z`."""
    return f"{datetime.fromtimestamp(moment // SECOND, UTC):%Y-%m-%d %H:%M:%S}Z"


def parse_moment(text: str) -> datetime | None:
    """Return an ISO 8601 date and time, in the time zone of the settings if it names none; None for another text."""
    try:
        moment = parse_datetime(text)
    except ValueError:  # the form is right, but there is no such day or hour
        return None
    return make_aware(moment) if moment is not None and is_naive(moment) else moment


def duration_of(option: str, given: object) -> float | None:
    """Return a duration of the command line in seconds; a bare number is seconds. Raises `RuleError`."""
    if given is None:
        return None
    with suppress(TypeError, ValueError):
        given = float(cast("Any", given))
    return parse_duration(option, given) / SECOND


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number and what it counts: `1 key`, `1,000 keys`."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Yield an event that SIGINT or SIGTERM sets, so that a command can finish its step; a second signal ends it."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield stop
        return

    told = False

    def handle(_: int, __: FrameType | None) -> None:
        nonlocal told
        if told:
            raise KeyboardInterrupt
        told = True
        # This thread may be waiting for the event and hold its lock: another one sets it.
        threading.Thread(target=stop.set, daemon=True).start()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- progress ---------------------------------------------------------------------------------------------------------


Advance = Callable[[int], object]
"""Moves a progress bar on by a number."""


@contextmanager
def progress(stream: TextIO | TextIOBase, label: str, total: int | None) -> Iterator[Advance]:
    """Show progress on a terminal for as long as the block lasts: a bar with rich, plain lines without it.

    `stream`: a text stream or a command's `self.stderr`. If it is not a terminal, nothing is written.
    `total`: None if it is not known.
    """
    # Django's wrapper would add a line end to each drawing, and color it.
    out = cast("TextIO", getattr(stream, "_out", stream))
    if not out.isatty():
        yield lambda _: None
    elif find_spec("rich"):
        from rich.console import Console  # noqa: PLC0415 — optional
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn  # noqa: PLC0415

        columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        # Other output goes through Django's wrappers, which rich cannot redirect.
        with Progress(*columns, console=Console(file=out), redirect_stdout=False, redirect_stderr=False) as bar:
            yield partial(bar.advance, bar.add_task(label, total=total))
    else:
        yield _plain_lines(out, label, total)


def _plain_lines(out: TextIO, label: str, total: int | None) -> Advance:
    done, printed_at = 0, time.monotonic()

    def advance(n: int) -> None:
        nonlocal done, printed_at
        done += n
        if time.monotonic() - printed_at >= PROGRESS_INTERVAL:
            printed_at = time.monotonic()
            out.write(f"{label}: {done:,}{f' of {total:,}' if total else ''}\n")
            out.flush()

    return advance
