"""Keys: which subject a request has under a rule. A key is compiled into resolvers when its rule is first used.

A resolver that may have to wait returns a flow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

from asgiref.sync import sync_to_async
from django.contrib.sessions.backends.signed_cookies import SessionStore as SignedCookieSession
from django.core.exceptions import BadRequest
from django.http import HttpRequest
from django.http.request import HttpHeaders
from django.utils.functional import LazyObject

from django_quota.conf import import_function
from django_quota.core.caching import cached
from django_quota.core.errors import RuleError, SubjectKeyError, did_you_mean
from django_quota.core.flow import Flow, IOCall
from django_quota.core.overrides import EVERYBODY
from django_quota.core.rule_options import network_of
from django_quota.core.rules import Rule, dotted_path, is_lambda
from django_quota.subjects.addresses import ip_subject, network_subject, own_prefixes, prefixes_of
from django_quota.subjects.bodies import body_notes, form_of, has_unread_body, json_object_of
from django_quota.subjects.site_functions import call_flow, user_flow
from django_quota.subjects.subject import (
    GLOBAL,
    Subject,
    digest,
    escape_value,
    is_user,
    normalized,
    parts_of,
    session_subject,
    user_subject,
    value_subject,
)

Resolver: TypeAlias = Callable[[HttpRequest], "str | Flow[Any] | None"]
"""Returns a part of a subject; None if the request does not have it."""


def subject_flow(key: object, request: HttpRequest, *, exact: bool = False) -> Flow[Any]:
    """Return the subject of a request for the key of a rule.

    A part that the request does not have falls back to its IP. So a client gains nothing by leaving out a header.
    `exact`: whether the values of fields count exactly as sent; otherwise see `normalized`. Raises
    `ConfigurationError` if there is no address either, and `RuleError` if the key is wrong.
    """
    parts = []
    for resolver in compile_key(key, exact=exact):
        part = resolver(request)
        if part is not None and not isinstance(part, str):
            part = yield from part
        parts.append(ip_subject(request) if part is None else part)
    return parts[0] if len(parts) == 1 else "+".join(parts)


@cached(maxsize=256)
def compile_key(key: object, *, exact: bool = False) -> tuple[Resolver, ...]:
    """Return the resolvers of the parts of a key. Raises `RuleError` if it is wrong."""
    if isinstance(key, str):
        return _compile_text(key, exact=exact)
    if isinstance(key, tuple):
        if not key:
            raise SubjectKeyError("key=() is empty.", "Use, for example, 'ip'.")
        return tuple(resolver for part in key for resolver in compile_key(part, exact=exact))
    if callable(key):
        if is_lambda(key):
            raise SubjectKeyError(
                f"key={dotted_path(key)} is a lambda, which has no name. Its subjects would change when its "
                "line moves, and blocks and bans would be lost.",
                "Write it as a function: def by_tenant(request): ...",
            )
        return (partial(_from_callable, key),)
    raise SubjectKeyError(f"key={key!r} is not a key.", "Use 'ip', 'user', 'header:X-Api-Key' or a function.")


def check_keys(rule: Rule) -> None:
    """Raise `RuleError` if the `key` or the `distinct` of a rule is wrong."""
    compile_key(rule.key)
    if rule.distinct is not None and rule.distinct is not True:
        try:
            compile_key(rule.distinct)
        except SubjectKeyError as error:
            raise SubjectKeyError(f"distinct={rule.distinct!r} is not a key.", error.hint) from None


def _compile_text(key: str, *, exact: bool) -> tuple[Resolver, ...]:
    if key in _PLAIN:
        return (_PLAIN[key],)
    by_network = prefixes_of(key)
    if by_network is not None:
        return (partial(network_subject, by_network),)
    if key.startswith("ip/"):
        raise SubjectKeyError(
            f"key={key!r} is not a key.",
            "Use 'ip/24' for 1 to 32 bits of an IPv4 address, or 'ip/24,48' with 1 to 128 bits of an IPv6 address.",
        )
    kind, colon, name = key.partition(":")
    if kind == "json" and "" in name.strip().split("."):
        raise SubjectKeyError(f"key={key!r} is not a path.", "Use, for example, 'json:phone' or 'json:user.email'.")
    if kind in _FIELDS and name.strip():
        return (partial(_FIELDS[kind], name.strip(), exact),)
    if kind == "header" and name.strip().upper().startswith("HTTP_"):
        raise SubjectKeyError(
            f"key={key!r} names a header as request.META does.",
            f"Write {'header:' + name.strip()[5:].replace('_', '-').title()!r}.",
        )
    if kind in _NAMED and name.strip():
        return (partial(_NAMED[kind], name.strip()),)
    if kind in _EXAMPLES:
        raise SubjectKeyError(
            f"key={key!r} does not say which.", f"Use, for example, {kind + ':' + _EXAMPLES[kind]!r}."
        )
    if not colon and "." in key:
        return (partial(_from_callable, import_function("key", key, SubjectKeyError)),)
    known = [*_PLAIN, "ip/24", *(f"{kind}:{name}" for kind, name in _EXAMPLES.items())]
    raise SubjectKeyError(f"key={key!r} is not a key.", did_you_mean(key, known).strip())


def _user(request: HttpRequest) -> Flow[Any] | str | None:
    user = getattr(request, "user", None)
    return _lazy_user(request) if isinstance(user, LazyObject) else _known_user(user)


def _lazy_user(request: HttpRequest) -> Flow[Any]:
    return _known_user((yield from user_flow(request)))


def _known_user(user: Any) -> str | None:
    if not getattr(user, "is_authenticated", False):
        return None
    if getattr(user, "pk", None) is None:
        raise RuleError(
            f"The request's user is of type {type(user).__name__}, without the primary key that a limit needs.",
            "Give the class a `pk`, or use a function of the request as the key.",
        )
    return user_subject(user)


def _from_header(name: str, request: HttpRequest) -> str | None:
    # `request.headers` would first be built from all headers.
    return _secret("header", name.lower(), request.META.get(_in_meta(name)))


_in_meta = lru_cache(maxsize=256)(HttpHeaders.to_wsgi_name)
"""Returns the name of a header in `request.META`: HTTP_X_API_KEY for X-Api-Key."""


def _from_cookie(name: str, request: HttpRequest) -> str | None:
    return _secret("cookie", name, request.COOKIES.get(name))


def _from_get(name: str, exact: bool, request: HttpRequest) -> str | None:
    return _from_field("get", name, request.GET.get(name), exact=exact)


def _from_post(name: str, exact: bool, request: HttpRequest) -> Flow[Any]:
    if body_notes(request).parse is not None:
        return (yield from _from_body("post", name, (name,), exact, request))
    if has_unread_body(request, "post"):
        # Parsing may take long, so async code does it in a thread.
        fields = yield IOCall(partial(form_of, request), partial(sync_to_async(form_of), request))
    else:
        fields = request.POST
    return _from_field("post", name, fields.get(name), exact=exact)


def _from_json(path: str, exact: bool, request: HttpRequest) -> Flow[Any]:
    return (yield from _from_body("json", path, path.split("."), exact, request))


def _from_body(kind: str, path: str, names: Sequence[str], exact: bool, request: HttpRequest) -> Flow[Any]:
    value: Any = body_notes(request).found
    if value is None:
        value = yield IOCall(partial(json_object_of, request), partial(sync_to_async(json_object_of), request))
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, (bool, list, dict)):
        raise BadRequest(f"The field {path!r} of the body is not a string or a number.")
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 42, 42.0, 4.2e1 and "42" are one value for most views
    return _from_field(kind, path, None if value is None else str(value), exact=exact)


def _from_field(kind: str, name: str, value: str | None, *, exact: bool) -> str | None:
    """Return the part for a field of a form, a query or a JSON body.

    Values that Django's forms or a database may treat as equal are one subject; see `normalized`.
    `exact`: the value counts exactly as it was sent, as `distinct=` needs.
    """
    return _secret(kind, name, normalized(value) if value and not exact else value)


def _from_kwarg(name: str, request: HttpRequest) -> str | None:
    match = request.resolver_match
    value = None if match is None else match.kwargs.get(name)
    if value is None or value == "":
        return None
    if _is_shown_by_address(value):
        raise RuleError(
            f"The URL argument {name!r} is of type {type(value).__name__}, which has no string form of its own.",
            "Give the class a __str__, or use a function of the request as the key.",
        )
    return value_subject("kwarg", name, str(value))


def _session(request: HttpRequest) -> Flow[Any]:
    """Return the part for the session: a digest of its key, which is a secret.

    The key comes from the cookie, so it counts only if there is such a session. Looking up any name loads the session,
    which forgets a key that does not exist. Sessions in signed cookies have no key that lasts.
    """
    session: Any = getattr(request, "session", None)
    if getattr(session, "session_key", None) is None or isinstance(session, SignedCookieSession):
        return None
    yield IOCall(session.has_key, session.ahas_key, "")
    return session_subject(session.session_key) if session.session_key else None


def _from_callable(function: Callable[[HttpRequest], Any], request: HttpRequest) -> Flow[Any]:
    value = yield from call_flow(function, request)
    if value in (None, ""):
        return None
    if isinstance(value, Subject):
        return str(value)
    if is_user(value):
        return _known_user(value)
    if isinstance(value, (dict, list, set, tuple)) or _is_shown_by_address(value):
        kind = value.__class__.__name__
        del value  # a form, perhaps: error reports show locals
        raise RuleError(
            f"{dotted_path(function)} returned {kind}, which identifies nobody.",
            "Return a string, a number, a user or a Subject, for example Subject('org', value.pk).",
        )
    return f"key.{escape_value(dotted_path(function))}:{escape_value(str(value))}"


def _is_shown_by_address(value: object) -> bool:
    """Return whether `str()` of a value shows its address in memory, which changes with each request."""
    shown = value.__class__  # of a lazy object, that of what it stands for
    return shown.__str__ is object.__str__ and shown.__repr__ is object.__repr__


_PLAIN: dict[str, Resolver] = {
    "ip": ip_subject,
    "user": _user,
    "user_or_ip": _user,
    "session": _session,
    "path": lambda request: f"path:{escape_value(request.path_info)}",
    GLOBAL: lambda request: GLOBAL,  # noqa: ARG005
}

_NAMED: dict[str, Callable[[str, HttpRequest], str | None]] = {
    "header": _from_header,
    "cookie": _from_cookie,
    "kwarg": _from_kwarg,
}

_FIELDS: dict[str, Callable[[str, bool, HttpRequest], str | Flow[Any] | None]] = {
    "get": _from_get,
    "post": _from_post,
    "json": _from_json,
}

_EXAMPLES = {
    "header": "X-Api-Key",
    "cookie": "device",
    "kwarg": "pk",
    "get": "token",
    "post": "phone",
    "json": "phone",
}


def _secret(kind: str, name: str, value: str | None) -> str | None:
    """Return the part for a value that the client sent: a keyed digest, so the store, logs and admin hold no secret."""
    return f"{_head(kind, name)}{digest(value)}" if value else None


@lru_cache(maxsize=256)
def _head(kind: str, name: str) -> str:
    """Return the beginning of all subjects of one field, header or cookie."""
    return f"{kind}.{escape_value(name)}:"


# --- which subjects a key makes ---------------------------------------------------------------------------------------


def is_given_by(keys: Collection[object], subject: str, known: Collection[str] = (), *, is_group: bool = False) -> bool:
    """Return whether a key with these parts can make a subject, or one of a kind such as `user:*`.

    `known`: subjects that the key has made. A function may return a subject of any kind, but one that has made `org:7`
    is taken to make no `user:42` until it does. `is_group`: whether a network stands for all addresses and networks in
    it, as that of an override does. True if no parts are known, and for `EVERYBODY`.
    """
    if not keys or subject == EVERYBODY:
        return True
    parts = parts_of(subject)
    if len(keys) != len(parts):
        return False
    made = [each for each in map(parts_of, known) if len(each) == len(keys)]
    return all(
        _makes(key, part, {_kind(each[place]) for each in made} - _FALLBACKS, is_group=is_group)
        for place, (key, part) in enumerate(zip(keys, parts, strict=True))
    )


def _makes(key: object, part: str, made: Collection[str], *, is_group: bool) -> bool:
    """Return whether a key can make a part of a subject. A request that lacks the part counts by its address.

    `made`: the kinds of subjects that the key has made, without those of a fallback.
    """
    kind = _kind(part)
    if kind in _FALLBACKS and key not in ("path", GLOBAL):
        return kind != "ip" or is_function(key) or _is_size_of(key, part, is_group=is_group)
    if is_function(key):
        return kind in made if made else "." not in kind or kind.startswith("key.")
    return _is_own(str(key), kind)


def _is_size_of(key: object, part: str, *, is_group: bool) -> bool:
    """Return whether a key, or its fallback, makes networks of the size of this one."""
    try:
        network = network_of(part.removeprefix("ip:"))
    except ValueError:  # `ip:*`
        return True
    four, six = prefixes_of(key) or own_prefixes()
    bits = four if network.version == 4 else six or own_prefixes()[1]  # noqa: PLR2004 — IPv4
    return network.prefixlen <= bits if is_group else network.prefixlen == bits


def _kind(part: str) -> str:
    return part.partition(":")[0]


def is_function(key: object) -> bool:
    """Return whether a part of a key is a function, or the path of one."""
    return not isinstance(key, str) or (":" not in key and "." in key)


_FALLBACKS = frozenset(("ip", "throttle", "ratelimit"))
"""The kinds of subjects that any key may make: an address, and those that throttles make from their own keys."""


def _is_own(key: str, kind: str) -> bool:
    """Return whether a kind is that of a key, not of a fallback."""
    if key == "user_or_ip":
        return kind == "user"
    of_key, _colon, name = key.partition(":")
    return kind == (f"{of_key}.{name.strip().lower() if of_key == 'header' else name.strip()}" if name else key)
