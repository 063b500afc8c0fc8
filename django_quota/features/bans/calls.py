"""Bans that your code sets and lifts. They look like the bans that a rule with `ban=` sets itself."""

from __future__ import annotations

import logging
from collections.abc import Collection

from asgiref.sync import sync_to_async

from django_quota.conf import current
from django_quota.core.decisions import Decision
from django_quota.core.errors import RuleError, StoreUnavailable
from django_quota.core.flow import Flow, IOCall, run_async, run_sync
from django_quota.core.keys import escape, field, status_key
from django_quota.core.overrides import ALL_RULES
from django_quota.core.rates import Duration, parse_duration
from django_quota.core.rules import Rule
from django_quota.engine.asks import Ask
from django_quota.engine.events import AppendEvents, EventRecord
from django_quota.engine.operations import text
from django_quota.engine.resolving import event_log_of
from django_quota.features.authors import Author
from django_quota.features.bans.operations import BanSubject, LiftBans
from django_quota.features.events.stream import iso
from django_quota.features.subject_contents import InspectSubject
from django_quota.limiting.api import AnySubject, RuleOrRate, answer_flow, run_call, subject_under_flow
from django_quota.limiting.known_rules import known_rule
from django_quota.limiting.registry import get_limiter, store_call
from django_quota.signals import announce, banned
from django_quota.subjects.subject import subject_of

logger = logging.getLogger("django_quota.bans")


def ban(rule: RuleOrRate, subject: AnySubject, duration: Duration, *, reason: str = "", by: object = None) -> Decision:
    """Ban a subject under a rule from now on; return the refusal that it gets.

    `rule`: the name of a rule in the settings or of a view, or a `Rule`. It needs `ban=`, because checks of other rules
    do not look for bans: block the subject by an override instead. `subject`: a string such as `"ip:203.0.113.9"`, a
    user, or a request, from which the rule's key takes the subject. `duration`: above 0 and up to 366 days. A ban that
    lasts longer already stays as it is; to shorten one, call `unban` first. `reason`, `by`: why, in at most 500
    characters, and who: a user, or the name of a program. The event and the page of bans show both. What a user did is
    also in the admin's log.

    The ban is an event and sends `banned`, the admin and `quota_status` show it, and `unban`, `reset` and the admin
    lift it. The next ban of this subject by the rule lasts for the next duration of `ban=`.

    Raises `RuleError` if an argument is wrong, or if a ban has no effect: under a rule without `ban=`, with
    `shadow=True`, or without a rate. Raises `StoreUnavailable` if the store does not answer.
    """
    return run_call(_ban_flow(rule, subject, duration, Author.of(by, reason)))


async def aban(
    rule: RuleOrRate, subject: AnySubject, duration: Duration, *, reason: str = "", by: object = None
) -> Decision:
    """Ban a subject without blocking the event loop; see `ban`."""
    return await run_async(_ban_flow(rule, subject, duration, Author.of(by, reason)))


def unban(rule: RuleOrRate, subject: AnySubject) -> int:
    """Lift the ban of a subject under a rule, or under all rules: `unban("*", user)`; return how many were in force.

    `rule` and `subject`: see `ban`. What was counted stays, and so do blocks. The next ban lasts for the first duration
    again. Raises `RuleError` and `StoreUnavailable`.
    """
    return run_call(_unban_flow(rule, subject))


async def aunban(rule: RuleOrRate, subject: AnySubject) -> int:
    """Lift bans without blocking the event loop; see `unban`."""
    return await run_async(_unban_flow(rule, subject))


def _ban_flow(given: RuleOrRate, subject: AnySubject, duration: Duration, author: Author) -> Flow[Decision]:
    rule, span = known_rule(given), parse_duration("duration", duration)
    name = yield from subject_under_flow(rule, subject, "a ban")
    if rule.shadow:
        raise RuleError(f"Rule {rule.name!r} is a shadow, which never refuses: a ban would have no effect.")
    if rule.ban is None:
        raise RuleError(
            f"Rule {rule.name!r} has no ban=, so its checks do not look for bans.",
            "Give it ban=, or block the subject by an override: `manage.py quota_override set <subject> blocked`.",
        )
    ask = _ask(rule, name)
    settings = current()
    if not settings.enabled:
        return Decision.without_limit(rule.name, name)
    operation = BanSubject(status_key(settings.prefix, name), field(rule.name), span, rule.ban.durations[-1])
    ends, level = yield store_call(operation)
    answer = yield from answer_flow([ask], "peek")
    decision = answer.decision
    if decision.degraded:
        raise StoreUnavailable("it has not answered since the ban was set")
    if level and settings.events:
        first = decision.outcomes[0] if decision.outcomes else None
        left = (first.of.capacity, first.remaining or 0) if first else (0, 0)
        event = EventRecord("banned", field(rule.name), escape(name), ends, level, *left)
        event = event._replace(user=author.subject, reason=author.reason)
        try:
            log = event_log_of(settings.prefix, settings.events, settings.event_days)
            yield store_call(AppendEvents(log, [event]))
        except StoreUnavailable as error:
            logger.warning("The event of a ban could not be written: %s", error)
        yield announce([(banned, {"rule": rule, "subject": name, "decision": decision})])
    if level and author.user is not None:
        what = f"Ban: {rule.name}, until {iso(ends)[:19]}Z"
        yield IOCall(author.log, sync_to_async(author.log), name, what)
    return decision


def _unban_flow(given: RuleOrRate, subject: AnySubject) -> Flow[int]:
    if given == ALL_RULES:
        return (yield from _lift_flow(None, subject_of(subject, "a ban")))
    rule = known_rule(given)
    name = yield from subject_under_flow(rule, subject, "a ban")
    return (yield from _lift_flow([field(rule.name)], name))


def lift_bans(fields: Collection[str] | None, subject: str) -> int:
    """End the bans of a subject; return how many were in force.

    `fields`: the names of their rules (`BanStatus.field`), or None for all. What was counted stays. The next ban is a
    first one again. Raises `StoreUnavailable`.
    """
    return run_sync(_lift_flow(fields, subject))


def _lift_flow(fields: Collection[str] | None, subject: str) -> Flow[int]:
    settings = current()
    key = status_key(settings.prefix, subject)
    if fields is None:
        _, words = yield store_call(InspectSubject(key, []))
        fields = [name.removeprefix("b:") for name in map(text, words[::2]) if name.startswith("b:")]
    lifting = LiftBans(key, list(fields), event_log_of(settings.prefix, settings.events, settings.event_days))
    try:
        return int((yield store_call(lifting)))
    finally:
        get_limiter().refusals.forget([subject])


def _ask(rule: Rule, subject: str) -> Ask:
    """Return an ask whose peek shows the ban. Raises `RuleError` if the rule never asks the store."""
    if rule.dynamic:  # its rates depend on a request; a ban holds whatever they are
        rule = rule.with_rates("1/m")
    if not rule.limits:
        raise RuleError(f"Rule {rule.name!r} has no rate, so it never asks the store: a ban would have no effect.")
    return Ask(rule, subject, 0)
