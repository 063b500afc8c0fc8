"""`manage.py quota_events`: print the event stream, follow it, or run a program for each event.

With --exec the command is a consumer of a group. An event is acknowledged when its program has succeeded, so each event
is handled **at least once**. If the consumer or its machine dies in the middle, the program runs for that event again:
in another consumer of the group after --take-over seconds, or at once in a new consumer of the same name (--consumer).
Your program must therefore accept to run twice for an event. A failed run is repeated, with a longer pause each time.
An event that fails once more than --retries becomes a dead letter: it is logged, acknowledged, and kept in the group's
stream of dead letters (--dead prints it).
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
from dataclasses import dataclass, field
from typing import Any

from django.core.management.base import CommandError, CommandParser, DjangoHelpFormatter

from django_quota.conf import current
from django_quota.core.clock import SECOND, in_words
from django_quota.core.errors import StorePermissionDenied, StoreUnavailable
from django_quota.core.keys import BAN_EVENTS
from django_quota.management.console import QuotaCommand, parse_moment, printable, redis_store, second_of, stopping
from django_quota.management.programs import PLACEHOLDERS, NoAddressError, Program, UnfitError
from django_quota.services.event_stream import (
    BEGINNING,
    KINDS,
    START_ID,
    Delivery,
    Event,
    EventGroup,
    EventStream,
    iso,
    moment_of,
)
from django_quota.services.lookup import parse_rule_input

MAX_WAIT = 60.0
"""The longest pause between two attempts, in seconds."""

FIRST_WAIT = 0.5
"""The first pause, in seconds, after Redis did not answer."""

_EPILOG = """placeholders for any argument of the program but its path (also environment variables: QUOTA_EVENT_VALUE):
{placeholders}

No shell is involved, and each argument stays one argument. A program with {{ip}} or {{family}} runs only for events of
a single address; the command prints which others it skips. If a value begins with '-' or '@', which programs read as an
option or a file, or holds a null byte, the program does not run and the event becomes a dead letter. Clients may choose
names: give a program that parses its arguments again, such as nft, ssh or sh -c, nothing but {{ip}}.
"""


class _HelpFormatter(RawDescriptionHelpFormatter, DjangoHelpFormatter):
    """Keeps the line breaks of the epilog."""


class Command(QuotaCommand):
    help = "Print refusals, bans and near-limit warnings, follow them, or run a program for each."

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Return the parser, with the placeholders explained below the options."""
        listed = "\n".join(f"  {'{' + name + '}':<12} {meaning}" for name, meaning in PLACEHOLDERS.items())
        kwargs |= {"epilog": _EPILOG.format(placeholders=listed), "formatter_class": _HelpFormatter}
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--last", type=int, default=20, metavar="N", help="print the last N (20)")
        parser.add_argument("--follow", action="store_true", help="keep printing new ones")
        parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind; you may repeat it")
        parser.add_argument("--rule", action="append", metavar="NAME", help="only this rule; you may repeat it")
        parser.add_argument("--json", action="store_true", help="print one JSON object a line, with times in UTC")
        parser.add_argument("--dead", action="store_true", help="print the group's dead letters instead")
        group = parser.add_argument_group("a program for each event")
        group.add_argument(
            "--exec",
            nargs=REMAINDER,
            metavar="PROGRAM",
            help="the program to run for each event. Give this option last: all that follows belongs to the program. A "
            "single argument is split into words as in a shell",
        )
        group.add_argument("--group", default="quota_events", metavar="NAME", help="the consumer group (quota_events)")
        group.add_argument("--consumer", metavar="NAME", help="a name of its own for each process (default: random)")
        group.add_argument(
            "--since",
            default="now",
            metavar="WHEN",
            help="where a new group begins: now (default), beginning (of the stream), or an ISO 8601 date and time",
        )
        group.add_argument("--retries", type=int, default=3, metavar="N", help="further attempts for an event (3)")
        group.add_argument(
            "--backoff",
            type=float,
            default=1.0,
            metavar="SECONDS",
            help="pause before the first retry (1), then doubled",
        )
        group.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS", help="for one run (30)")
        group.add_argument(
            "--take-over",
            type=float,
            metavar="SECONDS",
            help="take over events that another consumer has left for this long (default: --timeout plus 70)",
        )
        group.add_argument("--drain", action="store_true", help="end when no event is left or Redis does not answer")

    def handle(self, *_: Any, **options: Any) -> None:
        _check(options)
        stream = EventStream(redis_store(), current().prefix)
        with stopping() as stop:
            if options["exec"] is None:
                self._show(stream, stop, options)
            else:
                self._consume(stream, stop, options)

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
            if not shown and not options["follow"]:
                self.note("There are no such events.")
            after = shown[-1].id if shown else last
            return True

        def follow() -> bool:
            nonlocal after
            entries = stream.after(after)
            self._print([entry.event for entry in entries if entry.event and wanted(entry.event)], options)
            after = entries[-1].id if entries else after
            return True

        if options["follow"]:
            self._repeat(lambda: follow() if after else begin(), stop)
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
            self.note(f"Warning: {program.warning}")
        # Two processes must not share a name: each would take the event that the other is busy with.
        consumer = options["consumer"] or f"{socket.gethostname()}-{secrets.token_hex(4)}"
        group = EventGroup(stream, options["group"], consumer, _take_over(options))
        worker = _Worker(group, program, _wanted(options), options, stop, self.note)
        self._repeat(worker.step, stop, waits=not options["drain"])
        if not options["consumer"]:
            _tidy(group)

    def _repeat(self, step: Callable[[], bool], stop: threading.Event, *, waits: bool = True) -> None:
        """Repeat a step until it returns False or the command is to stop.

        While Redis is unavailable, it tries again with longer and longer pauses, and prints each reason once. It raises
        the error if `waits` is false, and if a permission is missing, because waiting would not help.
        """
        wait, last_reason = FIRST_WAIT, ""
        while not stop.is_set():
            try:
                goes_on = step()
            except StoreUnavailable as error:
                if isinstance(error, StorePermissionDenied) or not waits:
                    raise
                if error.reason != last_reason:
                    last_reason = error.reason
                    self.note(f"{error} Trying again until it answers.")
                stop.wait(wait)
                wait = min(wait * 2, MAX_WAIT)
                continue
            if last_reason:
                self.note("The quota store answers again.")
                wait, last_reason = FIRST_WAIT, ""
            if not goes_on:
                return


@dataclass
class _Worker:
    """Takes events of a group one by one, and runs the program for them."""

    group: EventGroup
    program: Program
    wanted: Callable[[Event], bool]
    options: dict[str, Any]
    stop: threading.Event
    note: Callable[[str], None]
    begun: bool = False
    done: list[str] = field(default_factory=list)
    """Ids of handled events to acknowledge; while Redis is unavailable they wait here, and do not run again."""

    def step(self) -> bool:
        """Take and handle an event; return whether to continue."""
        try:
            self._begin()
            taken = self.group.take(1) if self.options["drain"] else self.group.take()
        except LookupError as error:
            self.note(f"{error} Redis has lost its memory; the group starts again with all events that it has now.")
            self.group.begin(BEGINNING)
            return True
        except StoreUnavailable:
            self.group.look_back()
            raise
        if taken is None:
            return not self.options["drain"]
        self._report(taken)
        if taken.event is None or not self.wanted(taken.event) or self._succeeds(taken.event):
            self.done.append(taken.id)
            self._acknowledge()
        return True

    def _begin(self) -> None:
        """Create the group, but only once: if it vanishes later, all events since then are unread."""
        self._acknowledge()
        if self.begun:
            return
        start = _start(self.options["since"], self.group.stream)
        if self.group.begin(start):
            self.note(f"The group {self.group.group!r} is new. It begins after {start}.")
        _tidy(self.group)
        self.begun = True

    def _acknowledge(self) -> None:
        while self.done:
            self.group.acknowledge(self.done[0])
            del self.done[0]

    def _report(self, taken: Delivery) -> None:
        if taken.behind is not None:
            after = "" if taken.behind == START_ID else f"after {iso(moment_of(taken.behind))} and "
            self.note(
                "Events are missing: the stream was trimmed further than the group had read. Some or all events "
                f"{after}before {iso(moment_of(taken.id))} are lost."
            )
        if taken.found == "trimmed":
            self.note(f"Event {taken.id} is missing: the stream was trimmed before it was handled.")
        elif taken.found == "alien":
            self.note(f"Entry {taken.id} of the stream is not an event, and is ignored.")

    def _succeeds(self, event: Event) -> bool:
        """Run the program until it succeeds; False if the event is given up, or left for later."""
        try:
            for attempt in range(self.options["retries"] + 1):
                if attempt:
                    wait = min(self.options["backoff"] * 2 ** (attempt - 1), MAX_WAIT)
                    if self.stop.wait(wait):
                        self.group.leave(event.id)
                        return False
                self.group.keep(event.id)
                problem = self.program.run(event)
                if problem is None:
                    return True
                self.note(f"Event {event.id}, attempt {attempt + 1}: {self.program.words[0]}: {problem}.")
        except NoAddressError as error:
            self.note(f"Event {event.id} is skipped: {error}, and the program needs one.")
            return True
        except UnfitError as error:
            problem = str(error)
        self.note(f"Event {event.id} is given up: {problem}: {json.dumps(event.as_json())}")
        self.group.bury(event.id)
        return False


def _tidy(group: EventGroup) -> None:
    """Delete consumers that are gone. If that fails, the next consumer that starts does it."""
    with suppress(StoreUnavailable):
        group.tidy()


_OF_EXEC = {"consumer": None, "since": "now", "take_over": None, "drain": False}
"""The options that say how --exec takes its events, with their defaults. Without --exec they would do nothing."""


def _check(options: dict[str, Any]) -> None:
    """Check the options. Raises `CommandError`."""
    for name in ("last", "retries", "backoff"):
        if options[name] < 0:
            raise CommandError(f"--{name} {options[name]} is below 0. Use 0 or more.")
    if not options["timeout"] > 0:
        raise CommandError(f"--timeout {options['timeout']:g} is not above 0. Use, for example, 30.")
    if options["exec"] is None:
        for name, default in _OF_EXEC.items():
            if options[name] != default:
                option = f"--{name.replace('_', '-')}"
                raise CommandError(f"{option} is only for --exec. Add --exec PROGRAM, or leave {option} out.")
    if options["dead"] and (options["follow"] or options["exec"] is not None):
        raise CommandError("--dead cannot be used with --follow or --exec.")


def _take_over(options: dict[str, Any]) -> float:
    """Return the seconds until another consumer's event is taken over: by default, when its run must have ended."""
    given = options["take_over"]
    if given is None:
        return float(options["timeout"] + MAX_WAIT + 10)
    if given <= options["timeout"]:
        timeout = options["timeout"]
        raise CommandError(
            f"--take-over {given:g} is not above --timeout {timeout:g}. Use, for example, {timeout + MAX_WAIT + 10:g}."
        )
    return float(given)


def _program(options: dict[str, Any]) -> Program:
    words = options["exec"]
    try:
        program = Program(shlex.split(words[0]) if len(words) == 1 else words, options["timeout"])
    except ValueError as error:
        raise CommandError(f"--exec: {error}.") from None
    if shutil.which(program.words[0]) is None:  # each event would become a dead letter
        raise CommandError(f"--exec: there is no program {program.words[0]!r} to run.")
    return program


def _start(since: str, stream: EventStream) -> str:
    """Return the id after which a new group begins."""
    if since == "now":
        return stream.last_id()
    if since == "beginning":
        return BEGINNING
    moment = parse_moment(since)
    if moment is None:
        raise CommandError(f"--since {since!r}: use now, beginning, or a date such as 2026-11-21T08:00:00+00:00.")
    return stream.last_id(int(moment.timestamp()) * SECOND)


def _wanted(options: dict[str, Any]) -> Callable[[Event], bool]:
    kinds, rules = options["kind"] or KINDS, list(map(parse_rule_input, options["rule"] or ()))
    return lambda event: event.kind in kinds and (not rules or event.rule in rules)


def _line(event: Event) -> str:
    names = [name or "(very long name)" for name in (event.rule, event.subject)]
    return f"{second_of(event.at)}  {event.kind:<7}  {'  '.join(names)}  {_summary(event)}"


def _summary(event: Event) -> str:
    if event.kind == "near":
        return f"{event.remaining} of {event.capacity} left"
    if event.kind == "refused" and not event.until:
        return "waiting does not help"
    span = f"for {in_words(event.lasts)}" if event.until else "for good"
    return f"{span}, ban {event.level} in a row" if event.kind == "banned" else span
