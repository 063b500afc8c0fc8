"""`manage.py quota_events`: print the event stream, follow it, or run a program for each event.

With --exec it is a consumer of a group. An event is acknowledged when its program has succeeded, so that each is
handled **at least once**: where the consumer or its machine dies in the middle, the program is run for that event
again, by another consumer of the group after --take-over seconds, or at once by one that has the same name (--consumer)
when it is started again. So the program must not mind being run twice for an event. What fails is tried again, later
each time; what fails once more than --retries becomes a dead letter: it is logged, acknowledged, and noted in the
group's stream of dead letters (--dead shows it).
"""

from __future__ import annotations

import json
import secrets
import shlex
import shutil
import socket
import threading
from argparse import REMAINDER, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser, DjangoHelpFormatter
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware

from django_quota.clock import SECOND, in_words
from django_quota.conf import current
from django_quota.events import BEGAN, BEGINNING, KINDS, Event, EventGroup, EventStream, Taken, iso, moment_of
from django_quota.exceptions import QuotaError, StoreUnavailable
from django_quota.keys import BAN_EVENTS
from django_quota.management.console import PrintingCommand, printable, redis_store, stopping
from django_quota.management.programs import PLACEHOLDERS, NoAddressError, Program, UnfitError

LONGEST_WAIT = 60.0
"""Seconds between two attempts at most."""

FIRST_WAIT = 0.5
"""Seconds after which a Redis that does not answer is asked again for the first time."""

_EPILOG = """placeholders, in any argument of the program but its path (in the environment too, as QUOTA_EVENT_VALUE):
{placeholders}

No shell is involved: each argument stays one. A program with {{ip}} or {{family}} is run for events of a single address
only; the others are skipped, which is said. An event becomes a dead letter, and is not handed over, where a value that
is taken begins with '-' or '@', which programs read as an option or a file, or holds a null byte. Clients may choose
names: a program that parses its arguments again, such as nft, ssh or sh -c, must be given nothing but {{ip}}.
"""


class _HelpFormatter(RawDescriptionHelpFormatter, DjangoHelpFormatter):
    """Keeps the lines of the epilog."""


class Command(PrintingCommand):
    """The command; see the module."""

    help = "Print what was refused, banned or came near a limit; follow it; or run a program for each event."

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Return the parser, with the placeholders behind the options."""
        listed = "\n".join(f"  {'{' + name + '}':<12} {meaning}" for name, meaning in PLACEHOLDERS.items())
        kwargs |= {"epilog": _EPILOG.format(placeholders=listed), "formatter_class": _HelpFormatter}
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--last", type=int, default=20, metavar="N", help="print the last N (20)")
        parser.add_argument("--follow", action="store_true", help="go on printing as they come")
        parser.add_argument("--kind", action="append", choices=KINDS, help="only of this kind; may be repeated")
        parser.add_argument("--rule", action="append", metavar="NAME", help="only of this rule; may be repeated")
        parser.add_argument("--json", action="store_true", help="one JSON object a line; times in UTC")
        parser.add_argument("--dead", action="store_true", help="print the group's dead letters instead")
        group = parser.add_argument_group("a program for each event")
        group.add_argument(
            "--exec",
            nargs=REMAINDER,
            metavar="PROGRAM",
            help="run this for each event; last of all, since what follows belongs to the program. A single argument "
            "is split into words as a shell would",
        )
        group.add_argument("--group", default="quota_events", metavar="NAME", help="the consumer group (quota_events)")
        group.add_argument("--consumer", metavar="NAME", help="this consumer; each process its own (made up)")
        group.add_argument(
            "--since",
            default="now",
            metavar="WHEN",
            help="where a new group begins: now (the default), beginning (all that the stream holds), or an ISO 8601 "
            "date and time",
        )
        group.add_argument("--retries", type=int, default=3, metavar="N", help="further attempts for an event (3)")
        group.add_argument(
            "--backoff", type=float, default=1.0, metavar="SECONDS", help="before the first (1), then doubled"
        )
        group.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS", help="for a run (30)")
        group.add_argument(
            "--take-over",
            type=float,
            metavar="SECONDS",
            help="take over what another consumer has left for so long (--timeout and 70 s more)",
        )
        group.add_argument(
            "--drain", action="store_true", help="end when there is nothing more to do, or Redis does not answer"
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Print, follow or run."""
        _check(options)
        try:
            stream = EventStream(redis_store(), current().prefix)
            with stopping() as stop:
                if options["exec"] is None:
                    self._show(stream, stop, options)
                else:
                    self._consume(stream, stop, options)
        except QuotaError as error:
            raise CommandError(str(error)) from error

    def _show(self, stream: EventStream, stop: threading.Event, options: dict[str, Any]) -> None:
        wanted = _wanted(options)
        if options["dead"]:
            stream = EventGroup(stream, options["group"], "", 0).dead
        elif options["kind"] == ["banned"]:
            stream = EventStream(stream.store, stream.prefix, BAN_EVENTS)
        after = ""

        def begin() -> bool:
            nonlocal after
            last = stream.last_id()
            shown = stream.last(options["last"], wanted)
            self._print(shown, options)
            after = shown[-1].id if shown else last
            return True

        def follow() -> bool:
            nonlocal after
            entries = stream.after(after)
            self._print([entry.event for entry in entries if entry.event and wanted(entry.event)], options)
            after = entries[-1].id if entries else after
            return True

        if options["follow"]:
            self._steadily(lambda: follow() if after else begin(), stop)
        else:
            begin()

    def _print(self, events: Sequence[Event], options: dict[str, Any]) -> None:
        for event in events:
            self.stdout.write(json.dumps(event.as_json()) if options["json"] else printable(_line(event)))
        if events:
            self.stdout.flush()

    def _consume(self, stream: EventStream, stop: threading.Event, options: dict[str, Any]) -> None:
        program = _program(options)
        if program.warning:
            self._say(f"Warning: {program.warning}")
        # No two processes may have one name: each would begin with what the other is at.
        consumer = options["consumer"] or f"{socket.gethostname()}-{secrets.token_hex(4)}"
        group = EventGroup(stream, options["group"], consumer, _take_over(options))
        worker = _Worker(group, program, _wanted(options), options, stop, self._say)
        self._steadily(worker.step, stop, waits=not options["drain"])
        if not options["consumer"]:
            _tidy(group)

    def _steadily(self, step: Callable[[], bool], stop: threading.Event, *, waits: bool = True) -> None:
        """Do a step again and again, until it says no or we are to stop.

        A Redis that is away is asked again ever less often, which is said once for each cause; where `waits` is false,
        and where it permits something no more, that is the end: waiting would not help.
        """
        wait, said = FIRST_WAIT, ""
        while not stop.is_set():
            try:
                goes_on = step()
            except StoreUnavailable as error:
                if error.not_permitted or not waits:
                    raise
                if error.reason != said:
                    said = error.reason
                    self._say(f"{error} Trying again until it answers.")
                stop.wait(wait)
                wait = min(wait * 2, LONGEST_WAIT)
                continue
            if said:
                self._say("The quota store answers again.")
                wait, said = FIRST_WAIT, ""
            if not goes_on:
                return

    def _say(self, message: str) -> None:
        self.stderr.write(printable(message))
        self.stderr.flush()


class _Worker:
    """Takes events of a group and runs the program for them, one by one."""

    def __init__(
        self,
        group: EventGroup,
        program: Program,
        wanted: Callable[[Event], bool],
        options: dict[str, Any],
        stop: threading.Event,
        say: Callable[[str], None],
    ) -> None:
        self._group = group
        self._program = program
        self._wanted = wanted
        self._options = options
        self._stop = stop
        self._say = say
        self._begun = False
        self._done: list[str] = []
        """What is done and not yet acknowledged: while Redis is away, it waits here and is not run again."""

    def step(self) -> bool:
        """Take an event and do it; say whether to go on."""
        try:
            self._begin()
            taken = self._group.take(1) if self._options["drain"] else self._group.take()
        except LookupError as error:
            self._say(f"{error} Redis has lost its memory; the group begins anew with all that there is now.")
            self._group.begin(BEGINNING)
            return True
        except StoreUnavailable:
            self._group.look_back()
            raise
        if taken is None:
            return not self._options["drain"]
        self._report(taken)
        if taken.event is None or not self._wanted(taken.event) or self._succeeds(taken.event):
            self._done.append(taken.id)
            self._acknowledge()
        return True

    def _begin(self) -> None:
        """Make the group, once: should it be gone later on, nothing of what comes then has been read."""
        self._acknowledge()
        if self._begun:
            return
        start = _start(self._options["since"], self._group.stream)
        if self._group.begin(start):
            self._say(f"The group {self._group.group!r} is new: it begins behind {start}.")
        _tidy(self._group)
        self._begun = True

    def _acknowledge(self) -> None:
        while self._done:
            self._group.acknowledge(self._done[0])
            del self._done[0]

    def _report(self, taken: Taken) -> None:
        if taken.behind is not None:
            after = "" if taken.behind == BEGAN else f"after {iso(moment_of(taken.behind))} and "
            self._say(
                "Events are missing: the stream was trimmed past what the group had read. Lost is what was told "
                f"{after}before {iso(moment_of(taken.id))}, all or in part."
            )
        if taken.found == "trimmed":
            self._say(f"Event {taken.id} is missing: the stream was trimmed before it was done.")
        elif taken.found == "alien":
            self._say(f"Entry {taken.id} of the stream is no event: left out.")

    def _succeeds(self, event: Event) -> bool:
        """Run the program until it succeeds; False where the event is given up, or left for later."""
        try:
            for attempt in range(self._options["retries"] + 1):
                if attempt:
                    wait = min(self._options["backoff"] * 2 ** (attempt - 1), LONGEST_WAIT)
                    if self._stop.wait(wait):
                        self._group.leave(event.id)
                        return False
                self._group.keep(event.id)
                problem = self._program.run(event)
                if problem is None:
                    return True
                self._say(f"Event {event.id}, attempt {attempt + 1}: {self._program.words[0]}: {problem}.")
        except NoAddressError as error:
            self._say(f"Event {event.id} is skipped: {error}, which the program takes.")
            return True
        except UnfitError as error:
            problem = str(error)
        self._say(f"Event {event.id} is given up: {problem}: {json.dumps(event.as_json())}")
        self._group.bury(event.id)
        return False


def _tidy(group: EventGroup) -> None:
    """Drop consumers that are gone: where Redis does not answer or permit it, whoever begins next does it."""
    with suppress(StoreUnavailable):
        group.tidy()


def _check(options: dict[str, Any]) -> None:
    """Refuse what makes no sense."""
    for name in ("last", "retries", "backoff"):
        if options[name] < 0:
            raise CommandError(f"--{name} {options[name]} is below 0.")
    if not options["timeout"] > 0:
        raise CommandError(f"--timeout {options['timeout']:g} is not above 0.")
    if options["dead"] and (options["follow"] or options["exec"] is not None):
        raise CommandError("--dead goes with neither --follow nor --exec.")


def _take_over(options: dict[str, Any]) -> float:
    """Return after how many seconds another's event is taken over: by default, when it cannot be at work any more."""
    given = options["take_over"]
    if given is None:
        return float(options["timeout"] + LONGEST_WAIT + 10)
    if given <= options["timeout"]:
        raise CommandError(f"--take-over {given:g} is not above --timeout {options['timeout']:g}.")
    return float(given)


def _program(options: dict[str, Any]) -> Program:
    words = options["exec"]
    try:
        program = Program(shlex.split(words[0]) if len(words) == 1 else words, options["timeout"])
    except ValueError as error:
        raise CommandError(f"--exec: {error}.") from None
    if shutil.which(program.words[0]) is None:  # it would lose every event on it
        raise CommandError(f"--exec: there is no program {program.words[0]!r} that could be run.")
    return program


def _start(since: str, stream: EventStream) -> str:
    """Return the id that a new group reads on from."""
    if since == "now":
        return stream.last_id()
    if since == "beginning":
        return BEGINNING
    try:
        moment = parse_datetime(since)
    except ValueError:
        moment = None
    if moment is None:
        raise CommandError(f"--since {since!r}: now, beginning or a date as 2026-11-21T08:00:00+00:00 would do.")
    if is_naive(moment):
        moment = make_aware(moment)
    return stream.last_id(int(moment.timestamp()) * SECOND)


def _wanted(options: dict[str, Any]) -> Callable[[Event], bool]:
    kinds, rules = options["kind"] or KINDS, options["rule"]
    return lambda event: event.kind in kinds and (not rules or event.rule in rules)


def _line(event: Event) -> str:
    when = f"{datetime.fromtimestamp(event.at // SECOND, UTC):%Y-%m-%d %H:%M:%S}Z"
    names = [name or "(too long: only its digest is known)" for name in (event.rule, event.subject)]
    return f"{when}  {event.kind:<7}  {'  '.join(names)}  {_in_short(event)}"


def _in_short(event: Event) -> str:
    if event.kind == "near":
        return f"{event.remaining} of {event.capacity} left"
    if event.kind == "refused" and not event.until:
        return "waiting does not help"
    span = f"for {in_words(event.lasts)}" if event.until else "for good"
    return f"{span}, ban {event.level} in a row" if event.kind == "banned" else span
