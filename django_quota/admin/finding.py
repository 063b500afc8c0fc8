"""From what an operator types to a subject: a user's name, e-mail or key, an address, a value, or a subject itself.

It must not know the page that asks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from django.http import HttpRequest, QueryDict
from django.http.request import HttpHeaders
from django.utils.translation import gettext as _

from django_quota.exceptions import RuleError
from django_quota.hints import is_address, is_bare, meant_subject, users_by_key, users_called
from django_quota.subjects import answer, named_subject, subject_flow, user_subject

_PLAIN_VALUE = re.compile(r"(header|cookie|get|post):([^=]+)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Found:
    """Whom a text may mean."""

    subject: str
    user: Any = None
    is_guess: bool = False
    """Whether nothing was found, so that the text is taken for a subject."""


def find(text: str, *, with_users: bool) -> list[Found]:
    """Return whom a text means: one, or several users to choose from. Raises `RuleError` where it means nobody.

    `with_users`: whether users are looked up by name. Somebody who may not see users must not learn who there is.
    `post:phone=+1555` is a plain value, whose subject has its digest: the text itself must go nowhere.
    """
    text = text.strip()
    if not text:
        raise RuleError(_("Type a user, an address or a subject."))
    plain = _PLAIN_VALUE.fullmatch(text)
    if plain:
        return [Found(_subject_of_value(*plain.groups()))]
    if is_address(text) or not is_bare(text):
        return [Found(meant_subject(text))]
    found = [Found(user_subject(user), user) for user in users_called(text)] if with_users else []
    return found or [Found(named_subject(text), is_guess=True)]


def user_of(subject: str) -> Any:
    """Return the user whom a subject is; None where there is none."""
    kind, _colon, name = subject.partition(":")
    if kind != "user" or not name or "+" in name:
        return None
    return next(users_by_key(unquote(name)), None)


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
