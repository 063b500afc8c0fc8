"""Names: the subjects and rules that daily counters have, and the users behind them; found with a bounded effort.

What is asked of a million rows here jumps through an index from one name to the next: it costs by the names that are
found, not by the rows. It must not know the pages that it serves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.contrib.auth import get_permission_codename, get_user_model
from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.db import connections, router
from django.db.models import Q
from django.http import HttpRequest

from django_quota.models import DailyCounter
from django_quota.subjects import user_subject

MOST_NAMES = 100
"""Names that are looked for, unless told otherwise."""

MOST_SUBJECTS = 20
"""Subjects that a text is taken for the beginning of at most."""

MOST_RULES = 10
"""Rules that it is taken for the beginning of at most."""

MOST_USERS = 20
"""Users that a text is taken for at most."""

BYTE_BY_BYTE = frozenset({"sqlite", "postgresql"})
"""Databases that compare our names by their bytes, so that all that begin alike are one range of an index."""


def beginning(field: str, text: str, using: str | None = None) -> Q:
    """Return the condition that a name begins with a text; one that an index serves where the database can."""
    if not text:
        return Q()
    if connections[using or router.db_for_read(DailyCounter)].vendor not in BYTE_BY_BYTE:
        return Q(**{f"{field}__startswith": text})
    beyond = _beyond(text)
    return Q(**{f"{field}__gte": text}, **({f"{field}__lt": beyond} if beyond else {}))


def _beyond(text: str) -> str:
    """Return the first text, in the order of code points, that comes after all that begin with this one."""
    for end in range(len(text), 0, -1):
        following = ord(text[end - 1]) + 1
        if following == 0xD800:  # noqa: PLR2004 — surrogates are no characters of a database
            following = 0xE000
        if following < 0x110000:  # noqa: PLR2004 — the end of Unicode
            return text[: end - 1] + chr(following)
    return ""


def distinct(
    field: str, begins: str = "", most: int = MOST_NAMES, using: str | None = None, model: Any = DailyCounter
) -> list[str]:
    """Return the first `most` different names in a field (`"subject"` or `"rule"`) of all rows, in order.

    `begins`: only those that begin with this. It takes one query, which reads one entry of an index for each name.
    """
    alias = using or router.db_for_read(model)
    connection = connections[alias]
    query = model.objects.using(alias).filter(beginning(field, begins, alias)).order_by(field).values(field).query
    compiler = query.get_compiler(alias)
    first, parameters = compiler.as_sql()
    condition, more = compiler.compile(query.where) if query.where else ("1 = 1", ())
    table = connection.ops.quote_name(_opts(model).db_table)
    column = connection.ops.quote_name(field)
    sql = (
        f"WITH RECURSIVE names (name, place) AS (SELECT ({first} LIMIT 1), 1 UNION ALL "  # noqa: S608 — values are apart
        f"SELECT (SELECT {column} FROM {table} WHERE {column} > names.name AND {condition} ORDER BY {column} LIMIT 1), "
        "place + 1 FROM names WHERE name IS NOT NULL AND place < %s) "
        "SELECT name FROM names WHERE name IS NOT NULL"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, [*parameters, *more, most])
        return [name for (name,) in cursor.fetchall()]


@dataclass(frozen=True, slots=True)
class Meant:
    """The names that a text means."""

    condition: Q
    """On rows: that they have one of these."""
    subjects: tuple[str, ...] = ()
    """The subjects, where it means any."""


def look_up(text: str, with_users: bool) -> Meant:
    """Find what a text means: a rule's full name; or users, and subjects that begin so; or else rules that do.

    Names are looked up first, so many at most: so their rows are few, or all of one rule, in the order of its index.
    """
    if not text or "\0" in text:  # which PostgreSQL takes in no text, and Django's search form refuses
        return Meant(Q())
    rules = distinct("rule", text, MOST_RULES)
    if rules[:1] == [text]:
        return Meant(Q(rule=text))
    users = users_called(text) if with_users else []
    subjects = (*distinct("subject", text, MOST_SUBJECTS), *map(user_subject, users))
    return Meant(Q(subject__in=subjects), subjects) if subjects else Meant(Q(rule__in=rules))


# --- users ------------------------------------------------------------------------------------------------------------


def may_see(request: HttpRequest, model: Any) -> bool:
    """Say whether who asks may see the rows of a model; who may change them may, as in Django's admin."""
    opts, user = _opts(model), request.user
    return any(user.has_perm(f"{opts.app_label}.{get_permission_codename(verb, opts)}") for verb in ("view", "change"))


def may_see_users(request: HttpRequest) -> bool:
    """Say whether who asks may see users: nobody else is told their names."""
    return may_see(request, get_user_model())


def users_called(text: str, most: int = MOST_USERS) -> list[Any]:
    """Return the users who are meant by a text: by primary key, or by how a user name or an e-mail address begins.

    Those whom it names in full go before, and alone.
    """
    model = get_user_model()
    fields = _name_fields(model)
    wanted = Q()
    for field in fields:
        wanted |= Q(**{f"{field}__istartswith": text})
    pk = user_key(model, text)
    if pk is not None:
        wanted |= Q(pk=pk)
    users = list(_all(model).filter(wanted).order_by()[:most]) if text else []
    exact = [
        user
        for user in users
        if str(user.pk) == text or any(str(getattr(user, field)).lower() == text.lower() for field in fields)
    ]
    return exact or users


def user_names(subjects: Iterable[str]) -> dict[str, str]:
    """Return the names of the users among these subjects, by subject, in one query or none."""
    model = get_user_model()
    keys = {
        key
        for subject in subjects
        if (text := DailyCounter(subject=subject).user_pk) is not None and (key := user_key(model, text)) is not None
    }
    if not keys:
        return {}
    return {user_subject(user): user.get_username() for user in _all(model).filter(pk__in=keys)}


def _name_fields(model: Any) -> list[str]:
    return [name for name in (model.USERNAME_FIELD, model.get_email_field_name()) if _has_field(model, name)]


def _has_field(model: Any, name: str) -> bool:
    try:
        _opts(model).get_field(name)
    except FieldDoesNotExist:
        return False
    return True


def user_key(model: Any, text: str) -> Any:
    """Return a primary key as the model has it; None where the text is none, or more than a database holds."""
    field = _opts(model).pk
    try:
        key = field.to_python(text)
        field.run_validators(key)
    except (ValidationError, ValueError, TypeError, OverflowError):
        return None
    return key


def _opts(model: Any) -> Any:
    return model._meta


def _all(model: Any) -> Any:
    return model._default_manager
