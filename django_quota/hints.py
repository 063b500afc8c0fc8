"""Hints for whoever types a subject or a rule: what was typed, and could never be met, and what is likely meant.

Nothing is refused here: a call may name any subject and any rule. It must not know the page or the command that asks.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from django.contrib.auth import get_user_model
from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.db import router
from django.utils.translation import gettext as _

from django_quota.addresses import FULL_IPV6, canonical, is_network
from django_quota.conf import current
from django_quota.exceptions import RuleError
from django_quota.overrides import ALL_RULES
from django_quota.status import known_rules
from django_quota.subjects import GLOBAL, named_subject, user_subject

MOST_USERS = 20
"""Users that a text may mean, of each way to find them."""

LONGEST_NAME = 320
"""Characters above which a text is no user's name, e-mail or key."""

# --- subjects ---------------------------------------------------------------------------------------------------------


def is_address(text: str) -> bool:
    """Say whether a text is an IP address, or a network, without what makes it a subject."""
    return is_network(text) or canonical(text, FULL_IPV6) is not None


def meant_subject(text: str) -> str:
    """Return the subject that a text means: as `named_subject`, and `ip:...` for a bare address.

    Raises `RuleError` where it means nobody.
    """
    return named_subject(f"ip:{text}" if is_address(text) else text)


def network_hint(text: str) -> str:
    """Say why a network is no subject; empty where a text is none, or is what IPv6 addresses go by."""
    bare, own = text.removeprefix("ip:"), current().ipv6_prefix
    if not is_network(bare) or "+" in text or (bare.endswith(f"/{own}") and _is_one(bare)):
        return ""
    words = {"subject": text, "bits": own}
    return _(
        "No request has the subject “%(subject)s”: it is a network, and a subject is one address. IPv6 addresses go by "
        "their /%(bits)d."
    ) % words  # fmt: skip


def _is_one(address: str) -> bool:
    try:
        named_subject(f"ip:{address}")
    except RuleError:
        return False
    return True


def is_bare(subject: str) -> bool:
    """Say whether a subject is a word that no request brings: neither `global`, nor a kind and a value."""
    return ":" not in subject and subject != GLOBAL


def subject_hint(subject: str, *, with_users: bool = True) -> str:
    """Say why no request has a subject, and which one is likely meant; empty where nothing is wrong.

    `with_users`: whether users are looked up by name; who may not see them must not learn of them.
    """
    words = {"subject": subject}
    if network := network_hint(subject):
        return network
    if is_address(subject):
        words["meant"] = meant_subject(subject)
        return _("No request has the subject “%(subject)s”: an address is written “%(meant)s”.") % words
    if is_bare(subject):
        users = users_called(subject) if with_users else []
        if len(users) == 1:
            words["meant"] = user_subject(users[0])
            return _("No request has the subject “%(subject)s”: the user of this name is “%(meant)s”.") % words
        if with_users and not users:
            return _(
                "No user is called “%(subject)s”, and no request has such a subject: user:<key>, ip:<address> or "
                "global would do. Only a call that names it so can meet it."
            ) % words  # fmt: skip
        return _(
            "No request has the subject “%(subject)s”: user:<key>, ip:<address> or global would do. Only a call that "
            "names it so can meet it."
        ) % words  # fmt: skip
    return _user_hint(subject) if with_users else ""


def _user_hint(subject: str) -> str:
    kind, _colon, escaped = subject.partition(":")
    if kind != "user" or "+" in escaped:
        return ""
    key = unquote(escaped)
    if next(users_by_key(key), None) is not None:
        return ""
    words, users = {"key": key}, users_called(key)
    if len(users) == 1:
        words["meant"] = user_subject(users[0])
        return _("There is no user with the key “%(key)s”: the user of this name is “%(meant)s”.") % words
    return _("There is no user with the key “%(key)s”.") % words


# --- users ------------------------------------------------------------------------------------------------------------


def users_called(text: str) -> list[Any]:
    """Return the users whom a text may mean, by name, key or e-mail: some queries, each on an index where there is one.

    At most `MOST_USERS` of each way.
    """
    if not text or len(text) > LONGEST_NAME or "\0" in text:
        return []
    return list({user.pk: user for user in _users(text)}.values())


def users_by_key(text: str) -> Iterator[Any]:
    """Yield the user whose primary key a text is; nobody where it is none."""
    model: Any = get_user_model()
    try:
        key = model._meta.pk.to_python(text)
        yield from _all_users().filter(pk=key)[:1]
    except (ValidationError, ValueError, OverflowError):  # no key, or none that the database could hold
        return


def _all_users() -> Any:
    """Return the users of the database that they are written to: one who has just come is there."""
    model: Any = get_user_model()
    return model._default_manager.using(router.db_for_write(model))


def _users(text: str) -> Iterator[Any]:
    model: Any = get_user_model()
    users = _all_users()
    yield from users.filter(**{model.USERNAME_FIELD: text})[:MOST_USERS]
    yield from users_by_key(text)
    if "@" in text and _has_field(model, model.get_email_field_name()):
        yield from users.filter(**{f"{model.get_email_field_name()}__iexact": text})[:MOST_USERS]


def _has_field(model: Any, name: str) -> bool:
    try:
        model._meta.get_field(name)
    except FieldDoesNotExist:
        return False
    return True


# --- rules ------------------------------------------------------------------------------------------------------------


def rule_hint(rule: str) -> str:
    """Say that no rule of the settings or the views has this name, and which near one there is; empty where one has."""
    known = known_rules()
    if rule == ALL_RULES or rule in known:
        return ""
    words = {"rule": rule, "near": "".join(difflib.get_close_matches(rule, known, n=1))}
    if words["near"]:
        return _("“%(rule)s” is no rule of the settings or the views. Did you mean “%(near)s”?") % words
    return _("“%(rule)s” is no rule of the settings or the views.") % words
