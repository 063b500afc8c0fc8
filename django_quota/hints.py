"""Hints for whoever types a subject or a rule: what was typed, and could never be met, and what is likely meant.

Nothing is refused here: a call may name any subject and any rule. It must not know the page or the command that asks.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from django.contrib.auth import get_user_model
from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.db import router
from django.http import HttpRequest, QueryDict
from django.http.request import HttpHeaders
from django.utils.translation import gettext as _

from django_quota.addresses import FULL_IPV6, canonical, is_network
from django_quota.conf import current
from django_quota.exceptions import RuleError
from django_quota.overrides import ALL_RULES
from django_quota.rules import path_of
from django_quota.status import known_rules
from django_quota.subjects import GLOBAL, answer, named_subject, path_subject, subject_flow, user_subject

MOST_USERS = 20
"""Users that a text may mean, of each way to find them."""

LONGEST_NAME = 320
"""Characters above which a text is no user's name, e-mail or key."""

# --- subjects ---------------------------------------------------------------------------------------------------------


def is_address(text: str) -> bool:
    """Say whether a text is an IP address, or a network, without what makes it a subject."""
    return is_network(text) or canonical(text, FULL_IPV6) is not None


def meant_subject(text: str) -> str:
    """Return the subject that a text means: as `named_subject`, and what a human writes for its parts.

    A bare address is `ip:...`. Of a value, as in `post:phone=+1555`, the digest is taken, and a path is escaped, as a
    request's are; parts are joined by a plus sign: `ip:203.0.113.9+post:username=ann`. The value must go nowhere.

    Raises `RuleError` where it means nobody.
    """
    return named_subject("+".join(_meant_part(part) for part in _BETWEEN_PARTS.split(text)))


_BETWEEN_PARTS = re.compile(
    r"\+(?=(?:ip|user|path|header|cookie|get|post):|(?:header|cookie|get|post|key)\.|global(?:\+|\Z))"
)
"""The plus signs that part a subject: one with anything else behind it belongs to a value."""

_FIELDS = ("header", "cookie", "get", "post")
"""What may be written with a value behind an equals sign; its digest lies under `header.`, `cookie.` and so on."""

_VALUE = re.compile(r"(header|cookie|get|post):([^=]+)=(.*)", re.DOTALL)


def _meant_part(part: str) -> str:
    if is_address(part):
        return f"ip:{part}"
    value = _VALUE.fullmatch(part)
    if value:
        return _part_of_value(*value.groups())
    kind, colon, path = part.partition(":")
    return path_subject(unquote(path, errors="surrogatepass")) if kind == "path" and colon else part


def _part_of_value(kind: str, name: str, value: str) -> str:
    """Return the subject of a request that would bring this value: so it is spelt and digested as any other is."""
    if not value:
        raise RuleError(_("There is no value behind the equals sign."))
    request = HttpRequest()
    name = name.strip()
    if kind == "header":
        request.META[HttpHeaders.to_wsgi_name(name)] = value
    elif kind == "cookie":
        request.COOKIES[name] = value
    else:
        fields = QueryDict(mutable=True)
        fields[name] = value
        setattr(request, kind.upper(), fields)
    return str(answer(subject_flow(f"{kind}:{name}", request)))


def sought_subject(text: str) -> str:
    """Return the subject that a text means; a network as it stands, since code may have named it so."""
    return named_subject(text) if network_hint(text) else meant_subject(text)


def composite_subjects(subject: str) -> dict[str, str]:
    """Return the subject of each known rule whose key has more parts than this one, by the rule's name.

    What the subject does not say stands in angle brackets: `ip:203.0.113.9+post:username=<value>`.
    """
    found = {}
    for name, rule in known_rules().items():
        parts = _BETWEEN_PARTS.split(subject)
        if isinstance(rule, str) or not isinstance(rule.key, tuple) or len(parts) >= len(rule.key):
            continue
        asked = [_taken(key, parts) or _unknown(key) for key in rule.key]
        if not parts:
            found[name] = "+".join(asked)
    return found


def _taken(key: object, parts: list[str]) -> str | None:
    """Take the part of a subject that a key makes out of these; None where it makes none of them."""
    for part in parts:
        kind = part.partition(":")[0]
        kinds = {"ip": ("ip", "user", "user_or_ip"), "user": ("user", "user_or_ip")}.get(kind, (kind,))
        if key in kinds or (isinstance(key, str) and _field_of(key) == kind):
            parts.remove(part)
            return part
    return None


def _field_of(key: str) -> str:
    """Return what the subjects of a key such as `header:X-Device` begin with."""
    kind, _colon, name = key.partition(":")
    return f"{kind}.{name.strip().lower() if kind == 'header' else name.strip()}"


def _unknown(key: object) -> str:
    """Return what a part of a subject looks like whose value is not known."""
    if not isinstance(key, str):
        return f"key.{path_of(key)}:<value>"
    known = {"ip": "ip:<address>", "user": "user:<key>", "user_or_ip": "user:<key>", "path": "path:<path>"}
    if key in known or ":" not in key:
        return known.get(key, key if key == GLOBAL else f"key.{key}:<value>")
    return f"{key}=<value>"


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
    return _value_hint(subject) or (_user_hint(subject) if with_users else "")


def _value_hint(subject: str) -> str:
    """Say that a header, a cookie or a field lacks its value; empty where none does."""
    for part in _BETWEEN_PARTS.split(subject):
        if part.partition(":")[0] in _FIELDS:
            words = {"subject": subject, "meant": f"{part}=<value>"}
            return _("No request has the subject “%(subject)s”: the value is missing. Write “%(meant)s”.") % words
    return ""


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
