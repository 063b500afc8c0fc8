"""From what an operator types to a subject: a user's name, e-mail or key, an address, a value, or a subject itself.

It must not know the page that asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from django.utils.translation import gettext as _

from django_quota.exceptions import RuleError
from django_quota.hints import is_address, is_bare, meant_subject, users_by_key, users_called
from django_quota.subjects import named_subject, user_subject


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
    A text such as `post:phone=+1555` holds a plain value, whose subject has its digest: the text must go nowhere.
    """
    text = text.strip()
    if not text:
        raise RuleError(_("Type a user, an address or a subject."))
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
