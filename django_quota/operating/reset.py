"""Reset what rules have counted for a subject, and lift its bans. Overrides, leases and daily counts stay."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django_quota.conf import current
from django_quota.core import keys
from django_quota.core.clock import frozen_now
from django_quota.core.rules import Rule
from django_quota.engine.asks import Ask
from django_quota.engine.events import EventLog
from django_quota.engine.resolving import event_log_of, hits_of
from django_quota.engine.subject_operations import Reset, RuleState, reset_of
from django_quota.features.usage.days import recent_usage
from django_quota.limiting.known_rules import known_rules
from django_quota.limiting.limiter import scope_of
from django_quota.limiting.overrides import overrides
from django_quota.limiting.registry import get_limiter
from django_quota.operating.inspection import (
    NamedRule,
    batches,
    read_contents,
    rules_named,
    scan_keys,
)
from django_quota.requests.subjects import subject_of


@dataclass(frozen=True, slots=True)
class ResetReport:
    """What a reset did, or would do."""

    rules: list[str]
    """The rules that were reset. A scan finds only those that have counted something or ban the subject."""
    dropped: int
    """How many states and bans were dropped."""


def reset_subject(
    subject: Any, names: Collection[str] | None = None, *, scan: bool = False, dry_run: bool = False
) -> ResetReport:
    """Delete what these rules, or all rules that can be found, have counted for a subject, and lift their bans.

    `subject`: a string such as `"user:42"`, or a user. `names`: the names of rules; None: the configured rules, those
    of the views, and those that the subject's own keys name. `scan`: find rules by walking through all keys of the
    store, as `load_snapshot` does. Use that in a command, not in a request. Without it, a name that no known rule has
    is read as a rate. `dry_run`: change nothing. Overrides, leases and daily counts stay.

    Raises `RuleError` if `subject` is not a subject, and `StoreUnavailable`.

    In async code: `await sync_to_async(reset_subject)(...)`.
    """
    subject = subject_of(subject, "a reset")
    overrides.refresh()
    places = _scan_places(subject, names) if scan else None
    rules: Mapping[str, object]
    if places is None:
        rules = chosen = _choose_rules(subject, names)
        operations = _forget_rules(subject, chosen)
    else:
        rules = places
        operations = iter([Reset(list(places.values()), _log())] if places else [])
    limiter = get_limiter()
    run = limiter.reporting_store.run
    try:
        dropped = 0 if dry_run else sum(int(run(operation, frozen_now())) for operation in operations)
    finally:
        limiter.refusals.forget([subject])
    return ResetReport(list(rules), dropped)


def _log() -> EventLog:
    settings = current()
    return event_log_of(settings.prefix, settings.events)


def _scan_places(subject: str, names: Collection[str] | None) -> dict[str, RuleState] | None:
    """Return, by rule, where the store holds something that a reset drops; None for the memory of a process."""
    found = scan_keys(subject)
    if found is None:
        return None
    states: dict[str, list[str]] = {}
    for key, read in found.items():
        kind, _, rest = read.what.partition(":")
        if kind in ("r", "b"):  # states, and counts of refusals towards a ban
            states.setdefault(rest.partition(":")[0], []).append(key)
    for field in read_contents(subject).fields:
        if field.startswith("b:"):
            states.setdefault(field.removeprefix("b:"), [])
    wanted = states.keys() if names is None else {keys.field(name) for name in names}
    status = keys.status_key(current().prefix, subject)
    return {
        keys.named(part) or part: RuleState(part, status, of_rule)
        for part, of_rule in sorted(states.items())
        if part in wanted
    }


def _choose_rules(subject: str, names: Collection[str] | None) -> dict[str, NamedRule]:
    known = known_rules()
    if names is None:
        names = known.keys() | read_contents(subject).rules | set().union(*recent_usage(subject).values())
    return {name: known.get(name) or rules_named(name) for name in names}


def _forget_rules(subject: str, chosen: Mapping[str, NamedRule]) -> Iterator[Reset]:
    """Return the operations that forget these rules, with the limits of their overrides."""
    plain = [rule for given in chosen.values() if isinstance(given, list) for rule in given]
    rules, scope = [given for given in chosen.values() if isinstance(given, Rule)], scope_of(current())
    plain += [rule for rule in rules if rule.limits]
    for batch in batches(plain, [list(rule.tiers.values()) for rule in rules]):
        hits = hits_of([Ask(rule, subject, 0) for rule in batch], scope, 0)
        if hits:
            yield reset_of(hits, overrides.table, scope.log)
