"""Finds users, subjects and rules by what an operator types, and says what was probably meant.

Unknown subjects and rules are not errors: a call may use any of them. If the input has a plain value, as in
`post:phone=+1555`, only the digest of the value is used. Never log or show such input.
"""

from __future__ import annotations

import re
import reprlib
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote, unquote_to_bytes

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import router
from django.db.models import CharField, Q, TextField
from django.utils.encoding import repercent_broken_unicode
from django.utils.translation import gettext as _

from django_quota.conf import current, rule_of
from django_quota.core.errors import RuleError, nearest
from django_quota.core.keys import is_digest
from django_quota.core.overrides import ALL_RULES, EVERYBODY
from django_quota.core.rule_options import network_of
from django_quota.core.rules import dotted_path, is_valid_name
from django_quota.limiting.known_rules import known_keys, known_rules, known_sizes
from django_quota.subjects.addresses import address_of, is_address, is_network, own_prefixes
from django_quota.subjects.subject import (
    LOGIN,
    escape_value,
    is_bare,
    login_subject,
    named_subject,
    override_subject,
    parts_of,
    session_subject,
    unescaped,
    user_subject,
    value_subject,
)

MAX_USERS = 20
"""How many users one string may match."""

MAX_LOGIN_USERS = 5_000
"""How many users, the newest first, have their names compared with the digest of a failed login."""

MAX_USER_TEXT = 320
"""Characters of the longest string that is looked up as a user's name, e-mail address or key."""

# --- what the input means ---------------------------------------------------------------------------------------------

_VALUE = re.compile(r"(?:(header|cookie|kwarg|get|post|json|login):([^=]+)|session)=(.*)", re.DOTALL)


def parse_subject_input(text: str) -> str:
    """Return the subject that the input means.

    The input is a subject, or what people write instead: `203.0.113.9` for `ip:203.0.113.9`, `post:phone=+1555` for
    the digest of that value, `login:username=ann` for the failed logins of a user name, and any path. A plus sign joins
    the parts of a subject: `ip:203.0.113.9+post:username=ann`.

    Raises `RuleError` for a string that cannot be a subject, and for a network, which only an override may be about.
    """
    if hint := network_hint(text):
        raise RuleError(hint)
    return named_subject("+".join(_parse_part(part) for part in parts_of(text)))


def parse_override_input(text: str) -> str:
    """Return the subject of an override that the input means: a subject, a network, a kind, or everybody.

    The input is `198.51.100.0/24` or `ip:198.51.100.0/24`, `user:*`, `*`, or anything that `parse_subject_input`
    accepts. Raises `RuleError` for any other string.
    """
    if text.endswith(":*") and "=" not in text:
        return override_subject(text)
    is_of_addresses = is_network(text.removeprefix("ip:")) and "+" not in text
    return override_subject(f"ip:{text.removeprefix('ip:')}") if is_of_addresses else parse_subject_input(text)


def named_override_subject(text: str, *, with_users: bool) -> tuple[str, int]:
    """Return the subject of an override that the input means, and how many users have this name.

    The name of one user stands for that user. `with_users`: whether to look for users. Raises `RuleError`.
    """
    subject = parse_override_input(text)
    users = find_users(subject) if with_users and is_bare(subject) else []
    return (user_subject(users[0]) if users else subject), len(users)


def parse_rule_input(text: str) -> str:
    """Return the name of the rule that the input means. A rate has one name: `10 per minute` is `10/m`."""
    if text not in known_rules():
        with suppress(RuleError):
            return rule_of(text, {}).name
    return text


def _parse_part(part: str) -> str:
    if is_address(part):
        return f"ip:{part}"
    if value := _VALUE.fullmatch(part):
        kind, name, text = value.groups()
        return _subject_of_value(kind or "session", name or "", text)
    kind, colon, path = part.partition(":")
    if kind != "path" or not colon or is_digest(path) or unescaped(path) is not None:
        return part
    raw = unquote_to_bytes(path.encode(errors="surrogatepass"))
    return f"path:{escape_value(repercent_broken_unicode(raw).decode())}"  # as Django decodes a path


def _subject_of_value(kind: str, name: str, value: str) -> str:
    """Return the subject of a request with this value, with the escapes and digests of real requests."""
    if not value.strip():
        raise RuleError(_("The value after the equals sign is missing."))
    if kind == "session":
        return session_subject(value)
    if kind != "login":
        return value_subject(kind, name.strip(), value)
    if name.strip() != "username":
        raise RuleError(_('Write "login:username=<name>".'))
    return login_subject(value)


class SubjectMatch(NamedTuple):
    """A subject that the input may mean."""

    subject: str
    user: Any = None
    is_guess: bool = False
    """Whether nothing was found, so that the input itself is taken as the subject."""


def find_subjects(text: str, *, with_users: bool) -> list[SubjectMatch]:
    """Return the subject that a string means, or several users to choose from.

    `with_users`: whether to look for users by their key, their names or e-mail address, or how these begin. Pass False
    for people who may not see users. Raises `RuleError` for a string that cannot be a subject.
    """
    text = text.strip()
    if not text:
        raise RuleError(_("Type a user, an address or a subject."))
    if is_address(text) or not is_bare(text):
        return [SubjectMatch(parse_subject_input(text))]
    found = [SubjectMatch(user_subject(user), user) for user in find_users(text, prefix=True)] if with_users else []
    return found or [SubjectMatch(named_subject(text), is_guess=True)]


def subjects_meant(text: str) -> set[str]:
    """Return the subjects that a string may mean: of the users with this key, name or e-mail address, or as written.

    What `RELATED` says of these users is among them. Raises `RuleError` for a string that cannot be a subject.
    """
    text = text.strip()
    if is_address(text) or not is_bare(text):
        return {parse_subject_input(text)}
    users = find_users(text)
    found = {user_subject(user) for user in users}.union(*map(related_subjects, users))
    return found | {login_subject(text), named_subject(text)}


# --- hints ------------------------------------------------------------------------------------------------------------


def subject_hint(subject: str, *, with_users: bool = True) -> str:
    """Return why no request has this subject, and what to write instead; empty if nothing is wrong.

    `with_users`: whether to look for users by name. Turn it off for people who may not see users.
    """
    words = {"subject": subject}
    if network := network_hint(subject):
        return network
    users = find_users(subject, prefix=True) if with_users and is_bare(subject) else []
    if len(users) == 1 and subject.lower() in _names_of(users[0]):
        words["meant"] = user_subject(users[0])
        return _('No request has the subject "%(subject)s". The user with this name is "%(meant)s".') % words
    if is_bare(subject):
        nobody = _("Nobody's name or e-mail begins with '%(subject)s'.") if with_users and not users else ""
        of_a_call = _(
            'No request has the subject "%(subject)s". Use, for example, user:<key>, ip:<address> or global. It works '
            "only where your code passes this subject itself."
        )  # fmt: skip
        return f"{nobody} {of_a_call}".strip() % words
    key = _user_key_of(subject) if with_users else None
    if key is None or user_of(subject) is not None:
        return ""
    words, users = {"key": key}, find_users(key)
    if len(users) == 1:
        words["meant"] = user_subject(users[0])
        return _('There is no user with the key "%(key)s". The user with this name is "%(meant)s".') % words
    return _('There is no user with the key "%(key)s".') % words


def network_hint(text: str) -> str:
    """Return why a network is not a subject; empty for other strings, and for networks that clients count by."""
    bare = text.removeprefix("ip:")
    if not is_network(bare) or "+" in text:
        return ""
    with suppress(ValueError):
        network = network_of(bare, strict=False)
        if (network.version, network.prefixlen) in known_sizes():
            return ""
    return _(
        'No request has the subject "%(subject)s": it is a network. Use one address. IPv6 addresses '
        "count by their /%(bits)d."
    ) % {"subject": text, "bits": own_prefixes()[1]}  # fmt: skip


def smaller_hint(text: str, sizes: Collection[tuple[int, int]]) -> str:
    """Return that a network is smaller than those that clients count by; empty for other strings.

    `sizes`: see `known_sizes`.
    """
    try:
        network = network_of(text.removeprefix("ip:"), strict=False)
    except ValueError:
        return ""
    bits = max(bits for version, bits in sizes if version == network.version)
    if network.prefixlen <= bits:
        return ""
    words = {"text": repr(text), "own": bits, "network": network.supernet(new_prefix=bits)}
    texts = (
        _("%(text)s is smaller than a /%(own)d, and all addresses of a /%(own)d count as one client."),
        _("Use 'ip:%(network)s'."),
    )
    return " ".join(each % words for each in texts)


def rule_hint(rule: str) -> str:
    """Return that neither the settings nor the views have this rule, and a similar one; empty if they have it."""
    known = known_rules()
    if rule == ALL_RULES or rule in known:
        return ""
    words = {"rule": rule, "near": nearest(rule, known)}
    if words["near"]:
        return _('"%(rule)s" is not a rule of the settings or the views. Did you mean "%(near)s"?') % words
    return _('"%(rule)s" is not a rule of the settings or the views.') % words


def override_problems(rule: str, subject: str, *, with_users: bool = True) -> list[str]:
    """Return why an override may have no effect: no request has its subject (under this rule), or the rule is unknown.

    `subject` is as `override_subject` returns it. `with_users`: whether to look for users; turn it off for people who
    may not see users.
    """
    from django_quota.operating.who_counts import who_counts  # noqa: PLC0415 — no page is needed to start

    problems = [
        smaller_hint(subject, known_sizes()) if is_group(subject) else subject_hint(subject, with_users=with_users)
    ]
    if not _is_rate(rule):
        problems.append(rule_hint(rule))
    if rule in known_keys() and not (counts := who_counts()).can_count(rule, subject, is_group=True):
        words = {"subject": subject, "rule": rule, "meant": counts.key_of(rule)}
        problems.append(
            _('No request has the subject "%(subject)s" under the rule "%(rule)s", which limits "%(meant)s".') % words
        )
        problems.append(counts.look_of(rule))
    return [problem for problem in problems if problem]


def _is_rate(name: str) -> bool:
    """Return whether a name is a rate, which a call in your code may use as its rule."""
    try:
        return rule_of(name, {}).name == name
    except RuleError:
        return False


def is_group(subject: str) -> bool:
    """Return whether the subject of an override stands for several: everybody, a kind, or a network."""
    is_of_addresses = subject.startswith("ip:") and "/" in subject and "+" not in subject
    return subject == EVERYBODY or subject.endswith(":*") or (is_of_addresses and address_of(subject) is None)


def has_page(subject: str) -> bool:
    """Return whether the subject of an override is one that requests may have, not only a group of them."""
    return not is_group(subject) or (is_network(subject.removeprefix("ip:")) and not network_hint(subject))


# --- users ------------------------------------------------------------------------------------------------------------


def find_users(text: str, *, prefix: bool = False) -> list[Any]:
    """Return at most `MAX_USERS` users who have a string as key, name or e-mail address, in one query.

    `prefix`: if no user matches it in full, those whose name or e-mail address begins with it, or whose first or last
    name does, or both, as in `Ann Lee`.
    """
    if len(text) > MAX_USER_TEXT or "\0" in text or not is_valid_name(text):
        return []
    model: Any = get_user_model()
    name, email = model.USERNAME_FIELD, model.get_email_field_name()
    is_text = isinstance(model._meta.get_field(name), (CharField, TextField))
    names = [text] if is_text else _values_of(name, text)
    wanted = Q(**{f"{name}__istartswith": text}) if prefix else Q(**{f"{name}__in": names})
    fields = {field.name for field in model._meta.get_fields()}
    if (prefix or "@" in text) and email in fields:
        wanted |= Q(**{f"{email}__{'istartswith' if prefix else 'iexact'}": text})
    if prefix and {"first_name", "last_name"} <= fields:
        first, _space, last = text.partition(" ")
        wanted |= Q(first_name__istartswith=text) | Q(last_name__istartswith=text)
        wanted |= Q(first_name__istartswith=first, last_name__istartswith=last.strip()) if last.strip() else Q()
    wanted |= Q(pk__in=_values_of(model._meta.pk.name, text))
    users = list(_all_users().filter(wanted).order_by()[:MAX_USERS])
    return [user for user in users if text.lower() in _names_of(user)] or users


def _names_of(user: Any) -> set[str]:
    """Return what may be typed for a user, in lower case: key, name and e-mail address."""
    fields = ("pk", type(user).USERNAME_FIELD, type(user).get_email_field_name())
    return {str(getattr(user, field, "")).lower() for field in fields}


def user_of(subject: str) -> Any:
    """Return the user that a subject such as `user:42` stands for; None if there is none."""
    key = parse_user_key(_user_key_of(subject) or "")
    return None if key is None else _all_users().filter(pk=key).first()


def user_names(subjects: Iterable[str]) -> dict[str, str]:
    """Return the names of the users among these subjects, by subject. It takes at most one query."""
    texts = filter(None, map(_user_key_of, subjects))
    keys = {key for text in texts if (key := parse_user_key(text)) is not None}
    users = _all_users().filter(pk__in=keys) if keys else ()  # a site may have no users
    return {user_subject(user): str(user.get_username()) for user in users}


def login_names(users: Iterable[Any]) -> dict[str, str]:
    """Return what these users may type to log in, name and e-mail address, by the subject of its failed logins."""
    model: Any = get_user_model()
    fields = (model.USERNAME_FIELD, model.get_email_field_name())
    names = [str(getattr(user, field, None) or "") for user in users for field in reversed(fields)]
    return {login_subject(name): name for name in names if name.strip()}


def login_names_among(subjects: Iterable[str], users: Iterable[Any]) -> dict[str, str]:
    """Return the names behind the digests of failed logins in these subjects: of these users, or else of the newest.

    A name cannot be read from a digest, so the names of the newest `MAX_LOGIN_USERS` users are digested and compared.
    """
    names = login_names(users)
    digests = {part for subject in subjects for part in parts_of(subject) if part.startswith(LOGIN)}
    if digests - names.keys():
        names |= _newest_login_names(int(time.monotonic() // 60))
    return {part: names[part] for part in digests & names.keys()}


@lru_cache(maxsize=1)
def _newest_login_names(_minute: int) -> dict[str, str]:
    """Return the names of the newest users by subject, read once a minute: an open overview reloads often."""
    return login_names(_all_users().order_by("-pk")[:MAX_LOGIN_USERS])


def parse_user_key(text: str) -> Any:
    """Return a string as a primary key of the user model; None if it cannot be one."""
    model: Any = get_user_model()
    return next(iter(_values_of(model._meta.pk.name, text)), None)


def _values_of(field: str, text: str) -> list[Any]:
    """Return a string as a value of a field of the user model, in a list; an empty list if it cannot be one."""
    if "\0" in text or not is_valid_name(text):
        return []
    found: Any = get_user_model()._meta.get_field(field)
    try:
        value = found.to_python(text)
        found.run_validators(value)
    except (ValidationError, ValueError, TypeError, ArithmeticError):
        return []
    return [value]


def _user_key_of(subject: str) -> str | None:
    """Return the key in `user:<key>` as a string; None for any other subject, and for a key that is a digest."""
    kind, colon, key = subject.partition(":")
    return unquote(key) if kind == "user" and colon and len(parts_of(subject)) == 1 and not is_digest(key) else None


def _all_users() -> Any:
    """Return all users, from the database for writes: a replica may not have a new user yet."""
    model: Any = get_user_model()
    return model._default_manager.using(router.db_for_write(model))


# --- the subjects that count beside another one -----------------------------------------------------------------------


MAX_RELATED = 10
"""How many subjects of a user are read."""


def networks_around(subject: str) -> list[str]:
    """Return the networks by which known rules count an address, such as `ip:203.0.113.0/24`; the smallest first."""
    if not subject.startswith("ip:"):
        return []
    try:
        own: Any = network_of(subject.removeprefix("ip:"))
    except ValueError:  # of several parts
        return []
    sizes = sorted((bits for version, bits in known_sizes() if version == own.version), reverse=True)
    return [named_subject(f"ip:{own.supernet(new_prefix=bits)}") for bits in sizes if bits < own.prefixlen]


def related_subjects(user: Any) -> list[str]:
    """Return the subjects that count for a user besides their own, at most `MAX_RELATED`; empty without `RELATED`.

    Raises `RuleError` if the function of the site fails, or if a result is not a subject.
    """
    function = current().related
    if function is None:
        return []
    whose = f'{dotted_path(function)}, QUOTA["RELATED"],'
    try:
        given: list[Any] = list(function(user))
    except Exception as error:  # of the site
        said = str(error).rstrip(".")
        problem = f"{whose} raised {type(error).__name__} for {user_subject(user)}{said and f': {said}'}."
        raise RuleError(problem, "Return a list of subjects, such as [Subject('org', 7)].") from error
    wrong = next((each for each in given if not isinstance(each, str)), None)
    if wrong is not None:
        problem = f"{whose} returned {reprlib.repr(wrong)} for {user_subject(user)}."
        raise RuleError(problem, "Return subjects: Subject('org', 7), or 'org:7'.")
    found = dict.fromkeys(map(named_subject, given))
    return [each for each in found if each != user_subject(user)][:MAX_RELATED]
