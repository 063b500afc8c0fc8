"""All limits of a request or of a subject, peeked at in one trip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from asgiref.sync import sync_to_async
from django.http import HttpRequest
from django.urls import path

from django_quota.core.decisions import Decision
from django_quota.core.errors import RuleError
from django_quota.core.flow import Flow, IOCall, run_async
from django_quota.core.rules import Rule, default_tier_of
from django_quota.engine.asks import Ask
from django_quota.features.usage.days import last_tiers
from django_quota.http.site_rules import site_rules
from django_quota.limiting.api import ENTRIES_AT_ONCE, AnySubject, answer_flow, django_request, run_call
from django_quota.limiting.asking import asked_flow
from django_quota.limiting.known_rules import known_keys, known_rules, rule_finders
from django_quota.subjects.keys import is_given_by
from django_quota.subjects.subject import subject_of


def limits_of(request_or_subject: AnySubject, *, tier: str | None = None) -> Decision:
    """Return all limits that apply to a request or a subject; take nothing.

    The `outcomes` of the Decision have one entry for each limit: its rule, rate, how much is used and left, until when,
    and whether it admits one more unit. No `cost` function is called. At most 1,000 rules are looked at.

    Of a request: the configured rules that match it and those on its view, if their `methods`, `skip` and `exempt`
    let them apply. Rules that read the body are left out.

    Of a subject, a text such as `"org:7"` or a user: the rules of the settings and of the views whose key can give this
    subject, and those of the settings that name neither a key nor a `match`, which calls use with any subject. Rules
    whose rates are functions of the request are left out. `tier`: the tier of rules with rates by tier. By default, it
    is the tier of the subject's last request for rules with a `tier` function, if their checks are counted by day;
    otherwise, a `user:` is "authenticated", and all others are "anonymous".

    It takes one call to the store, and one more to look up last tiers.

    Without limits, and while the store does not answer (`degraded`), there are no outcomes. Raises `RuleError` for a
    wrong subject, and for a tier that no rule has.
    """
    return run_call(_limits_flow(request_or_subject, tier))


async def alimits_of(request_or_subject: AnySubject, *, tier: str | None = None) -> Decision:
    """Return all limits of a request or a subject without blocking the event loop; see `limits_of`."""
    return await run_async(_limits_flow(request_or_subject, tier))


def _limits_flow(request_or_subject: AnySubject, tier: str | None) -> Flow[Decision]:
    request = django_request(request_or_subject)
    if request is None:
        subject = subject_of(request_or_subject, "limits_of()")
        rules = _rules_for(subject, tier)
        if tier is None:
            tiers = yield IOCall(last_tiers, sync_to_async(last_tiers), rules, subject)
        else:
            tiers = {rule.name: tier for rule in rules}
        return (yield from peek_flow(_asked_of(rules, subject, tiers)))
    return (yield from peek_flow((yield from asked_flow(rules_of_request(request), request, is_peek=True))))


def rules_of_request(request: HttpRequest) -> Iterator[Rule]:
    """Yield the configured rules that match a request, and those on the view that it resolves to."""
    yield from site_rules(request)
    match = request.resolver_match
    patterns = [path("", match.func)] if match is not None else []
    for finder in rule_finders:
        yield from finder(patterns)


def _rules_for(subject: str, tier: str | None) -> list[Rule]:
    """Return the known rules that can concern a subject."""
    keys, known = known_keys(), [rule for rule in known_rules().values() if isinstance(rule, Rule)]
    if tier is not None and not any(tier in rule.tiers for rule in known):
        raise RuleError(f"No rule has a tier {tier!r}.", "Name one of the tiers of a rule, or leave out tier=.")
    return [rule for rule in known if is_given_by(keys.get(rule.name, ()), subject)]


def _asked_of(rules: Iterable[Rule], subject: str, tiers: Mapping[str, str]) -> list[Ask]:
    """Return what rules ask for. `tiers`: the subject's tier by rule; a rule that is left out takes the default one."""
    default = default_tier_of(subject)
    found = []
    for rule in rules:
        of_default = rule if rule.tier else rule.tiers.get(default, rule)
        found.append(Ask(rule.tiers.get(tiers.get(rule.name, ""), of_default), subject, 1))
    return [ask for ask in found if ask.rule.limits]


def peek_flow(asked: Iterable[Ask]) -> Flow[Decision]:
    """Return what is left of each limit, even if an override blocks the subject of another one."""
    once = list({ask.place: ask for ask in asked}.values())[:ENTRIES_AT_ONCE]
    answer = yield from answer_flow(once, "peek")
    skipped = answer.resolved.skipped
    others = [ask for ask in once if ask.place not in skipped]
    if answer.resolved.is_blocked and others:  # then no store was asked
        left = yield from answer_flow(others, "peek")
        return answer.decision.combined_with(left.decision)
    return answer.decision
