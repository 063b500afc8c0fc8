"""Limits on failed logins: who is limited, and how an operator unlocks somebody.

The rules come from the setting `LOGIN`. `django_quota.contrib.auth` has the backend that applies them.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.http import HttpRequest

from django_quota.conf import USERNAME, current
from django_quota.core import keys
from django_quota.core.rules import Rule
from django_quota.features.resets import reset
from django_quota.limiting.registry import get_limiter
from django_quota.subjects.addresses import client_address, is_from, is_from_exempt_network
from django_quota.subjects.subject import LOGIN, login_name, login_subject, named_subject

__all__ = ["login_hits", "login_name", "unlock", "with_addresses"]


def login_hits(names: Iterable[object], request: HttpRequest | None) -> list[tuple[Rule, str]]:
    """Return what an attempt to log in takes: the rules of `LOGIN`, each with its subject; none for an exempt address.

    `names`: the user names that were typed. Without a request, the rules by address are left out.
    """
    exemption = current().login[0].exempt  # all rules have the same
    if request is not None and (
        is_from_exempt_network(request) or (exemption is not None and is_from(request, exemption.networks))
    ):
        return []
    address = None if request is None else f"ip:{client_address(request)}"
    users = list(dict.fromkeys(map(login_subject, names)))
    hits: list[tuple[Rule, str]] = []
    for rule in current().login:
        if rule.key == "ip":
            hits += [] if address is None else [(rule, address)]
        elif rule.key == USERNAME:
            hits += [(rule, user) for user in users]
        elif address is not None:
            hits += [(rule, f"{user}+{address}") for user in users]
    return hits


def unlock(name: str | int | UUID, address: str | None = None) -> int:
    """Forget the failed logins of a user name; return for how many addresses, and for the name alone, there were any.

    `address`: only those from this address. Without one, this scans all keys of the store, because only the keys have
    the addresses. Limits by address alone stay: reset the address itself. Raises `RuleError` for an empty name,
    `StoreUnavailable` if the store does not answer.
    """
    rules, subject = current().login, login_subject(name)
    longer = with_addresses(subject) if address is None else [named_subject(f"{subject}+ip:{address}")]
    return sum(sum(reset(rule, each) for rule in rules) > 0 for each in [subject, *longer])


def with_addresses(subject: str) -> list[str]:
    """Return the subjects that combine a user name with an address in the store; empty if `subject` is not a user name.

    This scans all keys of the store.
    """
    if not subject.startswith(LOGIN) or "+" in subject:
        return []
    prefix = current().prefix
    found = get_limiter().store.names(f"{keys.glob(keys.subject_base(prefix, subject))}+*")
    subjects = {read.subject for key in found if (read := keys.read(prefix, key)) is not None}
    return sorted(filter(None, subjects))
