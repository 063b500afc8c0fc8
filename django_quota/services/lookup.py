"""Find users, subjects and rules by what a person types, and say what is probably meant.

Nothing is refused here: a call may use any subject and any rule name. Where a typed text holds a plain value, as in
`post:phone=+1555`, only the digest of the value is used. Never log or show such a text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import connections, router
from django.db.models import Q
from django.db.models.expressions import RawSQL
from django.http import HttpRequest, QueryDict
from django.http.request import HttpHeaders
from django.urls import ResolverMatch
from django.utils.translation import gettext as _

from django_quota.conf import rule_of
from django_quota.core.errors import RuleError, nearest
from django_quota.core.flow import run_sync
from django_quota.core.rules import dotted_path, is_valid_name
from django_quota.models import DailyCounter
from django_quota.services.addresses import is_address, is_network, own_prefixes
from django_quota.services.known_rules import known_rules
from django_quota.services.overrides import ALL_RULES
from django_quota.services.request_state import state_of
from django_quota.services.subjects import (
    GLOBAL,
    login_subject,
    named_subject,
    path_subject,
    session_subject,
    subject_flow,
    user_subject,
)

MAX_USERS = 20
"""Users that one text may match."""

MAX_USER_TEXT = 320
"""Characters of the longest text that is looked up as a user's name, e-mail address or key."""

MAX_NAMES = 100
"""Names that `distinct_names` returns unless you ask for another number."""

# --- from text to a subject -------------------------------------------------------------------------------------------

_BETWEEN_PARTS = re.compile(
    r"\+(?=(?:ip|user|session|path|header|cookie|kwarg|get|post|json|login):"
    r"|(?:header|cookie|kwarg|get|post|json|login|key)\.|session=|global(?:\+|\Z))"
)
"""The plus signs that separate the parts of a subject. A plus sign before anything else belongs to a value."""

_FIELDS = ("header", "cookie", "kwarg", "get", "post", "json", "login")
"""The kinds that take a value after an equals sign. Their subjects begin with `header.`, `cookie.` and so on."""

_VALUE = re.compile(r"(header|cookie|kwarg|get|post|json|login):([^=]+)=(.*)|session=(.*)", re.DOTALL)


def parse_subject_input(text: str) -> str:
    """Return the subject that a typed text means.

    It takes subjects as they are, and what people write instead of them: `203.0.113.9` for `ip:203.0.113.9`,
    `post:phone=+1555` for the digest of that value, `login:username=ann` for the failed logins of a user name, and any
    path. A plus sign joins the parts of a subject: `ip:203.0.113.9+post:username=ann`.

    Raises `RuleError` for a text that cannot be a subject.
    """
    return named_subject("+".join(_parse_part(part) for part in _BETWEEN_PARTS.split(text)))


def parse_search_input(text: str) -> str:
    """Return the subject to search for. It differs from `parse_subject_input` for networks, which stay as typed."""
    return named_subject(text) if network_hint(text) else parse_subject_input(text)


def parse_rule_input(text: str) -> str:
    """Return the name of the rule that a typed text means. A rate has one name: `10 per minute` is `10/m`."""
    if text not in known_rules():
        with suppress(RuleError):
            return rule_of(text, {}).name
    return text


def _parse_part(part: str) -> str:
    if is_address(part):
        return f"ip:{part}"
    value = _VALUE.fullmatch(part)
    if value:
        kind, name, text, session = value.groups()
        return _subject_of_value(kind or "session", name or "", session if kind is None else text)
    kind, colon, path = part.partition(":")
    return path_subject(unquote(path, errors="surrogatepass")) if kind == "path" and colon else part


def _subject_of_value(kind: str, name: str, value: str) -> str:
    """Return the subject of a request with this value, so that spelling and digest are those of real requests."""
    if not value:
        raise RuleError(_("The value after the equals sign is missing."))
    request = HttpRequest()
    name = name.strip()
    if kind == "login":
        if name != "username":
            raise RuleError(_("Write “login:username=<name>”."))
        return login_subject(value)
    if kind == "header":
        request.META[HttpHeaders.to_wsgi_name(name)] = value
    elif kind == "cookie":
        request.COOKIES[name] = value
    elif kind == "kwarg":
        request.resolver_match = ResolverMatch(subject_flow, (), {name: value})
    elif kind == "json":
        body: Any = value
        for part in reversed(name.split(".")):
            body = {part: body}
        state_of(request).json_body = body
    elif kind == "session":
        return session_subject(value)
    else:
        fields = QueryDict(mutable=True)
        fields[name] = value
        setattr(request, kind.upper(), fields)
    return str(run_sync(subject_flow(f"{kind}:{name}", request)))


@dataclass(frozen=True, slots=True)
class SubjectMatch:
    """A subject that a typed text may mean."""

    subject: str
    user: Any = None
    is_guess: bool = False
    """Whether nothing was found, so that the text itself is taken as the subject."""


def find_subjects(text: str, *, with_users: bool) -> list[SubjectMatch]:
    """Return the subject that a text means, or several users to choose from.

    `with_users`: whether to look for users by name. Leave it out for people who may not see users.
    Raises `RuleError` for a text that cannot be a subject.
    """
    text = text.strip()
    if not text:
        raise RuleError(_("Type a user, an address or a subject."))
    if is_address(text) or not is_bare(text):
        return [SubjectMatch(parse_subject_input(text))]
    found = [SubjectMatch(user_subject(user), user) for user in find_users(text)] if with_users else []
    return found or [SubjectMatch(named_subject(text), is_guess=True)]


# --- composite subjects -----------------------------------------------------------------------------------------------


def composite_subjects(subject: str) -> dict[str, str]:
    """Return, by rule, the longer subjects that this one is a part of: those of known rules with several keys.

    Unknown parts are in angle brackets: `ip:203.0.113.9+post:username=<value>`.
    """
    found = {}
    for name, rule in known_rules().items():
        parts = _BETWEEN_PARTS.split(subject)
        if isinstance(rule, str) or not isinstance(rule.key, tuple) or len(parts) >= len(rule.key):
            continue
        filled = [_take_part(key, parts) or _placeholder(key) for key in rule.key]
        if not parts:
            found[name] = "+".join(filled)
    return found


def _take_part(key: object, parts: list[str]) -> str | None:
    """Remove and return the part that a key gives; None if it gives none of them."""
    for part in parts:
        kind = part.partition(":")[0]
        keys = {"ip": ("ip", "user", "user_or_ip"), "user": ("user", "user_or_ip")}.get(kind, (kind,))
        if key in keys or (isinstance(key, str) and _prefix_of(key) == kind):
            parts.remove(part)
            return part
    return None


def _prefix_of(key: str) -> str:
    """Return how the subjects of a key such as `header:X-Device` begin."""
    kind, _colon, name = key.partition(":")
    return f"{kind}.{name.strip().lower() if kind == 'header' else name.strip()}"


def _placeholder(key: object) -> str:
    if not isinstance(key, str):
        return f"key.{dotted_path(key)}:<value>"
    known = {
        "ip": "ip:<address>",
        "user": "user:<key>",
        "user_or_ip": "user:<key>",
        "session": "session=<key>",
        "path": "path:<path>",
    }
    if key in known or ":" not in key:
        return known.get(key, key if key == GLOBAL else f"key.{key}:<value>")
    return f"{key}=<value>"


# --- hints ------------------------------------------------------------------------------------------------------------


def subject_hint(subject: str, *, with_users: bool = True) -> str:
    """Say why no request has this subject, and which one is probably meant; empty if nothing is wrong.

    `with_users`: whether to look for users by name. Turn it off for people who may not see users.
    """
    words = {"subject": subject}
    if network := network_hint(subject):
        return network
    if is_address(subject):
        words["meant"] = parse_subject_input(subject)
        return _("No request has the subject “%(subject)s”. Write the address as “%(meant)s”.") % words
    if is_bare(subject):
        users = find_users(subject) if with_users else []
        if len(users) == 1:
            words["meant"] = user_subject(users[0])
            return _("No request has the subject “%(subject)s”. The user with this name is “%(meant)s”.") % words
        if with_users and not users:
            return _(
                "No user is called “%(subject)s”, and no request has such a subject. Use, for example, user:<key>, "
                "ip:<address> or global. It works only where your code passes this subject itself."
            ) % words  # fmt: skip
    if is_bare(subject) or _is_misspelt(subject):
        return _(
            "No request has the subject “%(subject)s”. Use, for example, user:<key>, ip:<address> or global. It works "
            "only where your code passes this subject itself."
        ) % words  # fmt: skip
    return _value_hint(subject) or (_user_hint(subject) if with_users else "")


def _is_misspelt(subject: str) -> bool:
    """Return whether a subject begins almost as those of users or addresses do: `usr:42`, `IP:203.0.113.9`."""
    kind = subject.partition(":")[0]
    return kind not in ("user", "ip") and bool(difflib.get_close_matches(kind.lower(), ("user", "ip"), cutoff=0.85))


def is_bare(subject: str) -> bool:
    """Return whether a subject is a word that no request has: not `global`, and not a kind with a value."""
    return ":" not in subject and subject != GLOBAL and not subject.startswith("session=")


def network_hint(text: str) -> str:
    """Say why a network is not a subject; empty for other texts, and for networks that IPv6 addresses count by."""
    bare, (ipv4, ipv6) = text.removeprefix("ip:"), own_prefixes()
    own = ipv6 if ":" in bare else ipv4
    if not is_network(bare) or "+" in text or (bare.endswith(f"/{own}") and _is_subject(bare)):
        return ""
    return _(
        "No request has the subject “%(subject)s”: it is a network. Use one address. IPv6 addresses "
        "count by their /%(bits)d."
    ) % {"subject": text, "bits": ipv6}  # fmt: skip


def _is_subject(address: str) -> bool:
    try:
        named_subject(f"ip:{address}")
    except RuleError:
        return False
    return True


def _value_hint(subject: str) -> str:
    """Say that a header, a cookie or a field has no value; empty if none lacks it."""
    for part in _BETWEEN_PARTS.split(subject):
        if part.partition(":")[0] in _FIELDS:
            field = "login:username" if part.startswith("login:") else part.partition("=")[0]
            words = {"subject": subject, "meant": f"{field}=<value>"}
            return _("No request has the subject “%(subject)s”: the value is missing. Write “%(meant)s”.") % words
    return ""


def _user_hint(subject: str) -> str:
    key = _user_key_of(subject)
    if key is None or user_of(subject) is not None:
        return ""
    words, users = {"key": key}, find_users(key)
    if len(users) == 1:
        words["meant"] = user_subject(users[0])
        return _("There is no user with the key “%(key)s”. The user with this name is “%(meant)s”.") % words
    return _("There is no user with the key “%(key)s”.") % words


def rule_hint(rule: str) -> str:
    """Say that neither the settings nor the views have this rule, and name a similar one; empty if they have it."""
    known = known_rules()
    if rule == ALL_RULES or rule in known:
        return ""
    words = {"rule": rule, "near": nearest(rule, known)}
    if words["near"]:
        return _("“%(rule)s” is no rule of the settings or the views. Did you mean “%(near)s”?") % words
    return _("“%(rule)s” is no rule of the settings or the views.") % words


# --- users ------------------------------------------------------------------------------------------------------------


def find_users(text: str, *, prefix: bool = False) -> list[Any]:
    """Return at most `MAX_USERS` users whose key, name or e-mail address a text is, in one query.

    `prefix`: also those whose name or e-mail address begins with the text, if no user matches it in full.
    """
    if len(text) > MAX_USER_TEXT or "\0" in text or not is_valid_name(text):
        return []
    model: Any = get_user_model()
    name, email = model.USERNAME_FIELD, model.get_email_field_name()
    fields = ["pk", name]
    wanted = Q(**{f"{name}__istartswith" if prefix else name: text})
    if (prefix or "@" in text) and email in {field.name for field in model._meta.get_fields()}:
        fields.append(email)
        wanted |= Q(**{f"{email}__{'istartswith' if prefix else 'iexact'}": text})
    key = parse_user_key(text)
    if key is not None:
        wanted |= Q(pk=key)
    users = list(_all_users().filter(wanted).order_by()[:MAX_USERS])
    exact = [user for user in users if text.lower() in {str(getattr(user, field)).lower() for field in fields}]
    return exact or users


def user_of(subject: str) -> Any:
    """Return the user that a subject such as `user:42` stands for; None if there is none."""
    key = parse_user_key(_user_key_of(subject) or "")
    return None if key is None else _all_users().filter(pk=key).first()


def user_names(subjects: Iterable[str]) -> dict[str, str]:
    """Return the names of the users among these subjects, by subject. It takes at most one query."""
    texts = filter(None, map(_user_key_of, subjects))
    keys = {key for text in texts if (key := parse_user_key(text)) is not None}
    users = _all_users().filter(pk__in=keys) if keys else ()
    return {user_subject(user): user.get_username() for user in users}


def parse_user_key(text: str) -> Any:
    """Return a text as a primary key of the user model; None if it cannot be one."""
    if "\0" in text or not is_valid_name(text):
        return None
    model: Any = get_user_model()
    try:
        key = model._meta.pk.to_python(text)
        model._meta.pk.run_validators(key)
    except (ValidationError, ValueError, TypeError, OverflowError):
        return None
    return key


def _user_key_of(subject: str) -> str | None:
    """Return the text of the key in `user:<key>`; None for any other subject."""
    kind, colon, key = subject.partition(":")
    return unquote(key) if kind == "user" and colon and "+" not in key else None


def _all_users() -> Any:
    """Return all users of the database that is written to, where a new user is found at once."""
    model: Any = get_user_model()
    return model._default_manager.using(router.db_for_write(model))


# --- names in daily counters ------------------------------------------------------------------------------------------

_BYTE_ORDER = frozenset({"sqlite", "postgresql"})
"""Databases that compare subjects and rules byte by byte, so that one range of an index holds a common prefix."""

_LAST_CHARACTER = "\U0010ffff"


def starts_with(field: str, text: str, using: str | None = None) -> Q:
    """Return the condition that a field begins with a text, as a range of an index where the database has one."""
    if connections[using or router.db_for_read(DailyCounter)].vendor not in _BYTE_ORDER:
        return Q(**{f"{field}__startswith": text})
    return Q(**{f"{field}__gte": text, f"{field}__lte": f"{text}{_LAST_CHARACTER}"})


def distinct_names(field: str, prefix: str = "", limit: int = MAX_NAMES, model: Any = DailyCounter) -> list[str]:
    """Return the first `limit` different values of a field (`"subject"` or `"rule"`) that begin with `prefix`, sorted.

    SELECT DISTINCT would read all rows, and a loop would take a query for each value. This query jumps through the
    index from one value to the next.
    """
    alias = router.db_for_read(model)
    rows, begins = model.objects.using(alias).order_by(field).values(field), starts_with(field, prefix, alias)
    # In this order: SQLite starts at the first condition.
    after = rows.filter(**{f"{field}__gt": RawSQL("names.name", ())}).filter(begins)
    (first, of_first), (following, of_following) = (
        some[:1].query.get_compiler(alias).as_sql() for some in (rows.filter(begins), after)
    )
    sql = (
        f"WITH RECURSIVE names (name, place) AS (SELECT ({first}), 1 UNION ALL "  # noqa: S608 — the values are apart
        f"SELECT ({following}), place + 1 FROM names WHERE name IS NOT NULL AND place < %s) "
        "SELECT name FROM names WHERE name IS NOT NULL"
    )
    with connections[alias].cursor() as cursor:
        cursor.execute(sql, [*of_first, *of_following, limit])
        return [name for (name,) in cursor.fetchall()]
