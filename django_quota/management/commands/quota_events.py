"""`manage.py quota_events`: print the event log, or follow it.

With --group it reads as a member of a consumer group of Redis, so that another program can process its output. Readers
of a group share its events. An event is acknowledged when its line is written, so each event is printed **at least
once**: if the command is killed after it writes and before it acknowledges, a reader of the group prints the line again
after a minute.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_quota.conf import current
from django_quota.core.clock import in_words
from django_quota.core.errors import StorePermissionDenied, StoreUnavailable
from django_quota.features.events.stream import (
    BEGINNING,
    EVENT_KINDS,
    Event,
    EventGroup,
    EventReader,
    EventStream,
    entry_time,
    event_log,
    iso,
)
from django_quota.management.console import QuotaCommand, printable, second_of, shared_store, stopping
from django_quota.operating.lookup import parse_rule_input, rule_hint

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
        parser.add_argument("--json", action="store_true", help="print one JSON object a line, with times in UTC")
        parser.add_argument(
            "--group",
            metavar="NAME",
            help="with --follow, on Redis: continue after this group's last printed event; a new group starts now",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        _check(options)
        log = event_log(shared_store(), current().prefix)
        if log is None:
            raise CommandError('QUOTA["STORE"] keeps no events.')
        wanted = _wanted(options, log)

        def show(events: Iterable[Event | None]) -> None:
            for event in events:
                if event is not None and wanted(event):
                    self.stdout.write(json.dumps(event.as_json()) if options["json"] else printable(_line(event)))
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
        self, log: EventReader, show: Callable[[Iterable[Event]], None], last: int, wanted: Callable[[Event], bool]
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


def _wanted(options: dict[str, Any], log: EventReader) -> Callable[[Event], bool]:
    """Return which events to print. Raises `CommandError` for a rule that neither the site nor any event has."""
    kinds, rules = options["kind"] or EVENT_KINDS, set(map(parse_rule_input, options["rule"] or ()))
    for rule in rules:
        hint = rule_hint(rule)  # events may have rules that are gone
        if hint and not log.last(1, lambda event, rule=rule: event.rule == rule):  # type: ignore[misc]
            raise CommandError(f"--rule: {hint} No event has it either.")
    return lambda event: event.kind in kinds and (not rules or event.rule in rules)


def _line(event: Event) -> str:
    names = [name or "(very long name)" for name in (event.rule, event.subject)]
    return f"{second_of(event.at)}  {event.kind:<7}  {'  '.join(names)}  {_summary(event)}"


def _summary(event: Event) -> str:
    if event.kind == "near":
        return f"{100 * event.share:.4g}% used, {event.remaining} of {event.capacity} left"
    if event.kind == "refused" and not event.until:
        return "waiting does not help"
    span = f"for {in_words(event.lasts)}" if event.until else "for good"
    return f"{span}, ban {event.level} in a row" if event.kind == "banned" else span
