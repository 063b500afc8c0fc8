"""Subjects: strings that name who is limited, such as `ip:203.0.113.9` or `user:42`, in one canonical form."""

from __future__ import annotations

import hashlib
import re
import reprlib
import unicodedata
from contextlib import suppress
from functools import lru_cache
from typing import Any, cast
from urllib.parse import unquote
from uuid import UUID

from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.utils.encoding import force_bytes

from django_quota.conf import QuotaSettings, current
from django_quota.core.errors import RuleError, Translatable
from django_quota.core.keys import MAX_PART, is_digest
from django_quota.core.overrides import EVERYBODY
from django_quota.subjects.addresses import canonical_network, canonical_part, own_prefixes

GLOBAL = "global"


class Subject(str):
    """A subject that your code names: `Subject("org", 7)` is `org:7`, in calls, in tasks, in counters and on views.

    Return a Subject from a key function if a call or another view counts for the same subject. A plain string from a
    key function counts under the name of the function. So no client can choose another's subject: make a Subject only
    of what your code has checked.

    `kind`: a word in lower case, 50 characters at most, but none that a key uses, such as `header` and `path`. `value`:
    a string, a whole number or a UUID that does not change, such as a primary key. `Subject("user", 7)` is the user
    with this key. Raises `RuleError` for any other kind or value.
    """

    __slots__ = ()

    def __new__(cls, kind: str, value: str | int | UUID) -> Subject:
        """Make a subject. Raises `RuleError` for a wrong kind or value."""
        if not isinstance(cast("object", kind), str) or not _KIND.fullmatch(kind) or kind in _OF_CLIENTS:
            raise RuleError(f"{reprlib.repr(kind)} is not a kind of subject.", "Use a word of your own, such as 'org'.")
        text = _as_string(value)
        if not text:
            raise RuleError(
                f"{reprlib.repr(value)} is not a value of a subject.",
                f"Use a string, a whole number or a UUID, such as the primary key: Subject({kind!r}, 7).",
            )
        return super().__new__(cls, named_subject(f"{kind}:{escape_value(text)}"))

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


def _as_string(value: object) -> str:
    """Return a subject's value as a string, of an enumeration member its value; empty if it has a wrong type."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__repr__(value)
    return str(value) if isinstance(value, UUID) else ""


_KIND = re.compile("[a-z][a-z0-9_-]{0,49}")

_OF_CLIENTS = frozenset({"cookie", "get", "header", "json", "kwarg", "path", "post", "session"}) | {
    "global", "key", "login", "ratelimit", "throttle",
}  # fmt: skip
"""Kinds whose subjects only keys make, in a form of their own."""


def normalized(value: str) -> str:
    """Return the same string for all that a database may treat as equal if it ignores case, as `iexact` does.

    Whitespace around it, case, invisible characters and the form in Unicode (NFKC) do not matter; accents do. Some
    databases compare in upper case, others in lower case, so both must agree: "\u0131" is "i", and "\u017f" is "s".
    """
    value = value.strip()
    if len(value) > MAX_FOLDED:
        return value
    if value.isascii() and value.isprintable():
        return value.lower()
    folded = unicodedata.normalize("NFKD", value).upper().casefold()
    folded = _UNPRINTABLE.sub("", folded).replace("i\u0307", "i")  # "\u0130" is the Turkish capital of "i"
    return unicodedata.normalize("NFKC", folded).strip() or value


MAX_FOLDED = 1_000
"""A field with more characters is not normalized, because that takes long. No name is that long."""


def session_subject(session_key: str) -> str:
    """Return the subject of a session: a digest of its key, which is a secret."""
    return f"session:{digest(session_key)}"


def escape_value(value: str) -> str:
    """Escape the plus sign, which joins parts, the percent sign, and characters that are not visible.

    If the result is longer than 200 characters, a digest replaces it. It is keyed, so a client that knows the
    value cannot send its digest instead. A client may choose the value, so a long one is not read by character.
    """
    if len(value) > MAX_PART or is_digest(value):
        return _digest_of_long(value)
    if not _UNSAFE.search(value):
        return value
    escaped = value.translate(_escapes("%+"))
    return escaped if len(escaped) <= MAX_PART else _digest_of_long(value)


def unescaped(value: str) -> str | None:
    """Return the value that `escape_value` made this from; None if it cannot have made it, or made a digest."""
    with suppress(UnicodeDecodeError):
        found = unquote(value, errors="surrogatepass")
        return found if escape_value(found) == value else None
    return None


def _named_value(text: str) -> str:
    """Return the value of a subject that a person typed: escaped, unless it is escaped already."""
    is_named = len(text) <= MAX_PART and (not _UNSAFE.search(text) or unescaped(text) is not None)
    return text if is_named else escape_value(text)


def _digest_of_long(value: str) -> str:
    return f"~{_keyed(value, 32)}"


_INVISIBLE = (
    "\0-\x1f\x7f-\x9f\u2028-\u2029"  # they end a line or control a terminal
    "\xad-\xad\u061c-\u061c\u180e-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"  # invisible
    "\ufeff-\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible, too
    "\ud800-\udfff"  # surrogates from JSON, which no page and no database accepts
)  # with them, two subjects could look the same, or break whatever shows them

_UNSAFE = re.compile(f"[%+{_INVISIBLE}]")

_UNPRINTABLE = re.compile(f"[{_INVISIBLE}]")


@lru_cache(maxsize=2)
def _escapes(others: str) -> dict[int, str]:
    """Return the escape of each invisible character, and of these others, for `str.translate`."""
    spans = zip(_INVISIBLE[::3], _INVISIBLE[2::3], strict=True)
    codes = [*map(ord, others), *(code for first, last in spans for code in range(ord(first), ord(last) + 1))]
    return {code: "".join(f"%{byte:02X}" for byte in chr(code).encode(errors="surrogatepass")) for code in codes}


def value_subject(kind: str, name: str, value: str) -> str:
    """Return the subject of a request with this value of a header, a cookie, an argument of the URL or a field."""
    if kind == "kwarg":
        return f"kwarg.{escape_value(name)}:{escape_value(value)}"
    name = name.lower() if kind == "header" else name
    return f"{kind}.{escape_value(name)}:{digest(value if kind in ('header', 'cookie') else normalized(value))}"


def digest(value: str | bytes) -> str:
    """Return the keyed digest of a value: 32 hexadecimal digits."""
    return _keyed(value, 16)


def _keyed(value: str | bytes, size: int) -> str:
    data = value.encode(errors="surrogatepass") if isinstance(value, str) else value
    return hashlib.blake2b(data, key=_digest_key(current().digest_key), digest_size=size).hexdigest()


@lru_cache(maxsize=4)
def _digest_key(secret: str | bytes) -> bytes:
    return hashlib.sha256(b"django_quota.subjects" + force_bytes(secret)).digest()


def is_user(value: object) -> bool:
    """Return whether a value looks like a user, anonymous or not: it has `is_authenticated` and `pk`."""
    return hasattr(value, "is_authenticated") and hasattr(value, "pk")


def login_name(name: object) -> str:
    """Return a user name as the user model reads it: where names are numbers, 0042 is 42. Empty if there is none."""
    if name is None:
        return ""
    try:
        model: Any = get_user_model()
        return str(model._meta.get_field(model.USERNAME_FIELD).to_python(name))
    except (ValidationError, ValueError, TypeError, ArithmeticError, ImproperlyConfigured):  # the last: without users
        return str(name)


def login_subject(name: object) -> str:
    """Return the subject of a user name that was typed to log in: `login.username:<digest>`.

    Names that a database may treat as equal are one subject. Of a name that is too long for any user, only the
    beginning counts. Raises `RuleError` for an empty name.
    """
    found = normalized(login_name(name).strip()[:MAX_FOLDED])
    if not found:
        raise RuleError(Translatable("An empty string is not a user name."))
    return f"{LOGIN}{digest(found)}"


LOGIN = "login.username:"
"""The beginning of the subjects of user names that were typed to log in."""


def user_subject(user: Any) -> str:
    """Return the subject of a user: `user:42`. Raises `RuleError` if the user has no primary key."""
    if user.pk is None:
        raise RuleError(
            f"{user!r} has no primary key. Pass the request, so that an anonymous visitor is limited by IP, "
            "or a subject such as 'ip:203.0.113.9'."
        )
    return f"user:{escape_value(str(user.pk))}"


def named_subject(subject: str) -> str:
    """Return the subject that a string names, in its canonical form: as requests write it. A subject stays as it is.

    Addresses are as `ip_subject` writes them; other values are escaped, unless they are already, and long ones are a
    digest. Raises `RuleError` for an empty string, a kind without a value and a wrong address.
    """
    settings = current()
    # Longer subjects must not fill the cache.
    return _named(subject, settings) if len(subject) <= MAX_PART else _canonical(subject, settings)


def override_subject(text: str) -> str:
    """Return the subject of an override in its canonical form: a subject, a network, a kind of subjects, or everybody.

    Raises `RuleError` for any other string.
    """
    if text == EVERYBODY or (text.endswith(":*") and "+" not in text):
        return text
    kind, _, address = text.partition(":")
    if kind != "ip" or "/" not in address or "+" in address:
        return named_subject(text)
    return f"ip:{canonical_network(address, own_prefixes())}"


MAX_PARTS = 20
"""How many plus signs are split at. No key has more parts, and a client may send thousands of them."""


def parts_of(subject: str) -> list[str]:
    """Return the parts of a subject; only itself if it has one.

    A plus sign joins two parts if the first is an address or a single word, or if the second begins with a kind and a
    colon. Any other plus sign belongs to a value, as in `user:ann+shop@example.org`.
    """
    if "+" not in subject:
        return [subject]
    parts: list[str] = []
    for piece in subject.split("+", MAX_PARTS):
        if parts and _HAS_VALUE.match(parts[-1]) and not _BEGINS_PART.match(piece):
            parts[-1] += f"+{piece}"
        else:
            parts.append(piece)
    return parts


_HAS_VALUE = re.compile("(?!ip:)[^:=]*[:=]")

_BEGINS_PART = re.compile(r"[a-z][a-z0-9_-]{0,49}:|(?:header|cookie|kwarg|get|post|json|login|key)\.|session=|global\Z")


def _canonical(subject: str, settings: QuotaSettings) -> str:
    if not subject:
        raise RuleError(
            Translatable("An empty string is not a subject. Use, for example, 'ip:203.0.113.9', 'user:42' or 'global'.")
        )
    if subject[-1] == ":" and ":" not in subject[:-1]:
        raise RuleError(
            Translatable(
                "%(text)s has no value after the colon: all callers without one would share a limit.",
                text=reprlib.repr(subject),
            ),
            Translatable("Use, for example, 'user:42' or 'ip:203.0.113.9'."),
        )
    if "+" not in subject:
        return _canonical_part(subject, settings)
    return "+".join(_canonical_part(part, settings) for part in parts_of(subject))


def _canonical_part(part: str, settings: QuotaSettings) -> str:
    if part.startswith("ip:"):
        return canonical_part(part, (settings.ipv4_prefix, settings.ipv6_prefix))
    kind, colon, value = part.partition(":")
    if colon:
        value = _named_value(value)
    return f"{kind.translate(_escapes('')) if _UNPRINTABLE.search(kind) else kind}{colon}{value}"


_named = lru_cache(maxsize=8192)(_canonical)


def subject_of(given: object, whose: str) -> str:
    """Return the subject that a string names, or of a user. `whose`: for what, in the error: "a counter".

    Raises `RuleError` if it is neither.
    """
    if isinstance(given, str):
        return named_subject(given)
    if is_user(given):
        return user_subject(given)
    raise RuleError(f"{given!r} is not a subject of {whose}. Use a string such as 'user:42', or a user.")


def is_bare(subject: str) -> bool:
    """Return whether a subject is a single word that no request has: neither `global` nor a kind with a value."""
    return ":" not in subject and subject != GLOBAL
