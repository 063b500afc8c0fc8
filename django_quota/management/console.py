"""What the commands share: output, errors, notes about input, repeating, signals and a progress bar."""

from __future__ import annotations

import argparse
import codecs
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import TextIOBase, TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any, TextIO, cast

from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, close_old_connections
from django.utils import timezone
from django.utils.connection import ConnectionDoesNotExist

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.clock import SECOND
from django_quota.core.errors import QuotaError, StoreUnavailable
from django_quota.core.rates import parse_duration
from django_quota.features.authors import Author
from django_quota.limiting.registry import counting_stores, get_limiter, which_redis
from django_quota.limiting.stores import CountingStore
from django_quota.operating.lookup import rule_hint, subject_hint
from django_quota.stores.base import Store
from django_quota.subjects.addresses import is_address

EXIT_BROKEN_PIPE = 141
"""The exit status when nobody reads the output any more, as in `manage.py quota_events | head -1`: 128 + SIGPIPE."""

EXIT_INTERRUPTED = 130
"""The exit status after a second signal: 128 + SIGINT."""

SUBJECT_HELP = (
    "for example user:42, 203.0.113.9, post:phone=+1555, ip:203.0.113.9+post:username=ann, or login:username=ann for "
    "failed logins"
)

BAR_WIDTH = 20
"""Characters of a bar."""

PROGRESS_INTERVAL = 0.2
"""Seconds between two drawings of a progress bar."""


class QuotaCommand(BaseCommand):
    """A command that turns errors of the store and the database into a `CommandError`.

    It does its work whether or not anybody can read what it says.
    """

    def __init__(self, stdout: Any = None, stderr: Any = None, **options: Any) -> None:
        """Write to these streams, by default to those of the process."""
        super().__init__(stdout or _writable(sys.stdout), stderr or _writable(sys.stderr), **options)

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command. Raises `CommandError`; control characters in its message are escaped."""
        try:
            _check_encoding(options)
            return super().execute(*args, **options)
        except CommandError as error:
            raise CommandError(_printable_lines(str(error)), returncode=error.returncode) from error
        except (QuotaError, DatabaseError, ImproperlyConfigured, ConnectionDoesNotExist) as error:
            raise CommandError(_printable_lines(explain(error))) from error

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command from the command line.

        It ends quietly after a second signal or if nobody reads its output, and with a message if it cannot write.
        """
        try:
            try:
                super().run_from_argv(argv)
            finally:
                self.stdout.flush()
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
        """Print a value as one line of JSON with `--json`, and these lines without it.

        At `--verbosity 0` the lines are left out, unless they are what the command `is_asked` for.
        """
        if options["json"]:
            self.print_json(value)
        elif options["verbosity"] or is_asked:
            self.stdout.write("\n".join(map(printable, lines)))
        self.stdout.flush()

    def note(self, *notes: str) -> None:
        """Print notes to stderr at once; empty ones are left out."""
        for note in filter(None, notes):
            self.stderr.write(printable(note))
        self.stderr.flush()

    def note_subject(self, given: str, subject: str, *, is_used: bool = False) -> None:
        """Print which subject a bare address was taken for, and why no request may have a subject that is not used."""
        if is_address(given):
            self.note(f"Note: {given!r} is taken for {subject!r}.")
        if not is_used:
            try:
                hint = subject_hint(subject)
            except (DatabaseError, ImproperlyConfigured):  # there is no table of users
                hint = subject_hint(subject, with_users=False)
            self.note(f"Note: {hint}" if hint else "")

    def note_rules(self, names: Iterable[str]) -> None:
        """Print which of these names no known rule has."""
        self.note(*(f"Note: {hint}" for hint in map(rule_hint, names) if hint))

    def note_foreign(self, what: str, keys: Sequence[str]) -> None:
        """Print which keys were left because they hold data that we did not write."""
        if keys:
            self.note(f"Note: left {foreign(what, keys)}, or a key beside it.")

    def repeat(self, every: float | None, once: Callable[[threading.Event], None]) -> None:
        """Do something once, or again and again with a pause of `every` seconds.

        `once` gets an event, which a signal sets: then it finishes its step, and nothing is repeated. Errors of the
        store and the database end the command only if it does not repeat.
        """
        with stopping() as stop:
            while True:
                try:
                    once(stop)
                except (StoreUnavailable, DatabaseError) as error:
                    if every is None:
                        raise
                    self.note(f"{str(error).rstrip('.')}. Trying again in {every:g} s.")
                if every is None or stop.wait(every):
                    return
                close_old_connections()


def _writable(stream: Any) -> Any:
    """Return a stream of the process that accepts any string, even if the process was started with it closed.

    An encoding such as Latin-1 lacks characters that clients may send, and those of our bars.
    """
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors=_PLAINER)
    return stream


_PLAINER = "django_quota_plainer"
"""The name of the handler for characters that an encoding lacks."""


def _plainer(error: UnicodeError) -> tuple[str, int]:
    """Write characters that an encoding lacks as ASCII: the parts of a bar by look-alikes, others by their number."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join({"█": "#", "░": "-"}.get(char) or ascii(char)[1:-1] for char in lacking), error.end


codecs.register_error(_PLAINER, _plainer)


def shared_store() -> Store:
    """Return the limiter's store. Raises `CommandError` for the memory of a process."""
    store = get_limiter().store
    if not store.is_shared:
        raise CommandError('QUOTA["STORE"] is "memory": other processes cannot see what a process keeps in memory.')
    return store


def place_of(store: str) -> str:
    """Return which database or Redis a store is in, by its name as a value of `STORE`."""
    return f'DATABASES["{current().database}"]' if store == "database" else f"the Redis of {which_redis().name}"


def shared_stores() -> Sequence[CountingStore]:
    """Return the stores that count: the limiter's and, if a rule uses it, the database. Raises as `shared_store`."""
    shared_store()
    return counting_stores()


def explain(error: Exception) -> str:
    """Return what went wrong: for a store with its alias, and for missing tables with what to do."""
    words = str(error).strip()
    if isinstance(error, StoreUnavailable):
        return f"{words.rstrip('.')}. It is {place_of('database' if error.is_of_database else current().store)}."
    if isinstance(error, ConnectionDoesNotExist):
        return f"{words} Use an alias of DATABASES."
    if not isinstance(error, DatabaseError) or "django_quota_" not in words or "column" in words:
        return words
    if "denied" in words:  # "permission denied for table", "SELECT command denied to user"
        return f"{words.rstrip('.')}. Grant the user of the database SELECT, INSERT, UPDATE and DELETE on it."
    return f"{words}: `manage.py migrate` creates the tables."


def printable(text: str) -> str:
    """Return a string with control characters escaped: clients may choose the names that commands print."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def _check_encoding(options: Mapping[str, Any]) -> None:
    """Raise `CommandError` for an argument whose bytes are not UTF-8: it can name no file, rule or subject."""
    for given in options.values():
        for value in given if isinstance(given, (list, tuple)) else [given]:
            if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
                raise CommandError(f"The argument '{value}' has bytes that are not UTF-8. Write it in UTF-8.")


def second_of(moment: int) -> str:
    """Return a moment (microseconds since 1970) to the second in UTC: `2026-11-22 19:12:28Z`."""
    return f"{datetime.fromtimestamp(moment // SECOND, UTC):%Y-%m-%d %H:%M:%S}Z"


def given_moment(option: str, given: str | None) -> int:
    """Return a moment of the command line in microseconds; 0 if none is given.

    It is a date and time, by default in Django's time zone, or how long it is ago. Raises `CommandError`.
    """
    if given is None:
        return 0
    with suppress(ValueError):
        moment = datetime.fromisoformat(given)
        aware = moment if moment.tzinfo else moment.replace(tzinfo=timezone.get_default_timezone())
        return round(aware.timestamp() * SECOND)
    with suppress(QuotaError):
        return clock.now() - parse_duration(option, given)
    raise CommandError(
        f"{option} {given!r} is not a moment. Use, for example, 2030-01-31T12:00, or 2h for 2 hours ago."
    )


def duration_of(option: str, given: object) -> float | None:
    """Return a duration of the command line in seconds; a bare number is seconds. Raises `RuleError`."""
    if given is None:
        return None
    with suppress(TypeError, ValueError):
        given = float(cast("Any", given))
    return parse_duration(option, given, examples="60 (seconds), '10m' or '7d'") / SECOND


def add_verbs(parser: CommandParser, meanings: Mapping[str, str]) -> list[CommandParser]:
    """Add what a command can do, and return a parser for each verb. Django's own options may follow the verb, too."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="|".join(meanings))
    added = [verbs.add_parser(name, help=meaning) for name, meaning in meanings.items()]
    hidden: Any = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}  # what stands before the verb holds
    for verb in added:
        for option in ("--settings", "--pythonpath"):
            verb.add_argument(option, **hidden)
        for option in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
            verb.add_argument(option, action="store_true", **hidden)
        verb.add_argument("-v", "--verbosity", type=int, choices=range(4), **hidden)
    return added


def add_by(parser: CommandParser) -> None:
    """Add the option that says who does what a command does."""
    parser.add_argument(
        "--by", metavar="WHO", help="who does it: the name of a user, whose history shows it, or any name"
    )


def author_of(options: Mapping[str, Any]) -> Author:
    """Return who does what a command does, and why. Raises `RuleError` for a wrong name or reason.

    Who has the name of a user is this user, so that the admin's history can show it.
    """
    name, user = options["by"] or None, None
    if name is not None:
        users = get_user_model()
        with suppress(DatabaseError, ImproperlyConfigured, users.DoesNotExist):  # there may be no table of users
            user = users._default_manager.get_by_natural_key(name)  # noqa: SLF001 — Django's public API
    return Author.of(name if user is None else user, options.get("reason", ""))


def quantity(number: int, one: str, many: str = "") -> str:
    """Return a number and what it counts: `1 key`, `1,000 keys`."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


FOREIGN_NAMED = 3
"""How many keys with data of another program are named."""


def foreign(what: str, keys: Sequence[str]) -> str:
    """Return how many things could not be read, and the keys of some."""
    named = ", ".join(keys[:FOREIGN_NAMED])
    return f"{quantity(len(keys), what)} with data of another program or version, such as {named}"


def bar(share: float) -> str:
    """Return a bar that is filled by a share from 0 to 1."""
    filled = round(BAR_WIDTH * min(1.0, share))
    return "█" * filled + "░" * (BAR_WIDTH - filled)


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Yield an event that SIGINT or SIGTERM sets, so that a command can finish its step; a second signal ends it."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield stop
        return

    is_stopping = False

    def handle(_: int, __: FrameType | None) -> None:
        nonlocal is_stopping
        if is_stopping:
            raise KeyboardInterrupt
        is_stopping = True
        # This thread may be waiting for the event and hold its lock: another one sets it.
        threading.Thread(target=stop.set, daemon=True).start()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


Advance = Callable[[int], object]
"""Moves a progress bar forward by a number."""


@contextmanager
def progress(stream: TextIO | TextIOBase, label: str, total: int | None) -> Iterator[Advance]:
    """Draw a progress bar for as long as the block lasts, if the stream is a terminal.

    `stream`: a text stream, or the `stderr` of a command. `total`: about how much there is; None if it is not known.
    """
    # Django's wrapper would add a line end to each drawing, and colour it.
    out = cast("TextIO", getattr(stream, "_out", stream))
    done, drawn = 0, 0.0

    def draw(end: str = "") -> None:
        nonlocal drawn
        drawn = time.monotonic()
        words = f"{bar(done / total)} {min(done, total):,} of {total:,}" if total else f"{done:,}"
        out.write(f"\r{label} {words}{end}")
        out.flush()

    def advance(number: int) -> None:
        nonlocal done
        done += number
        if out.isatty() and time.monotonic() - drawn >= PROGRESS_INTERVAL:
            draw()

    try:
        yield advance
    finally:
        if out.isatty():
            draw("\n")
