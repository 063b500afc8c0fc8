"""`raise_limit`: a subject gets more units under a rule for the current period, as when a customer buys some."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from asgiref.sync import sync_to_async

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.algorithms import SUBSCRIPTION, Limit
from django_quota.core.clock import frozen_now, moment_of
from django_quota.core.errors import RuleError, StoreUnavailable
from django_quota.core.flow import Flow, IOCall, run_async
from django_quota.core.keys import state_part, subject_base
from django_quota.core.overrides import Override, OverrideTable
from django_quota.core.rates import MAX_COUNT, Duration, RateChange, parse_duration, parse_override_rates
from django_quota.core.rules import Rule
from django_quota.engine.resolving import rule_under
from django_quota.engine.state_copies import ReadStates, StateCopy
from django_quota.features.authors import Author
from django_quota.limiting.api import AnySubject, RuleOrRate, run_call, subject_under_flow
from django_quota.limiting.known_rules import known_rule
from django_quota.limiting.overrides import overrides
from django_quota.limiting.registry import get_limiter
from django_quota.subjects.site_functions import started_flow

if TYPE_CHECKING:
    from django_quota.models import QuotaOverride


def raise_limit(
    rule: RuleOrRate,
    subject: AnySubject,
    units: int,
    until: datetime | Duration | None = None,
    *,
    reason: str = "",
    by: object = None,
) -> datetime | None:
    """Add units to what a subject has left under a rule; return when they end, None for never.

    It saves an override with `"+500"`: the units come on top of the rule's own rate, whichever tier the subject has or
    gets. Of several rates, the one with the longest period is raised. If an override sets the rate, that rate is raised
    instead. Calls add up, even at the same time.

    `rule`: the name of a rule in the settings or of a view, or a `Rule`. `subject`: a string such as `"org:7"`, a user,
    or a request, from which the rule's key takes the subject. `units`: 1 to 10^12. `until`: a moment, or a duration
    from now; by default the end of the current period for `algorithm="calendar"`, and one window from now for the
    others. If the subject's day of `starts=` has changed, what was used may count for longer than the period of the
    new day: then it is the end of what was used, as far as the store answers.

    `reason`, `by`: why, in at most 500 characters, and who: a user, or the name of a program. The override shows those
    of the last call, command or page that set it. What a user did is also in the admin's log.

    At `until` the override ends, and what applied before applies again. If the subject already has an override under
    this rule that ends later, or never, so does the raised rate: the result says when.

    Raises `RuleError` if an argument is wrong, for a bucket, which refills all the time and has no period, for a rule
    without a rate, and if an override blocks or exempts the subject, or puts it in shadow.
    """
    return run_call(_raise_flow(rule, subject, units, until, Author.of(by, reason)))


async def araise_limit(
    rule: RuleOrRate,
    subject: AnySubject,
    units: int,
    until: datetime | Duration | None = None,
    *,
    reason: str = "",
    by: object = None,
) -> datetime | None:
    """Add units to what a subject has left under a rule; see `raise_limit`."""
    return await run_async(_raise_flow(rule, subject, units, until, Author.of(by, reason)))


def _raise_flow(
    rule: RuleOrRate, subject: AnySubject, units: int, until: datetime | Duration | None, author: Author
) -> Flow[datetime | None]:
    if not isinstance(cast("object", units), int) or isinstance(units, bool) or not 1 <= units <= MAX_COUNT:
        raise RuleError(f"units={units!r} is not a whole number from 1 to {MAX_COUNT}. Use, for example, 500_000.")
    known = known_rule(rule)
    name = yield from subject_under_flow(known, subject, "raise_limit()")
    started = known if until is not None else (yield from started_flow(known, name))
    ends: datetime | None = yield IOCall(_save, sync_to_async(_save), started, name, units, until, author)
    return ends


def _save(rule: Rule, subject: str, units: int, until: datetime | Duration | None, author: Author) -> datetime | None:
    # It needs the models, which are not loaded yet when this module is imported.
    from django_quota.limiting import override_rows  # noqa: PLC0415

    def values(row: QuotaOverride | None) -> dict[str, Any]:
        own = None if row is None else override_rows.override_of(row)
        raised, ends = _raised_override(rule, subject, own, units, until)
        said = {"reason": author.reason or "raise_limit()", "created_by": author.name}
        return {**raised, **said, "expires": override_rows.moment_of_row(ends) if ends else None}

    overrides.refresh()
    # A call that raises it at the same time waits here.
    saved = override_rows.change_override(rule.name, subject, values)
    ends = None if saved.expires is None else moment_of(override_rows.microseconds_of_row(saved.expires))
    author.log(subject, f"Raise: {rule.name} +{units}, {f'until {ends:%Y-%m-%d %H:%M}Z' if ends else 'for good'}")
    return ends


def _raised_override(
    rule: Rule, subject: str, own: Override | None, units: int, until: datetime | Duration | None
) -> tuple[dict[str, Any], int]:
    """Return the fields of the raised override, and its end in microseconds, 0 for never. `own`: the present one."""
    from django_quota.limiting import override_rows  # noqa: PLC0415

    now = clock.now()
    if own is not None and own.begins > now:
        raise RuleError(
            f"Rule {rule.name!r} has an override of {subject} that begins later, and there can be only one.",
            f"Clear it first: `manage.py quota_override clear {subject} --rule {rule.name}`.",
        )
    rates, limits = _raised(rule, _held(rule.name, subject, own, now), units)
    if isinstance(until, datetime):
        ends = override_rows.microseconds_of_row(until)
        if ends <= now:
            raise RuleError(f"until={until} is in the past. Use a moment in the future.")
    else:
        ends = _end_of_period(rule, subject, limits, now) if until is None else now + parse_duration("until", until)
    values: dict[str, Any] = {"mode": "rate", "rate": rates, "starts": None}
    if own is not None and own.in_force(now):
        return values, max(ends, own.ends) if own.ends else 0
    return values | {"label": ""}, ends


def _held(rule: str, subject: str, own: Override | None, now: int) -> Override | None:
    """Return the override that applies to a subject under a rule. `own`: the subject's own, as the database has it."""
    others = [each for each in overrides.table.of_subject(subject) if (each.subject, each.rule) != (subject, rule)]
    return OverrideTable([*others, own] if own else others).find(rule, subject, now)


def _raised(rule: Rule, held: Override | None, units: int) -> tuple[str, list[Limit]]:
    """Return the raised rates as an override has them, and the raised limits of all tiers; `held`: what holds now."""
    if held is not None and held.mode != "rate":
        raise RuleError(
            f"The override of {held.subject} is {held.mode!r} for rule {rule.name!r}, so there is no rate to raise.",
            "Clear that override first.",
        )
    tiers = [tier if held is None else rule_under(tier, held) for tier in rule.tiers.values() or [rule]]
    raised = [limit for tier in tiers for limit in tier.under(f"+{units}").limits]
    if not raised and not rule.dynamic:
        raise RuleError(f"Rule {rule.name!r} has no rate, so there is none to raise.")
    change = RateChange() if held is None else parse_override_rates(held.rates)
    if isinstance(change, RateChange):
        return str(change._replace(units=change.units + units)), raised
    of_each_tier = raised[: len(change)]  # an override that sets rates sets the same for every tier
    return "; ".join(str(limit.rate) for limit in of_each_tier), raised


def _end_of_period(rule: Rule, subject: str, limits: Sequence[Limit], now: int) -> int:
    """Return when the longest period ends: that of a calendar, or one window from now."""
    if not limits:
        raise RuleError(f"Rule {rule.name!r} has rates that depend on a request: pass until=.")
    longest = max(limits, key=lambda limit: limit.rate.period)
    if longest.algorithm.timeless:
        return now + longest.rate.period
    ends = longest.parameters(now).b
    return max(ends, _end_of_count(rule, subject, longest, now)) if longest.algorithm is SUBSCRIPTION else ends


def _end_of_count(rule: Rule, subject: str, limit: Limit, now: int) -> int:
    """Return until when the units count that a subject has used of a period; 0 if it has used none."""
    key = f"{subject_base(current().prefix_in(rule.store), subject)}}}:{state_part(limit)}"
    store = get_limiter().stores.counting_in(database=rule.store is not None).reporting_store
    try:
        (found,) = store.run(ReadStates([key]), frozen_now())
    except StoreUnavailable:
        return 0
    if not isinstance(found, StateCopy):
        return 0
    return now + limit.algorithm.peek(found.value, limit.parameters(now), 0, now).reset
