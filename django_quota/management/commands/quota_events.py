"""`manage.py quota_events`: print the event log, or follow it.

With --group it reads as a member of a consumer group of Redis, so that another program can process its output. Readers
of a group share its events. An event is acknowledged when its line is written, so each event is printed **at least
once**: if the command is killed after it writes and before it acknowledges, a reader of the group prints the line again
after a minute.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError

from django_quota.conf import current
from django_quota.core.clock import in_words
from django_quota.core.errors import StorePermissionDenied, StoreUnavailable
from django_quota.features.events import (
    BEGINNING,
    EVENT_KINDS,
    Event,
    EventFilter,
    EventGroup,
    EventReader,
    EventStream,
    entry_time,
    event_log,
    iso,
)
from django_quota.management.console import (
    SUBJECT_HELP,
    QuotaCommand,
    given_moment,
    printable,
    second_of,
    shared_store,
    stopping,
)
from django_quota.operating.lookup import parse_rule_input, rule_hint, subjects_meant, user_names
from django_quota.subjects.subject import parts_of

POLL_SECONDS = 0.5
"""Seconds between two looks for new events."""

FIRST_PAUSE, LONGEST_WAIT = 0.5, 5.0
"""The first and the longest pause, in seconds, while the store does not answer."""


class Command(QuotaCommand):
    help = "Print refusals, bans and near-limit warnings, or follow them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--last", type=int, default=20, metavar="N", help="print the last N (20)")
        parser.add_argument("--follow", action="store_true", help="keep printing new ones")
        parser.add_argument("--kind", action="append", choices=EVENT_KINDS, help="only this kind; you may repeat it")
        parser.add_argument("--rule", action="append", metavar="NAME", help="only this rule; you may repeat it")
        parser.add_argument(
            "--subject", action="append", metavar="WHO", help=f"only this user or subject: {SUBJECT_HELP}"
        )
        parser.add_argument("--path", default="", metavar="TEXT", help="only requests whose path contains this")
        parser.add_argument("--since", metavar="WHEN", help="only since 2030-01-31T12:00, or since 2h ago")
        parser.add_argument("--until", metavar="WHEN", help="only until then")
        parser.add_argument("--json", action="store_true", help="print one JSON object a line, with times in UTC")
        parser.add_argument(
            "--group",
            metavar="NAME",
            help="with --follow, on Redis: continue after this group's last printed event; a new group starts now",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        _check(options)
        log = event_log(shared_store(), current().prefix)
        wanted = _wanted(options, log)

        def show(events: Iterable[Event | None]) -> None:
            shown = [event for event in events if event is not None and wanted(event)]
            names = {} if options["json"] else _names(shown)
            for event in shown:
                line = json.dumps(event.as_json()) if options["json"] else printable(_line(event, names))
                self.stdout.write(line)
            self.stdout.flush()

        if options["group"] is not None:
            if not isinstance(log, EventStream):
                raise CommandError("--group needs Redis, whose consumer groups it uses. Leave it out.")
            self._follow(self._of_group(EventGroup(log, options["group"]), show))
        elif options["follow"]:
            self._follow(self._of_log(log, show, options["last"], wanted))
        else:
            last = log.last(options["last"], wanted)
            show(last)
            if not last:
                self.note("There are no such events.")

    def _of_log(
        self, log: EventReader, show: Callable[[Iterable[Event]], None], last: int, wanted: EventFilter
    ) -> Callable[[], bool]:
        """Return the step of a follower without a group: the last events first, then what is new."""
        after, shown = "", set[str]()

        def step() -> bool:
            nonlocal after
            if not after:
                after = log.last_id()  # first: what is written meanwhile is read twice, and is left out the second time
                events = log.last(last, wanted)
                shown.update(event.id for event in events)
            else:
                entries = log.after(after)
                events = [entry.event for entry in entries if entry.event is not None and entry.id not in shown]
                after = entries[-1].id if entries else after
            show(events)
            return bool(events)

        return step

    def _of_group(self, group: EventGroup, show: Callable[[Iterable[Event | None]], None]) -> Callable[[], bool]:
        """Return the step of a reader of a group: acknowledge events when their lines are written."""
        has_begun = False

        def step() -> bool:
            nonlocal has_begun
            if not has_begun and group.begin():
                self.note(f"The group {group.name!r} is new. It begins with the next event.")
            has_begun = True
            try:
                taken = group.take()
            except LookupError as error:
                self.note(
                    f"{error} Redis has lost its data; the group starts again with all events that Redis has now."
                )
                return group.begin(BEGINNING)
            for gone in taken.trimmed:
                self.note(f"Event {gone} is missing: the stream was trimmed before it was printed.")
            if taken.lost_after:
                begins = "" if taken.lost_after == BEGINNING else f"after {iso(entry_time(taken.lost_after))} and "
                span = f"{begins}before {iso(entry_time(taken.entries[0].id))}"
                self.note(f"The stream was trimmed further than the group had read. Events {span} may be lost.")
            show(entry.event for entry in taken.entries)
            if taken.entries:
                group.acknowledge(taken.entries)
            return bool(taken.entries or taken.trimmed)

        return step

    def _follow(self, step: Callable[[], bool]) -> None:
        """Repeat a step until the command is to stop, with a pause when the step returns False.

        While the store is unavailable, it tries again with longer and longer pauses, and prints each reason once. It
        raises the error if a permission is missing, because waiting would not help.
        """
        wait, last_reason = FIRST_PAUSE, ""
        with stopping() as stop:
            while not stop.is_set():
                try:
                    has_more = step()
                except StoreUnavailable as error:
                    if isinstance(error, StorePermissionDenied):
                        raise
                    if error.reason != last_reason:
                        last_reason = error.reason
                        self.note(f"{error} Trying again until it answers.")
                    stop.wait(wait)
                    wait = min(wait * 2, LONGEST_WAIT)
                    continue
                if last_reason:
                    self.note("The quota store answers again.")
                    wait, last_reason = FIRST_PAUSE, ""
                if not has_more:
                    stop.wait(POLL_SECONDS)


def _check(options: dict[str, Any]) -> None:
    if options["group"] is not None and not options["follow"]:
        raise CommandError("--group is only for --follow. Add --follow, or leave --group out.")
    fewest = 0 if options["follow"] else 1
    if options["last"] < fewest:
        raise CommandError(f"--last {options['last']}: use {fewest} or more, for example 20.")


def _wanted(options: dict[str, Any], log: EventReader) -> EventFilter:
    """Return which events to print. Raises `CommandError` for a rule that neither the site nor any event has."""
    rules = set(map(parse_rule_input, options["rule"] or ()))
    for rule in rules:
        hint = rule_hint(rule)  # events may have rules that are gone
        if hint and not log.last(1, EventFilter(rules=[rule])):
            raise CommandError(f"--rule: {hint} No event has it either.")
    since, until = (given_moment(f"--{name}", options[name]) for name in ("since", "until"))
    subjects = {subject for given in options["subject"] or () for subject in subjects_meant(given)}
    return EventFilter(options["kind"] or (), rules, subjects, path=options["path"], since=since, until=until)


def _names(events: Iterable[Event]) -> dict[str, str]:
    """Return the names of the users of events, by subject; empty without a table of users."""
    try:
        return user_names({event.user for event in events if event.user is not None})
    except (DatabaseError, ImproperlyConfigured):
        return {}


def _line(event: Event, names: Mapping[str, str]) -> str:
    who = [name or "(very long name)" for name in (event.rule, event.subject)]
    return f"{second_of(event.at)}  {event.kind:<7}  {'  '.join(who)}  {_request(event, names)}{_summary(event)}"


def _request(event: Event, names: Mapping[str, str]) -> str:
    """Return who has sent what; empty if the event says nothing of a request."""
    user = event.user and names.get(event.user, "" if event.user in parts_of(event.subject or "") else event.user)
    words = " ".join(filter(None, (user, event.method, event.path)))
    return f"{words}: " if words else ""


def _summary(event: Event) -> str:
    if event.kind == "near":
        return f"{100 * event.share:.4g}% used, {event.remaining} of {event.capacity} left"
    span = f"for {in_words(event.lasts)}" if event.until else "for good"
    if event.kind == "banned":
        words = f"{span}, ban {event.level} in a row"
        return f"{words}: {event.reason}" if event.reason else words
    needed = event.reason or f"needed {event.cost}, {event.remaining} of {event.capacity} are left"
    return f"{needed}, {span}" if event.until else f"{needed}, waiting does not help"
