"""From what an operator types to a subject: a user's name, e-mail or key, an address, a value, or a subject itself.

It must not know the page that asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from django.contrib.auth import get_user_model
from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.http import HttpRequest, QueryDict
from django.http.request import HttpHeaders
from django.utils.translation import gettext as _

from django_quota.addresses import FULL_IPV6, canonical
from django_quota.exceptions import RuleError
from django_quota.subjects import GLOBAL, answer, named_subject, subject_flow, user_subject

MOST_USERS = 20
"""Users that a choice shows."""

LONGEST_NAME = 320
"""Characters above which a text is no user's name, e-mail or key."""

_PLAIN_VALUE = re.compile(r"(header|cookie|get|post):([^=]+)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Found:
    """Whom a text may mean."""

    subject: str
    user: Any = None
    is_guess: bool = False
    """Whether nothing was found, so that the text is taken for a subject."""


def find(text: str) -> list[Found]:
    """Return whom a text means: one, or several users to choose from. Raises `RuleError` where it means nobody.

    `post:phone=+1555` is a plain value, whose subject has its digest: the text itself must go nowhere.
    """
    text = text.strip()
    if not text:
        raise RuleError(_("Type a user, an address or a subject."))
    plain = _PLAIN_VALUE.fullmatch(text)
    if plain:
        return [Found(_subject_of_value(*plain.groups()))]
    if canonical(text.partition("/")[0], FULL_IPV6) is not None:
        return [Found(named_subject(f"ip:{text}"))]
    if ":" in text or text == GLOBAL:
        return [Found(named_subject(text))]
    users = {user.pk: user for user in _users(text)} if len(text) <= LONGEST_NAME and "\0" not in text else {}
    found = [Found(user_subject(user), user) for user in users.values()]
    return found or [Found(named_subject(text), is_guess=True)]


def user_of(subject: str) -> Any:
    """Return the user whom a subject is; None where there is none."""
    kind, _colon, name = subject.partition(":")
    if kind != "user" or not name or "+" in name:
        return None
    return next(_by_key(unquote(name)), None)


def _subject_of_value(kind: str, name: str, value: str) -> str:
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


def _users(text: str) -> Iterator[Any]:
    """Find the users whom a text means: each way of asking is one query, on an index where there is one."""
    model: Any = get_user_model()
    users = model._default_manager
    yield from users.filter(**{model.USERNAME_FIELD: text})[:MOST_USERS]
    yield from _by_key(text)
    if "@" in text and _has_field(model, model.get_email_field_name()):
        yield from users.filter(**{f"{model.get_email_field_name()}__iexact": text})[:MOST_USERS]


def _by_key(text: str) -> Iterator[Any]:
    model: Any = get_user_model()
    try:
        key = model._meta.pk.to_python(text)
        yield from model._default_manager.filter(pk=key)[:1]
    except (ValidationError, ValueError, OverflowError):  # no key, or none that the database could hold
        return


def _has_field(model: Any, name: str) -> bool:
    try:
        model._meta.get_field(name)
    except FieldDoesNotExist:
        return False
    return True
