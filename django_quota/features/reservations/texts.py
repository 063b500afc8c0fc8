"""The string of a reservation that another process settles: its id, rules, subjects and estimates, and what it took.

It is signed with the `SECRET_KEY` of the site, so what is read is what was written.
"""

from __future__ import annotations

from typing import Any

from django.core import signing

from django_quota.conf import current
from django_quota.core.errors import RuleError
from django_quota.core.rates import validate_cost
from django_quota.core.rules import Rule
from django_quota.core.takes import Asked, Take
from django_quota.engine.asks import Ask, Place
from django_quota.engine.receipts import Receipt, Taken
from django_quota.limiting.api import rule_of_tier, rule_without_request

FORMAT_VERSION = 1

_SALT = "django_quota.reservation"

_OPTIONS = (
    *("algorithm", "burst", "precision", "tz", "count_refused", "share"),
    *("block", "shadow", "daily", "on_unavailable", "warn_at"),
)
"""What settling needs of a rule that is not configured. The others are for requests, and for refusals."""


def sign_receipt(receipt: Receipt) -> str:
    """Return the reservation as a signed string."""
    entries = [(_written(ask.rule), ask.subject, ask.cost, receipt.taken.get(ask.place)) for ask in receipt.asks]
    said = {"reservation": FORMAT_VERSION, "id": receipt.id, "decided_at": receipt.decided_at, "entries": entries}
    return signing.dumps(said, salt=_SALT)


def read_receipt(text: str) -> Receipt:
    """Return what a reservation took. Raises `RuleError`."""
    try:
        read = signing.loads(text, salt=_SALT)
    except (signing.BadSignature, AttributeError, TypeError):  # changed, of another site, or no string
        read = {}
    if read.get("reservation") != FORMAT_VERSION:
        raise RuleError(
            f"{str(text)[:40]!r} is not a reservation of this site.",
            "Use what reservation.dumps() returned, unchanged, and the same SECRET_KEY.",
        )
    asks: list[Ask] = []
    taken: dict[Place, Taken] = {}
    for written, subject, cost, found in read["entries"]:
        rule = _rule_of(written, subject, cost)
        asks.append(Ask(rule, subject, validate_cost(cost, rule.name)))
        if found:
            moment, limits = found
            taken[asks[-1].place] = Taken(moment, {key: tuple(limits[key]) for key in limits})
    return Receipt(asks, taken, read["decided_at"], read["id"])


def _written(rule: Asked) -> dict[str, Any]:
    """Return what finds or makes a rule again: its name, its rates and options, or the group of a counter."""
    if isinstance(rule, Take):
        return {"counter": rule.name, "group": rule.group, "ttl": rule.ttl}
    if rule.name in current().rules:
        configured = current().rule(rule.name)
        for tier, of_tier in {"": configured, **configured.tiers}.items():
            if rule == of_tier:
                return {"name": rule.name, "tier": tier}
    options = {option: getattr(rule, option) for option in _OPTIONS if getattr(rule, option) != getattr(Rule, option)}
    return {"name": rule.name, "rates": [str(rate) for rate in rule.rates], **options}


def _rule_of(written: dict[str, Any], subject: str, cost: int) -> Asked:
    """Return the rule that was written; a configured one as it is now. Raises `RuleError` if that is gone."""
    if "counter" in written:
        return Take(written["counter"], written["group"], written["ttl"])
    if "rates" in written:
        options = dict(written)
        return Rule.make(options.pop("name"), *options.pop("rates"), **options)
    rule = current().rule(written["name"])
    if rule.tiers and written["tier"]:
        return rule_of_tier(rule, written["tier"])
    return rule_without_request(rule, subject, cost, None)
